//! A burst: large one-sided requests of a queue pair that the peer carries out one after the other, without a pause. How long one
//! takes says how fast the peer is.

use ferroce_hostlink::{LARGE, Link, Purpose};
use ferroce_os::clock;
use ferroce_wire::{Headers, Operation};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A burst of fewer bytes says little.
const LEAST: u64 = 1 << 20;

/// The burst of a queue pair. Used with the queue pair locked.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// The last one-sided request was left to the peer, though it could have been executed here.
    left_to_peer: AtomicBool,
    /// When the first of its requests was left to the peer, in ticks; 0: there is no burst.
    since: AtomicU64,
    bytes: AtomicU64,
    reads: AtomicBool,
    /// The next request waits until the burst is over.
    ends: AtomicBool,
}

impl Burst {
    /// As [`Burst::begin`], of a request that isn't large: there is nothing to measure.
    #[inline]
    pub(super) fn begin_small(&self, left_to_peer: bool) {
        self.left_to_peer.store(left_to_peer, Ordering::Relaxed);
        self.small_sent();
    }

    /// A request that isn't large has left.
    #[inline]
    pub(super) fn small_sent(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::Relaxed);
            self.ends.store(false, Ordering::Relaxed);
        }
    }

    /// Nothing is under way, and the next request, a large one, is left to the peer or isn't. A burst that was to end is over.
    pub(super) fn begin(&self, link: &Link, purpose: Purpose, left_to_peer: bool) {
        let since = self.since.swap(if left_to_peer { clock::ticks() } else { 0 }, Ordering::Relaxed);
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        let before = self.purpose();
        if self.ends.swap(false, Ordering::Relaxed) && since != 0 {
            link.peer_took(before, bytes, since);
        }
        self.left_to_peer.store(left_to_peer, Ordering::Relaxed);
        self.reads.store(purpose == Purpose::Read, Ordering::Relaxed);
    }

    fn purpose(&self) -> Purpose {
        if self.reads.load(Ordering::Relaxed) { Purpose::Read } else { Purpose::Write }
    }

    /// The last one-sided request was left to the peer, though it could have been executed here.
    #[inline]
    pub(super) fn is_left_to_peer(&self) -> bool {
        self.left_to_peer.load(Ordering::Relaxed)
    }

    /// A packet has left: the first of a request says how many bytes the request has.
    #[inline]
    pub(super) fn sent(&self, headers: &Headers) {
        let Some(reth) = headers.reth.filter(|_| self.since.load(Ordering::Relaxed) != 0) else { return };
        let reads = headers.bth.opcode.operation == Operation::ReadRequest;
        if reads != self.reads.load(Ordering::Relaxed) || u64::from(reth.dma_len) < LARGE {
            // Different requests together are no measure of either.
            self.since.store(0, Ordering::Relaxed);
        }
        let bytes = self.bytes.load(Ordering::Relaxed);
        self.bytes.store(bytes + u64::from(reth.dma_len), Ordering::Relaxed);
    }

    /// Whether the burst had better end before the next request, so that it can be measured.
    #[inline]
    pub(super) fn is_to_end(&self, link: &Link) -> bool {
        let is_long = || {
            let since = self.since.load(Ordering::Relaxed);
            since != 0
                && self.bytes.load(Ordering::Relaxed) >= LEAST
                && clock::ticks().wrapping_sub(since) >= clock::ticks_of_half_millisecond_at_most()
                && link.asks_how_long_peer_takes(self.purpose())
        };
        let ends = self.ends.load(Ordering::Relaxed) || is_long();
        self.ends.store(ends, Ordering::Relaxed);
        ends
    }
}
