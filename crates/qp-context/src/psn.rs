//! Packet sequence numbers (IBTA 9.7.2): 24 bits on the wire, 64 bits in here.
//!
//! Inside the transport a packet has an extended sequence number that never wraps; the wire carries its low 24 bits.
//! A received PSN is taken for the extended number nearest to the one expected, so that half of the 24-bit circle
//! lies ahead and half behind, as the specification has it.

/// The low 24 bits.
const MASK: u32 = 0x00ff_ffff;
/// Where extended numbers begin: room for everything that can be "behind" the first packet.
const ORIGIN: u64 = 1 << 24;

/// The extended number of the first packet of a queue.
pub const fn first(psn: u32) -> u64 {
    ORIGIN + (psn & MASK) as u64
}

/// The PSN on the wire.
pub const fn wire(extended: u64) -> u32 {
    (extended as u32) & MASK
}

/// The extended number with these low bits that is nearest to `reference`: up to 2^23 - 1 ahead, up to 2^23 behind.
pub const fn extend(reference: u64, psn: u32) -> u64 {
    let ahead = psn.wrapping_sub(reference as u32) & MASK;
    if ahead < 1 << 23 {
        reference + ahead as u64
    } else {
        (reference + ahead as u64).saturating_sub(1 << 24)
    }
}

#[cfg(test)]
mod tests {
    use super::{extend, first, wire};

    #[test]
    fn psn_is_extended_to_the_nearest_number_across_the_wrap() {
        let e = first(0xff_fffe);
        assert_eq!(extend(e, 0xff_fffe), e);
        assert_eq!(extend(e, 0xff_ffff), e + 1);
        assert_eq!(extend(e, 0), e + 2);
        assert_eq!(wire(e + 2), 0);
        assert_eq!(extend(e + 2, 0xff_ffff), e + 1);
        assert_eq!(extend(e, 0xff_fffd), e - 1);
    }

    #[test]
    fn half_the_circle_is_ahead_and_half_behind() {
        let e = first(0);
        assert_eq!(extend(e, (1 << 23) - 1), e + (1 << 23) - 1);
        assert_eq!(extend(e, 1 << 23), e - (1 << 23));
    }
}
