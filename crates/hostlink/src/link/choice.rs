//! Chooses which process carries out a one-sided operation: the initiator, by copies of the kernel's or in memory that both have
//! mapped, or the peer, by a packet in its ring.
//!
//! A peer that watches its ring is two to three times as fast with small operations; which of the two is faster with large ones is
//! measured (`speeds`). A peer watches for a while after it has found a packet, or was woken ([`Attention`](crate::Attention)). A wakeup
//! pays only if more operations follow: the initiator wakes the peer when its own copies have cost more than a wakeup.
//! No operation waits for a peer that may be stopped.

use super::Link;
use super::speeds::{Executor, LARGE, Speeds, Wanted};
use crate::directory::Purpose;
use ferroce_os::{clock, sys};
use std::sync::atomic::{AtomicU64, Ordering};

/// What an operation costs that the initiator carries out, in ns: at least, and for each 8 bytes.
const OPERATION: u64 = 2_000;
const WORD: u64 = 1;
/// Operations of less wait for nothing.
const SMALL: u64 = 4096;
/// What may be spent, in ns, before the peer is woken: at first, and at most when it doesn't stay awake.
const PATIENCE: u64 = 100_000;
const LONGEST_PATIENCE: u64 = 1_000_000_000;

/// What the initiator has spent on operations since the peer was woken last, and when it is to be woken again, in ns.
#[derive(Debug)]
pub(super) struct Costs {
    spent: AtomicU64,
    patience: AtomicU64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { spent: AtomicU64::new(0), patience: AtomicU64::new(PATIENCE) }
    }
}

impl Costs {
    /// The peer has stayed awake: to wake it pays.
    #[inline]
    fn forget(&self) {
        if self.patience.load(Ordering::Relaxed) != PATIENCE {
            self.patience.store(PATIENCE, Ordering::Relaxed);
        }
    }

    /// Counts an operation. True when it is time to wake the peer instead. Threads that count at once may count wrong, to no harm.
    fn add(&self, bytes: u64) -> bool {
        let spent = self.spent.load(Ordering::Relaxed).saturating_add(OPERATION + bytes / 8 * WORD);
        let patience = self.patience.load(Ordering::Relaxed);
        let ends = spent > patience;
        self.spent.store(if ends { 0 } else { spent }, Ordering::Relaxed);
        if ends {
            self.patience.store((2 * patience).min(LONGEST_PATIENCE), Ordering::Relaxed);
        }
        ends
    }
}

impl Link {
    /// Whether the peer watches its ring, so that an operation of so many bytes is dealt with at once.
    #[inline]
    pub fn peer_watches(&self, bytes: u64) -> bool {
        let Some(remote) = self.remote.get() else { return false };
        let (half, now) = (clock::ticks_of_half_millisecond_at_most(), clock::ticks());
        // A look in the last microseconds; what many bytes have to wait for may take longer.
        let look = half / 125;
        remote.directory.attention().is_given(now, look, if bytes < SMALL { look } else { half })
    }

    /// Whether the peer had better carry out a one-sided operation of so many bytes, by a packet. Wakes a peer that sleeps when it
    /// is time to: not for large operations that the initiator is the faster way for.
    #[inline]
    pub fn is_better_left_to_peer(&self, purpose: Purpose, bytes: u64) -> bool {
        let half = clock::ticks_of_half_millisecond_at_most();
        if bytes >= LARGE && self.speeds_of(purpose).choose(clock::ticks(), half) == Executor::Initiator {
            return false;
        }
        if self.peer_watches(bytes) {
            self.costs.forget();
            return true;
        }
        let sleeps = self.remote.get().is_some_and(|remote| remote.directory.bell().wakes_background());
        if sleeps && self.costs.add(bytes) {
            sys::send_byte(self.connection.checked());
        }
        false
    }

    fn speeds_of(&self, purpose: Purpose) -> &Speeds {
        if purpose == Purpose::Read { &self.read_speeds } else { &self.write_speeds }
    }

    /// Runs `copy`, by which the initiator carries out a part of an operation, and which returns how many bytes it has copied.
    #[inline]
    pub fn time_copy(&self, purpose: Purpose, copy: impl FnOnce() -> Option<u32>) -> Option<u32> {
        let begin = clock::ticks();
        let bytes = copy().map(u64::from);
        if let Some(bytes) = bytes.filter(|&bytes| bytes >= LARGE) {
            let now = clock::ticks();
            let half = clock::ticks_of_half_millisecond_at_most();
            self.speeds_of(purpose).initiator_took(bytes, now.wrapping_sub(begin), now, half);
        }
        bytes.map(|bytes| bytes as u32)
    }

    /// Whether large operations that follow others to the peer had better do so.
    #[inline]
    pub fn is_peer_wanted(&self, purpose: Purpose) -> Wanted {
        self.speeds_of(purpose).is_peer_wanted(clock::ticks())
    }

    /// The peer has carried out operations of so many bytes without a pause, beginning at `since`, in ticks.
    pub fn peer_took(&self, purpose: Purpose, bytes: u64, since: u64) {
        let now = clock::ticks();
        let half = clock::ticks_of_half_millisecond_at_most();
        self.speeds_of(purpose).peer_took(bytes, now.wrapping_sub(since), now, half);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_woken_for_what_it_costs_not_to_and_less_often_when_it_falls_asleep() {
        let costs = Costs::default();
        let operations = |bytes| (1..).find(|_| costs.add(bytes)).unwrap();
        assert_eq!(operations(8), 50);
        assert_eq!(operations(8), 100);
        // Of 1 MiB each costs 0.13 ms.
        assert_eq!(operations(1 << 20), 4);
        costs.forget();
        assert_eq!(operations(1 << 20), 1);
        for _ in 0..40 {
            operations(u64::MAX / 16);
        }
        assert_eq!(costs.patience.load(Ordering::Relaxed), LONGEST_PATIENCE);
    }
}
