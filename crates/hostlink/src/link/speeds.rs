//! How fast large one-sided operations are in each of the two ways in which they can be carried out.
//!
//! Which way is faster depends on the processors and on what they share, so it is measured, with the program's own operations. The
//! initiator's copies are timed one by one. The peer's part is timed over many operations that follow each other without a pause:
//! both processors copy then. The slower way is measured again now and then, more seldom each time that it is slower again.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Operations of less aren't measured: what they cost isn't their bytes.
pub const LARGE: u64 = 16 * 1024;
/// Copies of the initiator's that are one measurement. The first doesn't count: it may find pages that haven't been touched yet.
const COPIES: u32 = 9;
/// Requests for which the peer's way is tried before it is given up to measure it: none of them had others behind it.
const TRIES: u32 = 64;
/// When a measurement is repeated, in units of half a millisecond at most: at first, and when the slower way stays the same.
const FIRST_INTERVAL: u64 = 50;
const LONGEST_INTERVAL: u64 = 5_000;
const MIB: u64 = 1 << 20;

/// The process that carries out an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Executor {
    Initiator,
    Peer,
}

/// Whether the peer is to carry out large operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// It is the faster way.
    Yes,
    /// The initiator is, or has to be measured.
    No,
    /// How long it takes has to be measured.
    ToMeasure,
}

/// Speeds of one kind of operation. Threads that measure at once may measure wrong, to no harm.
#[derive(Debug)]
pub(super) struct Speeds {
    /// Ticks for each MiB, either way; 0: not measured.
    initiator: AtomicU64,
    peer: AtomicU64,
    /// Copies of the initiator's that are left of a measurement.
    copies: AtomicU32,
    /// Requests so far for which the peer's way was tried, to measure it.
    tries: AtomicU32,
    /// When the slower way is measured again, and after how long, in ticks.
    due: AtomicU64,
    interval: AtomicU64,
    /// The peer was faster by the last measurement.
    is_peer_faster: AtomicBool,
}

impl Default for Speeds {
    fn default() -> Self {
        Self {
            initiator: AtomicU64::new(0),
            peer: AtomicU64::new(0),
            copies: AtomicU32::new(COPIES),
            tries: AtomicU32::new(0),
            due: AtomicU64::new(0),
            interval: AtomicU64::new(0),
            is_peer_faster: AtomicBool::new(false),
        }
    }
}

/// The average of the known and the measured time, with this weight. A measurement whose thread lost its processor counts for little; one
/// of less than half the known time replaces it, since the known time is then outdated.
fn averaged(known: u64, measured: u64, weight: u64) -> u64 {
    if known == 0 || measured < known / 2 {
        measured.max(1)
    } else {
        (known * (weight - 1) + measured.min(2 * known)) / weight
    }
}

fn for_each_mib(bytes: u64, ticks: u64) -> u64 {
    ticks.saturating_mul(MIB) / bytes.max(1)
}

impl Speeds {
    /// Chooses the process for the next operation, at `now`: the initiator until its copies are timed; the peer while a measurement of it
    /// is due, for [`TRIES`] operations; otherwise the faster one, or the peer if it was never measured. `half`: ticks of half a
    /// millisecond at most.
    pub(super) fn choose(&self, now: u64, half: u64) -> Executor {
        let (initiator, peer) = (self.initiator.load(Ordering::Relaxed), self.peer.load(Ordering::Relaxed));
        if self.copies.load(Ordering::Relaxed) > 0 {
            return Executor::Initiator;
        }
        if peer != 0 && self.is_due(now) {
            let tries = self.tries.fetch_add(1, Ordering::Relaxed);
            if tries < TRIES {
                return Executor::Peer;
            }
            self.decide(now, half);
        }
        if peer != 0 && initiator <= peer { Executor::Initiator } else { Executor::Peer }
    }

    fn is_due(&self, now: u64) -> bool {
        now.wrapping_sub(self.due.load(Ordering::Relaxed)).cast_signed() >= 0
    }

    /// Whether the peer is to carry out what follows operations that it carries out.
    pub(super) fn is_peer_wanted(&self, now: u64) -> Wanted {
        let (initiator, peer) = (self.initiator.load(Ordering::Relaxed), self.peer.load(Ordering::Relaxed));
        if peer == 0 || self.is_due(now) {
            Wanted::ToMeasure
        } else if self.copies.load(Ordering::Relaxed) > 0 || initiator <= peer {
            Wanted::No
        } else {
            Wanted::Yes
        }
    }

    /// The initiator has copied so many bytes.
    pub(super) fn initiator_took(&self, bytes: u64, ticks: u64, now: u64, half: u64) {
        let (known, left) = (self.initiator.load(Ordering::Relaxed), self.copies.load(Ordering::Relaxed));
        if left != COPIES {
            self.initiator.store(averaged(known, for_each_mib(bytes, ticks), 8), Ordering::Relaxed);
        }
        if left > 0 {
            self.copies.store(left - 1, Ordering::Relaxed);
            if left == 1 && self.peer.load(Ordering::Relaxed) != 0 {
                self.decide(now, half);
            }
        }
    }

