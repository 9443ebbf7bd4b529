//! Regions of the peer that lie in memory which can be shared, mapped here: one-sided operations on them are plain copies.
//!
//! Each operation still looks the region up in the directory and names it in the access word, so it is revoked as any region. The view of
//! a revoked region is unmapped when the peer rings the bell for it. Each lane has views of its own.

use super::Link;
use crate::PeerMemory;
use crate::directory::FoundRegion;
use ferroce_access::{PeerPages, PeerRead, PeerView, pages};
use ferroce_os::sync::Mutex;
use std::sync::atomic::{Ordering, fence};

/// Regions of a peer that are looked at, at most.
const MOST: usize = 256;
/// Operations on a region before it is mapped, which takes as long as some tens of copies by the kernel.
const USES: u32 = 8;

/// What is known of the regions of a peer that can be shared.
#[derive(Debug, Default)]
pub(super) struct Views {
    all: Vec<(FoundRegion, ViewState)>,
    /// How many of them are mapped.
    mapped: u64,
    /// One of them couldn't be.
    has_refused: bool,
    /// [`Link::revocations`] when views were last given back.
    revocations: u64,
}

#[derive(Debug)]
enum ViewState {
    Used(u32),
    Mapped(PeerView),
    /// It can't be mapped.
    Refused,
}

impl Views {
    /// Where the view of a region is, which is mapped when it has been used a few times.
    #[inline]
    fn use_region(&mut self, region: &FoundRegion, memory: &PeerMemory) -> Option<usize> {
        if !region.is_shared() {
            return None;
        }
        let at = match self.all.iter().position(|(other, _)| other.key() == region.key()) {
            Some(at) => at,
            None => {
                if self.all.len() >= MOST {
                    // Most of these have been revoked by now: the peer rings only for mapped regions.
                    self.all.retain(|(_, state)| matches!(state, ViewState::Mapped(_)));
                }
                if self.all.len() >= MOST {
                    return None;
                }
                self.all.push((*region, ViewState::Used(0)));
                self.all.len() - 1
            }
        };
        let (known, state) = &mut self.all[at];
        if known != region {
            // The key has a new region.
            self.mapped -= u64::from(matches!(state, ViewState::Mapped(_)));
            (*known, *state) = (*region, ViewState::Used(0));
        }
        if let ViewState::Used(uses) = state {
            *uses += 1;
            if *uses > USES {
                let (addr, len) = region.range();
                let view = PeerView::of(memory, addr, len, region.is_writable());
                self.mapped += u64::from(view.is_some());
                self.has_refused |= view.is_none();
                *state = view.map_or(ViewState::Refused, ViewState::Mapped);
            }
        }
        matches!(state, ViewState::Mapped(_)).then_some(at)
    }

    /// A region is mapped.
    pub(super) fn has_mapped(&self) -> bool {
        self.mapped > 0
    }

    /// The number of the last revocation whose views were given back.
    pub(super) fn revocations(&self) -> u64 {
        self.revocations
    }

    fn view(&self, at: usize) -> Option<&PeerView> {
        match &self.all[at].1 {
            ViewState::Mapped(view) => Some(view),
            _ => None,
        }
    }

    fn refuses(&self, rkey: u32) -> bool {
        self.all.iter().any(|(region, state)| region.key() == rkey && matches!(state, ViewState::Refused))
    }

    /// Gives the views back that aren't of a region any more.
    fn keep(&mut self, is_listed: impl Fn(&FoundRegion) -> bool) {
        self.all.retain(|(region, _)| is_listed(region));
        self.mapped =
            self.all.iter().filter(|(_, state)| matches!(state, ViewState::Mapped(_))).count() as u64;
    }
}

/// The peer's memory as an operation on a region reaches it.
#[derive(Clone, Copy, Debug)]
pub struct PeerAccess<'a> {
    pub(super) memory: &'a PeerMemory,
    pub(super) view: Option<&'a PeerView>,
    /// `None`: its memory is this process's.
    pub(super) pages: Option<&'a PeerPages>,
    pub(super) region: &'a FoundRegion,
    pub(super) connection: u64,
}

impl PeerAccess<'_> {
    /// The number of the connection that the peer's QP has.
    #[must_use]
    #[inline]
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// Whether the pages of `len` bytes at `addr` in the peer are there or come at once: a copy doesn't stand. A copy to or from memory that is
    /// mapped here would find zeros in their place, or keep the peer's handler of faults from bringing them.
    #[must_use]
    #[inline]
    pub fn are_present(&self, addr: u64, len: usize) -> bool {
        match self.pages {
            Some(pages) => pages.are_present(self.memory, self.region.pages(), addr, len),
            None => pages::are_present(addr, len),
        }
    }

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

    /// As [`PeerMemory::read_to`].
    #[must_use]
    pub fn read_to(&self, from: u64, to: &[(u64, usize)]) -> PeerRead {
        let mut at = from;
        let mut by_view = |view: &PeerView| {
            to.iter().all(|&(to, len)| {
                let read = view.read(at, to, len);
                at = at.wrapping_add(len as u64);
                read
            })
        };
        if self.view.is_some_and(&mut by_view) { PeerRead::Whole } else { self.memory.read_to(from, to) }
    }
}

impl Link {
    /// The peer's region with this key can be mapped, as far as one can see.
    #[inline]
    pub fn is_mappable(&self, rkey: u32) -> bool {
        if self.is_to_itself() {
            return true;
        }
        let is_refused = || {
            self.has_refused_views.load(Ordering::Relaxed)
                && self.lanes.iter().filter_map(Mutex::try_lock).any(|lane| lane.refuses(rkey))
        };
        self.remote.get().is_some_and(|remote| remote.directory.is_shared(rkey)) && !is_refused()
    }

