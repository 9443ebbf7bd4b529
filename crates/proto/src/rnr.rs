//! The RNR NAK timer codes (IBTA 9.7.5.2.8, table 45).

use core::time::Duration;

/// Hundredths of a millisecond by code. Code 0 is the longest.
const TABLE: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// How long a requester waits after an RNR NAK with this code (five bits; the others are ignored).
#[must_use]
pub const fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(TABLE[(code & 0x1f) as usize] as u64 * 10)
}

#[cfg(test)]
mod tests {
    use super::rnr_delay;
    use core::time::Duration;

    #[test]
    fn rnr_delays_are_those_of_the_table() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
        for code in 2..32 {
            assert!(rnr_delay(code) > rnr_delay(code - 1), "code {code}");
        }
    }
}
