//! Regions of the peer that lie in memory which can be shared, mapped here: one-sided operations on them are plain copies.
//!
//! A region is found in the directory for each operation as always, with the busy word odd, so it is revoked as always. A view of a
//! region that is revoked is given back when the peer says so by its bell.

use super::Link;
use crate::PeerMemory;
use crate::directory::FoundRegion;
use ferroce_access::PeerView;
use std::sync::atomic::Ordering;

/// Regions of a peer that are looked at, at most.
const MOST: usize = 256;
/// Operations on a region before it is mapped, which takes as long as some tens of copies by the kernel.
const USES: u32 = 8;

/// What is known of the regions of a peer that can be shared.
#[derive(Debug, Default)]
pub(super) struct Views {
    all: Vec<(FoundRegion, State)>,
    /// How many of them are mapped.
    mapped: u64,
    /// One of them couldn't be.
    has_refused: bool,
}

#[derive(Debug)]
enum State {
    Used(u32),
    Mapped(PeerView),
    /// It can't be mapped.
    Refused,
}

impl Views {
    /// The view of a region, which is mapped when it has been used a few times.
    pub(super) fn of(&mut self, region: &FoundRegion, memory: &PeerMemory) -> Option<&PeerView> {
        if !region.is_shared() {
            return None;
        }
        let at = match self.all.iter().position(|(other, _)| other.key() == region.key()) {
            Some(at) => at,
            None if self.all.len() < MOST => {
                self.all.push((*region, State::Used(0)));
                self.all.len() - 1
            }
            None => return None,
        };
        let (known, state) = &mut self.all[at];
        if known != region {
            // The key has a new region.
            self.mapped -= u64::from(matches!(state, State::Mapped(_)));
            (*known, *state) = (*region, State::Used(0));
        }
        if let State::Used(uses) = state {
            *uses += 1;
            if *uses > USES {
                let (addr, len) = region.range();
                let view = PeerView::of(memory, addr, len, region.is_writable());
                self.mapped += u64::from(view.is_some());
                self.has_refused |= view.is_none();
                *state = view.map_or(State::Refused, State::Mapped);
            }
        }
        match state {
            State::Mapped(view) => Some(view),
            _ => None,
        }
    }

    /// Whether a region couldn't be mapped.
    pub(super) fn has_refused(&self) -> bool {
        self.has_refused
    }

    fn refuses(&self, rkey: u32) -> bool {
        self.all.iter().any(|(region, state)| region.key() == rkey && matches!(state, State::Refused))
    }

    /// How many regions are mapped.
    pub(super) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Gives the views back that aren't of a region any more.
    fn keep(&mut self, is_listed: impl Fn(&FoundRegion) -> bool) {
        self.all.retain(|(region, _)| is_listed(region));
        self.mapped = self.all.iter().filter(|(_, state)| matches!(state, State::Mapped(_))).count() as u64;
    }
}

/// The peer's memory as an operation on a region reaches it.
#[derive(Clone, Copy, Debug)]
pub struct PeerAccess<'a> {
    pub(super) memory: &'a PeerMemory,
    pub(super) view: Option<&'a PeerView>,
}

impl PeerAccess<'_> {
    /// As [`PeerMemory::write`].
    #[must_use]
    #[inline]
    pub fn write(&self, to: u64, from: u64, len: usize) -> bool {
        self.view.is_some_and(|view| view.write(to, from, len)) || self.memory.write(to, from, len)
    }

    /// As [`PeerMemory::read`].
    #[must_use]
    #[inline]
    pub fn read(&self, from: u64, to: u64, len: usize) -> bool {
        self.view.is_some_and(|view| view.read(from, to, len)) || self.memory.read(from, to, len)
    }
}

impl Link {
    /// The peer's region with this key can be mapped, as far as one can see.
    #[inline]
    pub fn is_mappable(&self, rkey: u32) -> bool {
        let is_refused =
            || self.has_refused_views.load(Ordering::Relaxed) && self.access.lock().refuses(rkey);
        self.remote.get().is_some_and(|remote| remote.directory.is_shared(rkey)) && !is_refused()
    }

    /// Gives back the views of regions that the peer has revoked.
    pub(crate) fn drop_revoked_views(&self) {
        let Some(remote) = self.remote.get() else { return };
        if self.terms(true).views.load(Ordering::Relaxed) != 0 {
            let mut views = self.access.lock();
            views.keep(|region| remote.directory.lists(region));
            self.terms(true).views.store(views.mapped(), Ordering::Release);
        }
    }

    /// The peer is gone, and what was mapped of it too.
    pub(super) fn drop_views(&self) {
        self.access.lock().keep(|_| false);
    }

    /// After a region was revoked: has the peer give its view back, if it has any.
    pub(crate) fn tell_of_revocation(&self) {
        if !self.is_dead() && self.terms(false).views.load(Ordering::Acquire) != 0 {
            ferroce_os::sys::send_byte(self.connection.checked());
        }
    }
}