    /// The view of a region that a lane has, or makes. To be called while the access word names the region.
    #[inline]
    pub(super) fn view<'a>(
        &'a self,
        lane: &'a mut Views,
        region: &FoundRegion,
        memory: &PeerMemory,
    ) -> Option<&'a PeerView> {
        if self.is_to_itself() {
            return self.own_memory.as_ref();
        }
        let mapped = lane.mapped;
        // Before the access word is left: a revocation looks at the count of views after that.
        let at = lane.use_region(region, memory);
        if lane.has_refused {
            self.has_refused_views.store(true, Ordering::Relaxed);
        }
        self.note_mapped(mapped, lane.mapped);
        at.and_then(|at| lane.view(at))
    }

    /// Counts the mapped regions in the link's memory, when a lane has changed from `before` to `now`.
    #[inline]
    fn note_mapped(&self, before: u64, now: u64) {
        if before != now {
            self.terms(true).views.fetch_add(now.wrapping_sub(before), Ordering::AcqRel);
        }
    }

    /// The peer has revoked regions that may be mapped here: gives their views back. A lane that is in use gives its own back when it is
    /// free again.
    pub(crate) fn drop_revoked_views(&self) {
        if self.terms(true).views.load(Ordering::Acquire) != 0 {
            let before = self.revocations.fetch_add(1, Ordering::AcqRel);
            self.tidy_since(before);
        }
    }

    /// Has lanes that no thread uses give back their views of regions that were revoked after revocation `tidied`. To be called when a
    /// revocation was counted, and when a lane with views was unlocked.
    pub(super) fn tidy_since(&self, mut tidied: u64) {
        loop {
            // SYNC: store-buffering pair with itself in another thread. Of a thread that counts a revocation and one that unlocks a lane,
            // either the first finds the lane unlocked, or the second finds the count.
            fence(Ordering::SeqCst);
            let revocations = self.revocations.load(Ordering::Acquire);
            if revocations == tidied {
                return;
            }
            for mut lane in self.lanes.iter().filter_map(Mutex::try_lock) {
                self.tidy_views(&mut lane);
            }
            tidied = revocations;
        }
    }

    /// Gives back a lane's views of regions that the peer has revoked since the last time.
    #[inline]
    pub(super) fn tidy_views(&self, lane: &mut Views) {
        let revocations = self.revocations.load(Ordering::Acquire);
        if lane.revocations != revocations {
            lane.revocations = revocations;
            let mapped = lane.mapped;
            let directory = self.remote.get().map(|remote| &remote.directory);
            lane.keep(|region| !self.is_dead() && directory.is_some_and(|directory| directory.lists(region)));
            self.note_mapped(mapped, lane.mapped);
        }
    }

    /// After a region was revoked: has the peer give its view back, if it has any.
    pub(crate) fn tell_of_revocation(&self) {
        if !self.is_dead() && self.terms(false).views.load(Ordering::Acquire) != 0 {
            ferroce_os::sys::send_byte(self.connection.checked());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{Directory, ListedQp, ListedRegion, PeerDirectory, Purpose};
    use crate::link::{LEN, LinkEnd};
    use ferroce_access::{Cookie, SharedMemory};
    use ferroce_os::sys;
    use ferroce_types::Access;

    #[test]
    fn a_revocation_that_finds_a_lane_locked_is_seen_by_the_thread_that_unlocks_it() {
        let memory = SharedMemory::create(LEN, false).unwrap();
        let [connection, _] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let link = Link::new(1, 1, 0, None, connection, memory.into(), LinkEnd::Maker);
        link.terms(true).views.store(1, Ordering::Release);
        let mut lane = link.lanes[0].lock();
        lane.mapped = 1;
        link.tidy_views(&mut lane);
        let tidied = lane.revocations();
        std::thread::scope(|scope| scope.spawn(|| link.drop_revoked_views()).join().unwrap());
        assert!(lane.has_mapped());
        drop(lane);
        link.tidy_since(tidied);
        assert!(!link.lanes[0].lock().has_mapped());
    }

    #[test]
    fn regions_that_were_used_once_leave_room_for_others() {
        let fd = sys::memfd(c"views", 4096).unwrap();
        let addr = sys::map_shared(fd.raw(), 4096, true).unwrap().as_ptr() as u64;
        let own = Directory::new().unwrap();
        let peer = PeerDirectory::open(sys::duplicate_engine(own.fd()).unwrap()).unwrap();
        own.add_slot(3);
        let (ends, pd) = ((0x3005, 0x4001), 6);
        let access = Access { remote_write: true, ..Access::default() };
        own.publish_qp(&ListedQp { ends, connection: 1, pd, access, owes: false });
        let found = |key: u32| {
            let region = ListedRegion {
                pd,
                addr,
                iova: addr,
                length: 4096,
                remote_read: true,
                remote_write: true,
                shared: true,
                of_file: false,
            };
            own.publish_region(key, &region);
            peer.find((ends.1, ends.0), (key, addr, 8), Purpose::Write).unwrap().region
        };
        let cookie = Cookie::new().unwrap();
        let memory = PeerMemory::probe(std::process::id() as i32, cookie.at(), cookie.value()).unwrap();
        let mut views = Views::default();
        for key in 1..=600 {
            assert!(views.use_region(&found(key << 8), &memory).is_none());
            assert!(views.all.len() <= MOST);
        }
        let region = found(0x10_0000);
        assert!(
            (0..=USES)
                .map(|_| views.use_region(&region, &memory).is_some())
                .eq((0..=USES).map(|count| count == USES))
        );
        assert_eq!(views.mapped, 1);
    }
}
