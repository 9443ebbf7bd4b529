//! The send window: how many bytes a requester may have in flight, and what it knows of the round trip.
//!
//! Slow start to the first cut, then a sixteenth, or one MTU, more per window acknowledged. A congestion notification halves the window. A
//! loss cuts it to what the path has carried in a round trip without queues, and to its half at most: where no queue has grown the
//! loss wasn't congestion, and cuts nothing. Either cuts once per round trip. Where the peer reports what it misses, a thirty-second of what
//! the path carries in a round trip may be lost in one without a cut. `cargo xtask bench fabric` shows what these rules do in a data center
//! (decision 104). Only the sender has to know. A lossless fabric has no window. Services that acknowledge nothing have a
//! [pace](crate::Pace) instead.

use core::time::Duration;
use ferroce_types::Instant;

/// Bytes in flight before anything is known of the path.
const INITIAL: u32 = 32 << 10;
/// More than any path here can use.
const MAXIMUM: u32 = 64 << 20;
/// The part of the window that it grows by per window acknowledged, where no queue delays packets and that is more than one MTU.
const STEP: u32 = 16;
/// A round trip that is longer by no more than this part of the shortest wasn't delayed by a queue.
const CLEAR: u64 = 8;
/// A round trip of so many of the shortest may be that of a network without a queue, where a process has waited for a processor.
const CALM: u64 = 2;
/// The part of what the path carries in a round trip that may be lost without congestion.
const FEW: u32 = 32;
/// Samples after which older ones count no more than once.
const SAMPLES: u8 = 8;
/// The round trip taken for granted before the first measurement: that of a local network.
const UNKNOWN_RTT: Duration = Duration::from_micros(200);

/// How many bytes may be in flight.
#[derive(Debug, Clone)]
pub struct Window {
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
    /// The shortest round trip in nanoseconds; 0 is unknown.
    shortest: u64,
    /// The most bytes that the path has carried in the shortest round trip: by the latest samples, and by those before.
    carried: [u32; 2],
    /// How many samples the latest are.
    samples: u8,
    /// The last sample was hardly longer than the shortest: no queue has delayed it.
    is_clear: bool,
    /// The last sample was longer by a round trip at most: if a queue has delayed it, it hasn't overflowed yet.
    is_calm: bool,
    /// When it was last cut.
    cut: Option<Instant>,
    /// Bytes that were reported lost since then; they count for a round trip.
    lost: u64,
    lost_since: Instant,
}

impl Default for Window {
    /// Before anything is known of the path.
    fn default() -> Self {
        Self {
            size: INITIAL,
            threshold: u32::MAX,
            credit: 0,
            srtt: 0,
            deviation: 0,
            shortest: 0,
            carried: [0; 2],
            samples: 0,
            is_clear: false,
            is_calm: false,
            cut: None,
            lost: 0,
            lost_since: Instant(0),
        }
    }
}

impl Window {
    /// Bytes allowed in flight.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// The smoothed round trip, or a guess.
    pub const fn rtt(&self) -> Duration {
        if self.is_measured() { Duration::from_nanos(self.srtt) } else { UNKNOWN_RTT }
    }

    /// A round trip was measured.
    pub const fn is_measured(&self) -> bool {
        self.srtt != 0
    }

    /// An answer later than this is probably none. Before the first measurement nothing is known.
    pub const fn patience(&self) -> Duration {
        Duration::from_nanos(self.patience_ns())
    }

    /// As [`Self::patience`], in nanoseconds.
    pub const fn patience_ns(&self) -> u64 {
        self.srtt * 2 + self.deviation * 4
    }

    /// A packet that left so long ago, and hasn't come, was lost: what left after it has come (`is_overtaken`), or the answer would be here.
    pub fn is_overdue(&self, age: Duration, is_overtaken: bool) -> bool {
        is_overtaken && age >= self.rtt() / 2 || age >= self.patience().max(self.rtt())
    }

    /// A round trip was measured (RFC 6298's smoothing), in which the path has carried `in_flight` bytes.
    pub fn sample(&mut self, rtt: Duration, in_flight: u64) {
        let rtt = (rtt.as_nanos() as u64).clamp(1, 10_000_000_000);
        if self.shortest == 0 || rtt < self.shortest {
            // Bytes that were carried in a much longer one are too many.
            if rtt < self.shortest - self.shortest / CLEAR {
                (self.samples, self.carried) = (0, [0; 2]);
            }
            self.shortest = rtt;
        }
        // The product of a gigabyte and ten seconds has room.
        let carried = in_flight.saturating_mul(self.shortest) / rtt;
        if self.samples == SAMPLES {
            (self.samples, self.carried) = (0, [0, self.carried[0]]);
        }
        self.samples += 1;
        self.is_clear = rtt - self.shortest <= self.shortest / CLEAR;
        self.is_calm = rtt <= self.shortest * CALM;
        self.carried[0] = self.carried[0].max(u32::try_from(carried).unwrap_or(u32::MAX));
        if self.srtt == 0 {
            (self.srtt, self.deviation) = (rtt, rtt / 2);
        } else {
            self.deviation = (self.deviation * 3 + self.srtt.abs_diff(rtt)) / 4;
            self.srtt = (self.srtt * 7 + rtt) / 8;
        }
    }

