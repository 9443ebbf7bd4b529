//! The peer's memory without the peer: one-sided operations, which the initiator carries out itself.

use super::views::Views;
use super::{Link, PeerAccess, TRUST};
use crate::directory::{FoundMemory, Purpose, QpnPair};
use crate::protocol::AccessWord;
use ferroce_os::sync::{MutexGuard, class};
use ferroce_os::{clock, sys};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Link {
    /// Whether QPs may reach the peer's memory without the peer.
    #[inline]
    pub fn may_access(&self) -> bool {
        self.remote.get().is_some_and(|remote| remote.memory.is_some())
            && !self.is_dead()
            && self.terms(false).sees_exit.load(Ordering::Acquire) == 1
    }

    /// Lets `f` copy from or to a range (key, address, length) of the peer's memory, on behalf of a QP and its peer. `None`
    /// when that isn't allowed or isn't possible this way, or while too many threads do so. The caller then sends a packet, which the
    /// peer refuses with the reason, or executes.
    pub fn access<R>(
        &self,
        ends: QpnPair,
        range: (u32, u64, u64),
        purpose: Purpose,
        f: impl FnOnce(&PeerAccess<'_>, u64) -> Option<R>,
    ) -> Option<R> {
        let remote = self.remote.get()?;
        let memory = remote.memory.as_ref()?;
        // A page of the peer's can hold a thread up for any time: no other thread waits for it.
        let (mut lane, word) = self.free_lane()?;
        // The peer's revocations wait for this process until it exits, and so have to see that.
        if !self.is_there() || self.terms(false).sees_exit.load(Ordering::Acquire) != 1 {
            return None;
        }
        word.enter(ends.1, range.0);
        // Accesses that begin after the link has ended aren't waited for.
        let ended = self.terms(false).ended.is_set();
        let found = if ended { None } else { remote.directory.find(ends, range, purpose) };
        let result = found.and_then(|FoundMemory { address, region, connection }| {
            let view = self.view(&mut lane, &region, memory);
            f(&PeerAccess { memory, view, connection }, address)
        });
        word.leave();
        self.free(lane);
        result
    }

    /// Frees a lane, and gives its views of revoked regions back.
    #[inline]
    fn free(&self, mut lane: MutexGuard<'_, class::LinkAccess, Views>) {
        self.tidy_views(&mut lane);
        let (has_views, tidied) = (lane.has_mapped(), lane.revocations());
        drop(lane);
        if has_views {
            self.tidy_since(tidied);
        }
    }

    /// A lane that no thread uses, and its word in the link's memory.
    #[inline]
    fn free_lane(&self) -> Option<(MutexGuard<'_, class::LinkAccess, Views>, &AccessWord)> {
        let words = &self.to_peer.head.access;
        self.lanes.iter().zip(words).find_map(|(lane, word)| Some((lane.try_lock()?, word)))
    }

    /// The number of a QP's connection at the peer; 0: the QP isn't listed.
    pub fn connection_of(&self, ends: QpnPair) -> u64 {
        self.remote.get().and_then(|remote| remote.directory.connection(ends)).unwrap_or(0)
    }

    /// The peer's QP of `ends` reaches this process's QP of `ends` by UDP, as its process has noted.
    pub fn peer_uses_udp(&self, ends: QpnPair) -> bool {
        self.remote.get().is_some_and(|remote| remote.directory.is_by_udp(ends))
    }

    /// The peer hasn't given the link up. (That its memory is still its own is found out with each copy.)
    fn is_there(&self) -> bool {
        if self.is_to_itself() {
            return !self.is_dead();
        }
        let now = clock::ticks();
        if now.wrapping_sub(self.seen_alive.load(Ordering::Relaxed))
            < clock::ticks_of_half_millisecond_at_most() / TRUST
        {
            return true;
        }
        if self.is_dead() || sys::wait_for(self.connection.raw(), libc::POLLRDHUP, Duration::ZERO) {
            return false;
        }
        self.seen_alive.store(now, Ordering::Relaxed);
        true
    }
}
