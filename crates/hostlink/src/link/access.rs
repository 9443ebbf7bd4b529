//! The peer's memory without the peer: one-sided operations, which the initiator carries out itself.

use super::views::Views;
use super::{LANES, Link, PeerAccess, TRUST};
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
        // A page of the peer's that has gone since it was seen can hold a thread up for any time: no other thread waits for it.
        let (mut lane, word) = self.free_lane(purpose)?;
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
            let pages = (!self.is_to_itself()).then_some(&self.peer_pages);
            f(&PeerAccess { memory, view, pages, region: &region, connection }, address)
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

    /// A lane that no thread uses, and its word in the link's memory. The last one is that of the link's reader: an offer that it can't read
    /// for want of a lane would be a lost packet.
    #[inline]
    fn free_lane(&self, purpose: Purpose) -> Option<(MutexGuard<'_, class::LinkAccess, Views>, &AccessWord)> {
        let range = if purpose == Purpose::Offered { LANES - 1..LANES } else { 0..LANES - 1 };
        let words = &self.to_peer.head.access[range.clone()];
        self.lanes[range].iter().zip(words).find_map(|(lane, word)| Some((lane.try_lock()?, word)))
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
    #[inline]
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::PeerMemory;
    use crate::directory::{Directory, ListedQp, ListedRegion, PeerDirectory};
    use crate::link::{LEN, LinkEnd, PeerProcess};
    use ferroce_access::SharedMemory;
    use ferroce_types::Access;

    pub(in crate::link) const ENDS: QpnPair = (0x4001, 0x3005);
    pub(in crate::link) const KEY: u32 = 0x177;

    /// A link, and the one of the process at its other end, which is this one: its QP and a region of it are listed.
    pub(in crate::link) fn links(own: &Directory, range: (u64, u64), of_file: bool) -> [Link; 2] {
        let memory = SharedMemory::create(LEN, false).unwrap();
        let same = SharedMemory::open(sys::duplicate_engine(memory.fd()).unwrap(), LEN, true).unwrap();
        let [one, other] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let pid = std::process::id().cast_signed();
        let links = [
            Link::new(1, 1, pid, None, one, memory.into(), LinkEnd::Maker),
            Link::new(1, 0, pid, None, other, same.into(), LinkEnd::Peer),
        ];
        let memory = PeerMemory::probe(pid, own.cookie.at(), own.cookie.value());
        assert!(memory.is_some());
        let directory = PeerDirectory::open(sys::duplicate_engine(own.fd()).unwrap()).unwrap();
        assert!(links[0].remote.set(PeerProcess { process: 1, directory, memory }).is_ok());
        let access = Access { remote_read: true, ..Access::default() };
        own.add_slot(3);
        own.publish_qp(&ListedQp { ends: (ENDS.1, ENDS.0), connection: 9, pd: 6, access, owes: false });
        let (addr, length) = range;
        let (remote_read, remote_write, shared) = (true, false, false);
        own.publish_region(
            KEY,
            &ListedRegion { pd: 6, addr, iova: addr, length, remote_read, remote_write, shared, of_file },
        );
        links
    }

    #[test]
    fn memory_is_reached_while_the_peer_allows_it_and_the_link_lasts() {
        let memory = [7u8; 64];
        let range = (memory.as_ptr() as u64, 64);
        type Ends = fn(&Link, &Directory);
        let ends: [Ends; 4] = [
            |peer, _| peer.terms(true).sees_exit.store(0, Ordering::Release),
            |peer, _| peer.terms(true).ended.set(),
            |peer, _| sys::shutdown(peer.connection.raw()),
            |_, own| {
                own.region(KEY).unwrap().revoke();
            },
        ];
        for end in ends {
            let own = Directory::new().unwrap();
            let [link, peer] = links(&own, range, false);
            let reach = |at, purpose| {
                link.access(ENDS, (KEY, at, 8), purpose, |peer, address| {
                    let mut bytes = [0u8; 8];
                    assert_eq!((peer.connection(), address), (9, at));
                    assert!(peer.read(address, bytes.as_mut_ptr() as u64, 8));
                    Some(bytes)
                })
            };
            assert!(
                !link.may_access() && reach(range.0, Purpose::Read).is_none(),
                "the peer doesn't see its exit"
            );
            peer.entitle();
            assert!(link.may_access());
            assert_eq!(reach(range.0 + 56, Purpose::Read), Some([7; 8]));
            assert!(reach(range.0 + 57, Purpose::Read).is_none() && reach(range.0, Purpose::Write).is_none());
            // As often as there are lanes, and more: each is free again.
            assert!((0..20).all(|_| reach(range.0, Purpose::Read).is_some()));
            assert_eq!(peer.accesses_of_peer().count(), 0);
            end(&peer, &own);
            // That the connection was open is believed for some microseconds.
            sys::pause(Duration::from_millis(2));
            assert!(reach(range.0, Purpose::Read).is_none());
        }
    }

    #[test]
    fn the_peer_sees_an_access_while_it_lasts() {
        let memory = [7u8; 64];
        let range = (memory.as_ptr() as u64, 64);
        let own = Directory::new().unwrap();
        let [link, peer] = links(&own, range, false);
        peer.entitle();
        let seen = link.access(ENDS, (KEY, range.0, 8), Purpose::Read, |_, _| peer.accesses_of_peer().next());
        let access = seen.expect("one that is seen");
        use crate::protocol::RevokedObject;
        assert!(access.names(RevokedObject::Region(KEY)) && access.names(RevokedObject::Qp(ENDS.1)));
        assert!(!access.names(RevokedObject::Region(KEY + 1)) && !access.names(RevokedObject::Qp(ENDS.0)));
        assert!(!peer.goes_on(access));
    }

    #[test]
    fn pages_of_a_file_that_are_not_there_are_the_peers() {
        let page = sys::page_size() as usize;
        let fd = sys::memfd(c"pages", 2 * page).unwrap();
        let base = sys::map_shared(fd.raw(), 2 * page, true).unwrap();
        let range = (base.as_ptr() as u64, 2 * page as u64);
        for of_file in [true, false] {
            let own = Directory::new().unwrap();
            let [link, peer] = links(&own, range, of_file);
            peer.entitle();
            let present = |at: usize, len| {
                let key = (KEY, range.0 + at as u64, len as u64);
                link.access(ENDS, key, Purpose::Read, |peer, at| Some(peer.are_present(at, len))).unwrap()
            };
            assert_eq!((present(0, 8), present(page, 8)), (!of_file, !of_file));
            ferroce_access::copy::write(range.0 + page as u64, &[1]).unwrap();
            assert_eq!((present(0, 8), present(page, 8), present(page - 1, 2)), (!of_file, true, !of_file));
        }
        sys::unmap(base, 2 * page);
    }
}
