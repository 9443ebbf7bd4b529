//! The layout of a QPN: a slot, which belongs to one process of the host, and an index in the slot.

/// Slots of the QPN space, with those that are never used: 0 (QP 0 and 1) and 4095 (the multicast QPN 0xffffff).
pub const SLOTS: u16 = 4096;

/// RoCE sockets of a local address: the processes of the host share them.
pub const GROUP_SIZE: usize = 64;

/// QPNs of a slot.
pub const QPNS_PER_SLOT: usize = 1 << 12;

/// The first QPN of a slot.
#[must_use]
#[inline]
pub const fn first_qpn(slot: u16) -> u32 {
    slot as u32 * QPNS_PER_SLOT as u32
}

/// The slot of a QPN: bits 12 to 23.
#[must_use]
#[inline]
pub const fn slot_of(qpn: u32) -> u16 {
    (qpn >> 12) as u16 & (SLOTS - 1)
}

/// Which socket of the group a QPN's packets come to: the low six bits of its slot, bits 12 to 17.
#[must_use]
#[inline]
pub const fn steering_of(qpn: u32) -> u8 {
    (qpn >> 12) as u8 & (GROUP_SIZE as u8 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_one_steering_class_share_a_socket() {
        let qpn = 0xabc_def;
        assert_eq!((slot_of(qpn), steering_of(qpn)), (0xabc, 0x3c));
        assert_eq!(steering_of(qpn), (usize::from(slot_of(qpn)) % GROUP_SIZE) as u8);
        assert_eq!((slot_of(0xff_ffff), slot_of(1)), (SLOTS - 1, 0));
        assert_eq!((slot_of(first_qpn(7)), slot_of(first_qpn(7) - 1)), (7, 6));
    }
}
