//! The send window: how many bytes a requester may have in flight, and what it knows of the round trip.
//!
//! Slow start to the first loss, then one MTU more per window acknowledged; a loss or a congestion notification halves
//! it, once per round trip. Only the sender has to know. A lossless fabric has no window. Services that acknowledge
//! nothing have a [pace](crate::Pace) instead.

use core::time::Duration;
use ferroce_types::Instant;

/// Bytes in flight before anything is known of the path.
const INITIAL: u32 = 128 << 10;
/// More than any path here can use.
const MAXIMUM: u32 = 64 << 20;
/// Packets that may always be in flight: with fewer, nothing follows a lost one that would tell of it.
const FLOOR: u32 = 4;
/// The round trip taken for granted before the first measurement: that of a local network.
const UNKNOWN_RTT: Duration = Duration::from_micros(200);
/// How long to wait for an answer before the first measurement.
const UNKNOWN_PATIENCE: Duration = Duration::from_millis(8);

#[derive(Debug, Clone)]
pub(crate) struct Window {
    /// Bytes allowed in flight.
    size: u32,
    /// Slow start ends here.
    threshold: u32,
    /// Bytes acknowledged towards the next linear step.
    credit: u32,
    /// Smoothed round trip in nanoseconds; 0 is unknown.
    srtt: u64,
    /// Mean deviation of the round trip in nanoseconds.
    deviation: u64,
    /// When it was last halved.
    cut: Option<Instant>,
}

impl Window {
    pub(crate) const fn new() -> Self {
        Self { size: INITIAL, threshold: u32::MAX, credit: 0, srtt: 0, deviation: 0, cut: None }
    }

    /// Bytes allowed in flight.
    pub(crate) const fn size(&self) -> u32 {
        self.size
    }

    /// The smoothed round trip, or a guess.
    pub(crate) const fn rtt(&self) -> Duration {
        if self.srtt == 0 { UNKNOWN_RTT } else { Duration::from_nanos(self.srtt) }
    }

    /// An answer later than this is probably none.
    pub(crate) const fn patience(&self) -> Duration {
        if self.srtt == 0 {
            UNKNOWN_PATIENCE
        } else {
            Duration::from_nanos(self.srtt * 2 + self.deviation * 4)
        }
    }

    /// A round trip was measured (RFC 6298's smoothing).
    pub(crate) fn sample(&mut self, rtt: Duration) {
        let rtt = (rtt.as_nanos() as u64).clamp(1, 10_000_000_000);
        if self.srtt == 0 {
            (self.srtt, self.deviation) = (rtt, rtt / 2);
        } else {
            self.deviation = (self.deviation * 3 + self.srtt.abs_diff(rtt)) / 4;
            self.srtt = (self.srtt * 7 + rtt) / 8;
        }
    }

    /// `bytes` were acknowledged while `in_flight` were out: a window that isn't used doesn't grow.
    pub(crate) fn acknowledged(&mut self, bytes: u32, in_flight: u32, mtu: u32) {
        if in_flight < self.size / 2 {
            return;
        }
        if self.size < self.threshold {
            self.size = self.size.saturating_add(bytes).min(MAXIMUM);
            return;
        }
        self.credit = self.credit.saturating_add(bytes);
        if self.credit >= self.size {
            self.credit = 0;
            self.size = self.size.saturating_add(mtu).min(MAXIMUM);
        }
    }

    /// Something was lost, or the network says that it is full.
    pub(crate) fn congested(&mut self, now: Instant, mtu: u32) {
        if self.cut.is_some_and(|cut| now.since(cut) < self.rtt()) {
            return;
        }
        self.cut = Some(now);
        self.credit = 0;
        self.size = (self.size / 2).max(mtu.saturating_mul(FLOOR));
        self.threshold = self.size;
    }
}

#[cfg(test)]
mod tests {
    use super::{INITIAL, Window};
    use core::time::Duration;
    use ferroce_types::Instant;

    #[test]
    fn window_is_halved_at_most_once_per_round_trip_and_never_under_four_packets() {
        let mut w = Window::new();
        w.sample(Duration::from_micros(100));
        w.congested(Instant(1_000_000), 1024);
        w.congested(Instant(1_050_000), 1024);
        assert_eq!(w.size(), INITIAL / 2);
        for i in 0..30 {
            w.congested(Instant(2_000_000 + i * 1_000_000), 1024);
        }
        assert_eq!(w.size(), 4 * 1024);
    }

    #[test]
    fn window_doubles_per_round_trip_before_the_first_loss_and_grows_by_one_mtu_after() {
        let mut w = Window::new();
        w.acknowledged(INITIAL, INITIAL, 1024);
        assert_eq!(w.size(), 2 * INITIAL);
        w.congested(Instant(1), 1024);
        w.acknowledged(INITIAL, INITIAL, 1024);
        assert_eq!(w.size(), INITIAL + 1024);
    }

    #[test]
    fn idle_window_does_not_grow() {
        let mut w = Window::new();
        for _ in 0..1000 {
            w.acknowledged(4096, 4096, 1024);
        }
        assert_eq!(w.size(), INITIAL);
    }

    #[test]
    fn round_trip_is_smoothed() {
        let mut w = Window::new();
        w.sample(Duration::from_micros(80));
        w.sample(Duration::from_micros(160));
        assert_eq!(w.rtt(), Duration::from_micros(90));
        assert!(w.patience() > w.rtt());
    }
}