    /// `bytes` were acknowledged while `in_flight` were out: a window that isn't used doesn't grow.
    pub fn acknowledged(&mut self, bytes: u32, in_flight: u32, mtu: u32) {
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
            let step = if self.is_clear { mtu.max(self.size / STEP) } else { mtu };
            self.size = self.size.saturating_add(step).min(MAXIMUM);
        }
    }

    /// Something was lost. Queues that overflow have delayed packets before: then the path has carried less than what was in flight.
    pub fn lost(&mut self, now: Instant, mtu: u32) {
        let [latest, before] = self.carried;
        let lost = if now.since(self.lost_since) < self.rtt() { self.lost } else { 0 };
        let carried = u64::from(latest.max(before)).saturating_sub(lost) as u32;
        if self.cut_to(carried.clamp(self.size / 2, self.size), now, mtu) {
            // What was carried before counts after one more loss only: a burst may have been too much for a queue.
            (self.samples, self.carried) = (0, [0, latest]);
        }
    }

    /// The peer has reported that so many bytes were lost. Few of many, where no long queue delays packets, aren't a sign of congestion: the
    /// window gets smaller by what was lost, and grows as before.
    pub fn lost_bytes(&mut self, now: Instant, bytes: u64, mtu: u32) {
        if now.since(self.lost_since) >= self.rtt() {
            (self.lost, self.lost_since) = (0, now);
        }
        self.lost += bytes;
        let [latest, before] = self.carried;
        if self.is_calm && self.lost <= u64::from(latest.max(before) / FEW) {
            self.size = self.size.saturating_sub(bytes as u32).max(mtu);
        } else {
            self.lost(now, mtu);
        }
    }

    /// A congestion notification has come.
    pub fn congested(&mut self, now: Instant, mtu: u32) {
        self.cut_to(self.size / 2, now, mtu);
    }

    /// False: it was cut in this round trip already.
    fn cut_to(&mut self, size: u32, now: Instant, mtu: u32) -> bool {
        if self.cut.is_some_and(|cut| now.since(cut) < self.rtt()) {
            return false;
        }
        self.cut = Some(now);
        self.credit = 0;
        // One packet may always go: its probe shows whether it was lost.
        self.size = size.max(mtu);
        self.threshold = self.size;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{INITIAL, SAMPLES, STEP, Window};
    use core::time::Duration;
    use ferroce_types::Instant;

    #[test]
    fn window_is_halved_at_most_once_per_round_trip_and_never_under_one_packet() {
        let mut w = Window::default();
        w.sample(Duration::from_micros(100), 1024);
        w.congested(Instant(1_000_000), 1024);
        w.congested(Instant(1_050_000), 1024);
        assert_eq!(w.size(), INITIAL / 2);
        for i in 0..30 {
            w.congested(Instant(2_000_000 + i * 1_000_000), 1024);
        }
        assert_eq!(w.size(), 1024);
    }

    /// A path of 100 µs that carries 100 KB in that time; `queued` is how long packets wait besides.
    fn lose_with(queued: [u64; 3], in_flight: u64) -> (u32, u32) {
        let mut w = Window::default();
        w.sample(Duration::from_micros(100), 1000);
        while w.size() < 200_000 {
            w.acknowledged(10_000, 1 << 20, 1024);
        }
        for queued in queued {
            w.sample(Duration::from_micros(100 + queued), in_flight);
        }
        let before = w.size();
        w.lost(Instant(1), 1024);
        (before, w.size())
    }

    #[test]
    fn a_loss_cuts_the_window_to_what_the_path_carries_without_queues() {
        let (before, after) = lose_with([60, 50, 70], 160_000);
        assert_eq!((before, after), (202_768, 106_666));
        // No queue: nothing is overloaded. One sample without delay is enough, since a processor may have delayed the others.
        let (before, after) = lose_with([400, 0, 900], 1 << 20);
        assert_eq!(after, before);
        // Never to less than half.
        let (before, after) = lose_with([400, 500, 900], 200_000);
        assert_eq!(after, before / 2);
    }

    #[test]
    fn few_reported_losses_cost_their_bytes_and_more_cut_the_window() {
        let mut w = Window::default();
        w.sample(Duration::from_micros(100), 320_000);
        while w.size() < 300_000 {
            w.acknowledged(10_000, 1 << 20, 1024);
        }
        let size = w.size();
        // A thirty-second of what was carried, within a round trip.
        for (at, lost) in [(0, 4000), (50, 6000), (99, 0), (200, 9000), (250, 1000)] {
            w.lost_bytes(Instant(1_000_000 + at * 1000), lost, 1024);
        }
        assert_eq!(w.size(), size - 20_000);
        w.lost_bytes(Instant(1_260_000), 100_000, 1024);
        assert_eq!(w.size(), 320_000 - 110_000);
        // They count for a round trip.
        let mut w = Window::default();
        w.sample(Duration::from_micros(100), 32_000);
        w.lost_bytes(Instant(1), 900, 1024);
        w.lost(Instant(101_000), 1024);
        assert_eq!(w.size(), INITIAL - 900);
        // A process that waits for a processor delays packets for less than a round trip, and a queue for more.
        for (rtt, size) in [(200, 32_768 - 100), (201, 20_000 - 100)] {
            let mut w = Window::default();
            w.sample(Duration::from_micros(100), 20_000);
            w.sample(Duration::from_micros(rtt), 32_768);
            w.lost_bytes(Instant(1), 100, 1024);
            assert_eq!(w.size(), size);
        }
    }

    #[test]
    fn what_was_carried_before_a_much_shorter_round_trip_does_not_count() {
        let mut w = Window::default();
        w.sample(Duration::from_micros(800), 1 << 20);
        w.sample(Duration::from_micros(100), 1000);
        w.lost(Instant(1), 1024);
        assert_eq!(w.size(), INITIAL / 2);
    }

    #[test]
    fn what_a_path_has_carried_is_forgotten() {
        let mut w = Window::default();
        w.sample(Duration::from_micros(100), 1 << 20);
        for _ in 0..SAMPLES * 2 {
            w.sample(Duration::from_micros(100), 1000);
        }
        w.lost(Instant(1), 1024);
        assert_eq!(w.size(), INITIAL / 2);
    }

    #[test]
    fn window_doubles_per_round_trip_before_the_first_cut_and_grows_by_one_mtu_or_a_part_after() {
        let mut w = Window::default();
        w.acknowledged(INITIAL, INITIAL, 1024);
        assert_eq!(w.size(), 2 * INITIAL);
        w.congested(Instant(1), 1024);
        w.acknowledged(INITIAL, INITIAL, 1024);
        assert_eq!(w.size(), INITIAL + 1024);
        // Nothing delays packets.
        w.sample(Duration::from_micros(100), 1024);
        w.acknowledged(w.size(), w.size(), 1024);
        let grown = INITIAL + 1024;
        assert_eq!(w.size(), grown + grown / STEP);
        w.sample(Duration::from_micros(120), 1024);
        let before = w.size();
        w.acknowledged(before, before, 1024);
        assert_eq!(w.size(), before + 1024);
    }

    #[test]
    fn a_third_loss_without_a_round_trip_between_them_halves_the_window() {
        let mut w = Window::default();
        for _ in 0..2 {
            w.sample(Duration::from_micros(100), 1 << 20);
        }
        for (at, expected) in [(1, INITIAL), (1_000_000, INITIAL), (2_000_000, INITIAL / 2)] {
            w.lost(Instant(at), 1024);
            assert_eq!(w.size(), expected);
        }
    }

    #[test]
    fn idle_window_does_not_grow() {
        let mut w = Window::default();
        for _ in 0..1000 {
            w.acknowledged(4096, 4096, 1024);
        }
        assert_eq!(w.size(), INITIAL);
    }

    #[test]
    fn a_packet_is_overdue_after_half_a_round_trip_where_a_later_one_has_come() {
        let mut w = Window::default();
        let is_overdue =
            |w: &Window, micros, is_overtaken| w.is_overdue(Duration::from_micros(micros), is_overtaken);
        // Nothing is known: the round trip is taken for that of a local network.
        assert!(!is_overdue(&w, 99, true) && is_overdue(&w, 100, true));
        assert!(!is_overdue(&w, 199, false) && is_overdue(&w, 200, false));
        for _ in 0..100 {
            w.sample(Duration::from_micros(1000), 1024);
        }
        assert!(!is_overdue(&w, 499, true) && is_overdue(&w, 500, true));
        let patience = w.patience().as_micros() as u64;
        assert!(patience >= 2000 && !is_overdue(&w, patience - 1, false) && is_overdue(&w, patience, false));
    }

    #[test]
    fn round_trip_is_smoothed() {
        let mut w = Window::default();
        w.sample(Duration::from_micros(80), 1024);
        w.sample(Duration::from_micros(160), 1024);
        assert_eq!(w.rtt(), Duration::from_micros(90));
        assert!(w.patience() > w.rtt());
    }
}
