//! Chooses which process carries out a one-sided operation: the initiator, by copies of the kernel's or in memory that both have
//! mapped, or the peer, by a packet in its ring.
//!
//! Large operations are the initiator's: one copy is never much slower than two by way of the ring, and several times as fast where the
//! processors share no cache. A peer that watches its ring is two to three times as fast with small operations. A peer watches for a while
//! after it has found a packet, or was woken ([`Attention`](crate::Attention)). A wakeup pays only if more operations follow: the initiator
//! wakes the peer when its own copies have cost more than a wakeup.
//! No operation waits for a peer that may be stopped.

use super::Link;
use ferroce_os::{clock, sys};
use std::sync::atomic::{AtomicU64, Ordering};

/// From this many bytes on, one copy by the kernel costs less than two copies through the ring.
pub const LARGE: u64 = 16 * 1024;

/// Whether an operation of so many bytes is large, which takes so many copies: one for each element.
#[inline]
#[must_use]
pub const fn is_large(bytes: u64, copies: usize) -> bool {
    bytes >= LARGE * copies as u64
}

/// What an operation costs that the initiator carries out, in ns: for each copy, and for each 8 bytes.
const COPY: u64 = 2_000;
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
    #[inline]
    fn add(&self, bytes: u64, copies: usize) -> bool {
        let cost = copies as u64 * COPY + bytes / 8 * WORD;
        let spent = self.spent.load(Ordering::Relaxed).saturating_add(cost);
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

    /// Whether the peer had better carry out a one-sided operation, by a packet, which has so many bytes and would take the initiator so
    /// many copies. Wakes a peer that sleeps when it is time to: not for large operations.
    #[inline]
    pub fn is_better_left_to_peer(&self, bytes: u64, copies: usize) -> bool {
        if is_large(bytes, copies) {
            return false;
        }
        if self.peer_watches(bytes) {
            self.costs.forget();
            return true;
        }
        let sleeps = self.remote.get().is_some_and(|remote| remote.directory.bell().wakes_background());
        if sleeps && self.costs.add(bytes, copies) {
            sys::send_byte(self.connection.checked());
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_of_many_short_elements_is_not_large() {
        assert!(is_large(LARGE, 1) && !is_large(LARGE - 1, 1));
        assert!(!is_large(LARGE, 32) && is_large(32 * LARGE, 32));
    }

    #[test]
    fn a_peer_is_woken_for_what_it_costs_not_to_and_less_often_when_it_falls_asleep() {
        let costs = Costs::default();
        let operations = |bytes| (1..).find(|_| costs.add(bytes, 1)).unwrap();
        assert_eq!(operations(8), 50);
        assert_eq!(operations(8), 100);
        // Of 8 KiB each costs 3 µs.
        assert_eq!(operations(8192), 133);
        costs.forget();
        assert_eq!(operations(8192), 34);
        costs.forget();
        // 32 elements of 256 bytes cost 65 µs.
        assert_eq!((1..).find(|_| costs.add(8192, 32)).unwrap(), 2);
        for _ in 0..40 {
            operations(u64::MAX / 16);
        }
        assert_eq!(costs.patience.load(Ordering::Relaxed), LONGEST_PATIENCE);
    }
}
