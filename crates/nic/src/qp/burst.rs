//! A burst: large one-sided requests of a queue pair that the peer carries out one after the other, without a pause. The bytes and the
//! duration of a burst give the speed of the peer.

use ferroce_hostlink::{LARGE, Link, Purpose, Wanted};
use ferroce_os::clock;
use ferroce_wire::{Headers, Operation};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A burst of fewer bytes is too short to measure.
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

    /// Drops the burst, if there is one: its duration isn't the peer's speed, because other requests take a part of the time or the QP
    /// doesn't wait for its end.
    #[inline]
    pub(super) fn forget(&self) {
        if self.since.load(Ordering::Relaxed) != 0 {
            self.since.store(0, Ordering::Relaxed);
            self.ends.store(false, Ordering::Relaxed);
        }
    }

    /// No request is outstanding: a burst that was to end is over. Its duration is noted for the link, which chooses between initiator
    /// and peer for the next requests.
    pub(super) fn end(&self, link: &Link) {
        let since = self.since.swap(0, Ordering::Relaxed);
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        if self.ends.swap(false, Ordering::Relaxed) && since != 0 && bytes >= LEAST {
            link.peer_took(self.purpose(), bytes, since);
        }
    }

    /// No request is outstanding, and the next one is large: a burst begins if that request is left to the peer.
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

    /// A packet has left: the first one of a request has a RETH with the length of the request.
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
            // READs and WRITEs, or large and small requests, aren't measured together.
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
