//! The static rate of an address vector: a limit of what goes to that address.

use ferroce_proto::RateLimit;

/// `enum ibv_rate` and its Mbit/s (ibv_rate_to_mbps(3)). 0, and values that aren't here, mean no limit.
pub const STATIC_RATES: [(u8, u32); 23] = [
    (2, 2_500),
    (5, 5_000),
    (3, 10_000),
    (6, 20_000),
    (4, 30_000),
    (7, 40_000),
    (8, 60_000),
    (9, 80_000),
    (10, 120_000),
    (11, 14_062),
    (12, 56_250),
    (13, 112_500),
    (14, 168_750),
    (15, 25_781),
    (16, 103_125),
    (17, 206_250),
    (18, 309_375),
    (19, 28_125),
    (20, 53_125),
    (21, 425_000),
    (22, 637_500),
    (23, 850_000),
    (24, 1_275_000),
];

/// The limit that a static rate stands for.
pub fn limit_of(static_rate: u8) -> Option<RateLimit> {
    let (_, mbps) = STATIC_RATES.iter().find(|(code, _)| *code == static_rate)?;
    RateLimit::new(mbps * 1000, 0)
}

/// The stricter of two.
pub fn stricter(a: Option<RateLimit>, b: Option<RateLimit>) -> Option<RateLimit> {
    [a, b].into_iter().flatten().min_by_key(|limit| limit.kbps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stricter_limit_counts_and_unknown_rates_are_none() {
        let slow = limit_of(2).unwrap();
        assert_eq!((slow.kbps.get(), slow.burst), (2_500_000, 312_500));
        for none in [0, 1, 25, u8::MAX] {
            assert_eq!(limit_of(none), None);
        }
        let program = RateLimit::new(5_000_000, 7);
        assert_eq!(stricter(program, Some(slow)), Some(slow));
        assert_eq!(stricter(program, limit_of(3)), program);
        assert_eq!(stricter(None, None), None);
    }
}