    /// The peer has carried out operations of so many bytes that followed each other.
    pub(super) fn peer_took(&self, bytes: u64, ticks: u64, now: u64, half: u64) {
        let known = self.peer.load(Ordering::Relaxed);
        self.peer.store(averaged(known, for_each_mib(bytes, ticks), 2), Ordering::Relaxed);
        if known != 0 && self.is_peer_faster.load(Ordering::Relaxed) {
            // The initiator hasn't copied for long.
            self.copies.store(COPIES, Ordering::Relaxed);
        } else {
            self.decide(now, half);
        }
    }

    /// Both ways are measured, or as well as possible: compares them, and sets when to measure again.
    fn decide(&self, now: u64, half: u64) {
        let is_faster = self.peer.load(Ordering::Relaxed) < self.initiator.load(Ordering::Relaxed);
        let is_same = self.is_peer_faster.swap(is_faster, Ordering::Relaxed) == is_faster;
        let longer = (2 * self.interval.load(Ordering::Relaxed)).min(LONGEST_INTERVAL * half);
        let interval = if is_same { longer.max(FIRST_INTERVAL * half) } else { FIRST_INTERVAL * half };
        self.interval.store(interval, Ordering::Relaxed);
        self.due.store(now.wrapping_add(interval), Ordering::Relaxed);
        self.tries.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u64 = 500_000;

    /// Operations of 64 KiB that take so many ticks each, on a clock of their own.
    struct Machine {
        now: u64,
        initiator: u64,
        peer: u64,
    }

    impl Machine {
        /// Runs operations for so long, in halves of a millisecond, and returns how many the initiator has carried out, and the peer.
        fn run(&mut self, speeds: &Speeds, halves: u64) -> (u64, u64) {
            const BYTES: u64 = 64 * 1024;
            let end = self.now + halves * HALF;
            let (mut own, mut others) = (0, 0);
            while self.now < end {
                match speeds.choose(self.now, HALF) {
                    Executor::Initiator => {
                        self.now += self.initiator;
                        speeds.initiator_took(BYTES, self.initiator, self.now, HALF);
                        own += 1;
                    }
                    Executor::Peer => {
                        let count = HALF.div_ceil(self.peer);
                        self.now += count * self.peer;
                        others += count;
                        if speeds.is_peer_wanted(self.now) == Wanted::ToMeasure {
                            speeds.peer_took(count * BYTES, count * self.peer, self.now, HALF);
                        }
                    }
                }
            }
            (own, others)
        }
    }

    #[test]
    fn the_faster_way_takes_nearly_everything() {
        for (initiator, peer) in [(20_000, 30_000), (30_000, 20_000)] {
            let mut machine = Machine { now: 1 << 40, initiator, peer };
            let speeds = Speeds::default();
            machine.run(&speeds, 1000);
            let (own, others) = machine.run(&speeds, 20_000);
            let (less, more) = if initiator < peer { (others, own) } else { (own, others) };
            assert!(less > 0 && less * 1000 < more, "{own} and {others}");
        }
    }

    #[test]
    fn a_way_that_becomes_faster_is_found() {
        let mut machine = Machine { now: 1, initiator: 20_000, peer: 30_000 };
        let speeds = Speeds::default();
        machine.run(&speeds, 50_000);
        for (initiator, peer) in [(20_000, 5_000), (4_000, 5_000), (20_000, 5_000)] {
            (machine.initiator, machine.peer) = (initiator, peer);
            machine.run(&speeds, 50_000);
            let (own, others) = machine.run(&speeds, 5_000);
            assert_eq!(own > others, initiator < peer, "{own} and {others}");
        }
    }

    #[test]
    fn a_way_that_cannot_be_measured_is_given_up() {
        let (speeds, mut machine) = (Speeds::default(), Machine { now: 1, initiator: 20_000, peer: 30_000 });
        machine.run(&speeds, 1000);
        let now = machine.now + LONGEST_INTERVAL * HALF;
        let ways: Vec<_> = (0..200).map(|_| speeds.choose(now, HALF)).collect();
        assert_eq!(ways.iter().filter(|&&way| way == Executor::Peer).count(), TRIES as usize);
        assert_eq!(ways.last(), Some(&Executor::Initiator));
    }

    #[test]
    fn a_copy_that_was_held_up_counts_for_little() {
        let speeds = Speeds::default();
        (0..20).for_each(|_| speeds.initiator_took(1 << 16, 20_000, 1, HALF));
        assert_eq!(speeds.initiator.load(Ordering::Relaxed), 20_000 * 16);
        let before = speeds.initiator.load(Ordering::Relaxed);
        speeds.initiator_took(1 << 16, 20_000_000, 1, HALF);
        assert!(speeds.initiator.load(Ordering::Relaxed) <= before + before / 8 + 1);
    }
}
