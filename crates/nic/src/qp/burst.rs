//! A burst: large one-sided requests of a queue pair that the peer carries out one after the other, without a pause. How long one
//! takes says how fast the peer is.

use ferroce_hostlink::{LARGE, Link, Purpose, Wanted};
use ferroce_os::clock;
use ferroce_wire::{Headers, Operation};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A burst of fewer bytes says little.
const LEAST: u64 = 1 << 20;

/// The burst of a queue pair. Caller holds the QP lock; the members are atomics, since the sending path has a shared reference.
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
        self.forget();
    }

    /// If there is a burst, the time that it takes says nothing: something else takes its part, or it can't be waited for.
    #[inline]
    pub(super) fn forget(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::Relaxed);
            self.ends.store(false, Ordering::Relaxed);
        }
    }

    /// Nothing is under way: a burst that was to end is over. Whoever carries out the next request is chosen by what it has taken.
    pub(super) fn end(&self, link: &Link) {
        let since = self.since.swap(0, Ordering::Relaxed);
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        if self.ends.swap(false, Ordering::Relaxed) && since != 0 && bytes >= LEAST {
            link.peer_took(self.purpose(), bytes, since);
        }
    }

    /// Nothing is under way, and the next request, a large one, is left to the peer or isn't.
    pub(super) fn begin(&self, purpose: Purpose, left_to_peer: bool) {
        self.since.store(if left_to_peer { clock::ticks() } else { 0 }, Ordering::Relaxed);
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
        let opcode = headers.bth.opcode;
        if self.since.load(Ordering::Relaxed) == 0 || opcode.is_response() {
            return;
        }
        let Some(reth) = headers.reth else {
            if !opcode.is_write() {
                self.forget();
            }
            return;
        };
        let reads = opcode.operation == Operation::ReadRequest;
        if reads != self.reads.load(Ordering::Relaxed) || u64::from(reth.dma_len) < LARGE {
            // Different requests together are no measure of either.
            self.forget();
        }
        let bytes = self.bytes.load(Ordering::Relaxed);
        self.bytes.store(bytes + u64::from(reth.dma_len), Ordering::Relaxed);
    }

    /// Whether the burst had better end before the next request: it can be measured, or the initiator has become the faster way.
    #[inline]
    pub(super) fn is_to_end(&self, link: &Link) -> bool {
        let is_over = || {
            let since = self.since.load(Ordering::Relaxed);
            let is_long = || {
                self.bytes.load(Ordering::Relaxed) >= LEAST
                    && clock::ticks().wrapping_sub(since) >= clock::ticks_of_half_millisecond_at_most()
            };
            since != 0
                && match link.is_peer_wanted(self.purpose()) {
                    Wanted::ToMeasure => is_long(),
                    Wanted::No => true,
                    Wanted::Yes => false,
                }
        };
        let ends = self.ends.load(Ordering::Relaxed) || is_over();
        self.ends.store(ends, Ordering::Relaxed);
        ends
    }
}
