//! The times of the timers: the local ACK timer, the RNR timer, and the probe for a lost tail.

use crate::{QpParams, Requester};
use core::time::Duration;
use ferroce_types::Instant;

/// The RNR NAK timer codes (IBTA 9.7.5.2.8, table 45): hundredths of a millisecond by code. Code 0 is the longest.
const TABLE: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// How long a requester waits after an RNR NAK with this code (five bits; the others are ignored).
#[must_use]
pub const fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(TABLE[(code & 0x1f) as usize] as u64 * 10)
}

/// A probe for a lost tail waits at least this long: less than a scheduler's slip would only double the traffic.
const SHORTEST_PROBE: Duration = Duration::from_millis(1);
/// The first probe of a peer that has answered nothing waits this long where READs or atomics are unanswered: it has them answered again.
const FIRST_PROBE_OF_READS: Duration = Duration::from_millis(8);
/// Probes back off to this.
const LONGEST_PROBE: Duration = Duration::from_millis(500);

impl Requester {
    /// When to probe for a lost tail of what is outstanding now. Each packet that leaves asks for it, so it is computed in nanoseconds.
    pub fn probe_after(&self, now: Instant) -> Instant {
        let least = match self.window.is_measured() || self.unfinished_reads == 0 {
            true => SHORTEST_PROBE.as_nanos() as u64,
            false => FIRST_PROBE_OF_READS.as_nanos() as u64,
        };
        let delay = self.window.patience_ns().max(least) << self.probe_backoff.min(16);
        Instant(now.0.saturating_add(delay.min(LONGEST_PROBE.as_nanos() as u64)))
    }

    /// Starts the timers that aren't running.
    #[inline]
    pub fn arm(&mut self, now: Instant, params: &QpParams) {
        if self.ack_deadline.is_none() {
            self.ack_deadline = ack_timeout(params.timeout).map(|t| now.after(t));
        }
        if !params.lossless {
            self.probe_at = Some(self.probe_after(now));
        }
    }
}

/// The shortest local ACK timeout, as an exponent: 4.096 µs × 2^10 = 4.2 ms. A peer in software answers when the scheduler
/// lets it: a time slice of another thread takes 3 to 4 ms, and a thread of the adapter that naps another one. A program
/// that asks for less, which adapters raise as well, would lose connections to peers that are well.
pub const LEAST_ACK_TIMEOUT: u8 = 10;

/// The local ACK timeout (IBTA 9.7.6.1.3): it must lie between 4.096 µs × 2^timeout and four times that. Three
/// times leaves a peer that the scheduler keeps waiting its chance; lost packets are found sooner by probes. `None`: there is
/// none.
#[must_use]
pub const fn ack_timeout(exponent: u8) -> Option<Duration> {
    match exponent & 31 {
        0 => None,
        e if e < LEAST_ACK_TIMEOUT => Some(Duration::from_nanos((4096 * 3) << LEAST_ACK_TIMEOUT)),
        e => Some(Duration::from_nanos((4096 * 3) << e)),
    }
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
