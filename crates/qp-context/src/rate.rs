//! The rate that a program sets for what a QP sends (ibv_modify_qp_rate_limit(3)).

use core::num::NonZeroU32;
use ferroce_types::Instant;

/// Bytes of a packet besides its payload: Ethernet, IPv4, UDP, BTH, ICRC and FCS.
const OVERHEAD: u64 = 14 + 20 + 8 + 12 + 4 + 4;

/// Bytes at once under a limit, unless the program sets a burst.
const DEFAULT_BURST: u32 = 64 * 1024;

/// At most this much is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateLimit {
    /// Thousands of bits a second, with the headers of packets.
    pub kbps: NonZeroU32,
    /// Bytes that may follow each other at once after a silence.
    pub burst: u32,
}

impl RateLimit {
    /// A limit of so many thousands of bits a second, 0 for none, and bytes at once, 0 for what suits the rate.
    #[must_use]
    pub fn new(kbps: u32, burst: u32) -> Option<Self> {
        let kbps = NonZeroU32::new(kbps)?;
        let burst = match burst {
            // What the rate lets go in a millisecond: timers come late.
            0 => (kbps.get() / 8).max(DEFAULT_BURST),
            bytes => bytes,
        };
        Some(Self { kbps, burst })
    }

    /// Nanoseconds that `bytes` take.
    fn time_for(self, bytes: u64) -> u64 {
        bytes.saturating_mul(8_000_000) / u64::from(self.kbps.get())
    }
}

/// Lets a packet go while what went before it, less one burst, has had its time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Throttle {
    /// When everything that was sent would have been sent at the rate.
    done: u64,
}

impl Throttle {
    /// May something go now?
    ///
    /// # Errors
    /// When to ask again.
    pub fn ask(&self, now: Instant, rate: Option<RateLimit>) -> Result<(), Instant> {
        let Some(rate) = rate else { return Ok(()) };
        let at = self.done.saturating_sub(rate.time_for(rate.burst.into()));
        if at <= now.0 { Ok(()) } else { Err(Instant(at)) }
    }

    /// This many bytes of payload have gone in this many packets.
    pub fn sent(&mut self, now: Instant, bytes: u32, packets: u32, rate: Option<RateLimit>) {
        self.spent(now, u64::from(bytes) + OVERHEAD * u64::from(packets), rate);
    }

    /// This many bytes have gone, headers and all.
    pub fn spent(&mut self, now: Instant, bytes: u64, rate: Option<RateLimit>) {
        if let Some(rate) = rate {
            self.done = self.done.max(now.0).saturating_add(rate.time_for(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_then_what_the_rate_allows() {
        let rate = Some(RateLimit { kbps: NonZeroU32::new(80_000).unwrap(), burst: 20_000 });
        let mut throttle = Throttle::default();
        let (mut now, mut sent, mut first) = (Instant(1_000_000_000), 0u64, 0u64);
        while now.0 < 2_000_000_000 {
            match throttle.ask(now, rate) {
                Ok(()) => {
                    throttle.sent(now, 1000, 1, rate);
                    sent += 1000 + OVERHEAD;
                    first += u64::from(now.0 == 1_000_000_000);
                }
                Err(at) => {
                    assert!(at > now);
                    now = at;
                }
            }
        }
        assert_eq!(first, 19, "20,000 bytes, and the packet that goes over them");
        let expected = 10_000_000 + 20_000;
        assert!(sent.abs_diff(expected) < 2 * (1000 + OVERHEAD), "{sent} bytes in a second");
    }

    #[test]
    fn silence_earns_one_burst_and_no_more() {
        let rate = Some(RateLimit { kbps: NonZeroU32::new(8_000).unwrap(), burst: 5_000 });
        let mut throttle = Throttle::default();
        throttle.sent(Instant(0), 5_000, 1, rate);
        let later = Instant(60_000_000_000);
        let mut packets = 0;
        while throttle.ask(later, rate).is_ok() {
            throttle.sent(later, 1000 - OVERHEAD as u32, 1, rate);
            packets += 1;
        }
        assert_eq!(packets, 6);
    }

    #[test]
    fn no_limit_is_no_limit() {
        let mut throttle = Throttle::default();
        throttle.sent(Instant(0), u32::MAX, 1, None);
        assert_eq!(throttle.ask(Instant(0), None), Ok(()));
    }
}
