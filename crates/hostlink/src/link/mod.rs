//! A link: two rings between this process and another, and what each knows of the other.

mod access;
mod choice;
mod offers;
mod receive;
mod results;
mod send;
mod unserved;
mod views;

pub use choice::{LARGE, is_large};
pub use offers::OfferedPayload;
pub use receive::{ArrivalMark, Receive, RecordRun};
pub use results::SentPacket;
pub use send::SendOutcome;
pub use unserved::Unserved;
pub use views::PeerAccess;

use choice::Costs;
use receive::RingReceiver;
use results::AwaitedPacket;
use views::Views;

use super::PeerMemory;
use super::cells::{self, BULK, CELLS, RingPlace};
use super::directory::PeerDirectory;
use super::protocol::{AccessWord, AwaitedCells, EndedFlag, Producer, RevokedObject, RingWords};
use ferroce_access::{PeerPages, PeerView, SharedMemory, SharedPlace, SharedWords, layout};
use ferroce_os::sync::{Mutex, class};
use ferroce_os::sys::{self, EngineFd};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Where the cells of a ring begin: after its words.
const CELLS_AT: usize = 4096;
const SPAN: usize = CELLS_AT + cells::SPAN;
/// Bytes of a link's memory.
pub(super) const LEN: usize = 2 * SPAN;

/// Threads that use the memory of one peer at the same time, at most: initiators, and in the last lane the reader of the ring.
const LANES: usize = 5;
/// How long a peer that doesn't read its ring holds up packets that aren't repeated (UC, UD).
const PATIENCE: Duration = Duration::from_millis(100);
/// For which part of half a millisecond a connection that was open is taken to be open still.
const TRUST: u64 = 10;

/// The other process, as it has introduced itself.
#[derive(Debug)]
pub(super) struct PeerProcess {
    pub(super) process: u64,
    pub(super) directory: PeerDirectory,
    /// Its memory, if this process may copy there.
    pub(super) memory: Option<PeerMemory>,
}

/// A process at the other end of a link. Two links lead to the same process if this [is](LinkPeer::is) the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkPeer {
    /// The link's address.
    link: usize,
    /// Its number by the kernel; 0: a process of another PID namespace.
    pid: i32,
    /// Its number in its introduction; `None`: it hasn't introduced itself.
    process: Option<u64>,
}

impl LinkPeer {
    /// Whether `other` is the same process, as far as can be known. Of a process without either number nothing is known but its link.
    pub fn is(&self, other: &Self) -> bool {
        let is_same = match (self.process, other.process) {
            (Some(own), Some(others)) => own == others,
            _ => self.pid != 0 || self.link == other.link,
        };
        self.pid == other.pid && is_same
    }
}

/// An access to this process's memory that a peer was seen in the middle of.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeersAccess {
    lane: usize,
    /// The lane's word then.
    value: u64,
}

impl PeersAccess {
    /// It may use `object`.
    pub(super) fn names(&self, object: RevokedObject) -> bool {
        AccessWord::names(self.value, object)
    }
}

/// What the producer of a ring shows about itself.
#[repr(C)]
struct Terms {
    /// 1: it takes compact headers, and acknowledges and answers by results. 0: it captures packets, or hasn't answered.
    compact: AtomicU64,
    /// How many regions of the consumer's it has mapped.
    views: AtomicU64,
    /// It has given up the link.
    ended: EndedFlag,
    /// 1: the ring's consumer may reach the producer's memory by itself: it is of the same user, and the producer sees when it exits.
    sees_exit: AtomicU64,
    /// What becomes of the link while its maker, this one, hasn't been answered: [`USED`] or [`YIELDED`], whichever is written first.
    fate: AtomicU64,
    /// The latest packet of the consumer that its reader, the producer of this ring, has dropped ([`Unserved`]).
    unserved: AtomicU64,
    /// 1: the producer reads payloads from the memory of the consumer, which the consumer offers.
    reads_offers: AtomicU64,
}

/// The maker uses the link, though the peer hasn't answered.
const USED: u64 = 1;
/// The peer has made a link as well, which is used instead.
const YIELDED: u64 = 2;

/// The words before a ring's cells.
#[repr(C)]
struct RingHead {
    lines: RingWords,
    /// What the ring's producer uses of its consumer's memory, a word for each lane.
    access: [AccessWord; LANES],
    /// What the ring's producer can do and has done.
    terms: Terms,
}

const _: () = assert!(size_of::<RingHead>() <= CELLS_AT);

/// Of a link's memory.
pub(super) const LAYOUT: u64 =
    layout(LEN, &[("ring", SPAN, RingHead::LAYOUT), ("cells", CELLS_AT, cells::LAYOUT)]);

ferroce_access::shared_words!(
    Terms { compact, views, ended, sees_exit, fate, unserved, reads_offers }
    RingHead { lines, access, terms }
);

/// Writes the fate of a link into the ring of its maker. False: it was written before.
fn fate(makers: &RingHead, says: u64) -> bool {
    makers.terms.fate.compare_exchange(0, says, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Has the maker of a link whose memory this is give it up. False: it has been using it already.
pub(super) fn ask_to_yield(memory: &Arc<SharedMemory>) -> bool {
    fate(&SharedPlace::new(memory, 0), YIELDED)
}

/// One direction.
#[derive(Debug)]
struct Ring {
    head: SharedPlace<RingHead>,
    place: RingPlace,
}

impl Ring {
    /// The first or the second of a link's memory.
    fn new(memory: &Arc<SharedMemory>, number: usize) -> Self {
        let at = number * SPAN;
        Self { head: SharedPlace::new(memory, at), place: RingPlace::new(memory, at + CELLS_AT) }
    }
}

/// Which end of a link a process has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkEnd {
    /// It has made the link, and sends through the first ring.
    Maker,
    Peer,
    /// The link leads to the process itself, through the first ring alone.
    Both,
}

/// Both directions between this process and another; or the one from this process to itself.
#[derive(Debug)]
pub struct Link {
    pub(super) id: u64,
    /// The slot it was made for; 0: the peer made it.
    pub(super) slot: u16,
    /// The peer's slots beside that one, as the kernel has confirmed.
    confirmed: Mutex<class::LinkConfirmed, SmallVec<[u16; 4]>>,
    /// The peer, as the kernel names it in this process's PID namespace; 0: it can't be seen there.
    pub(super) pid: i32,
    /// The peer's user; `None`: this process's.
    pub(super) other_user: Option<u32>,
    /// Readable when the peer has exited; `None`: that can't be seen here, or it is this process.
    pub(super) pidfd: Option<EngineFd>,
    /// Held by the thread that reads the peer's answer. True: the peer has given leave, and has got the introduction.
    pub(super) finishing: Mutex<class::LinkFinishing, bool>,
    /// Nothing is at its other end if the link leads to this process.
    pub(super) connection: EngineFd,
    pub(super) memory: Arc<SharedMemory>,
    /// This process's memory, if the link leads to this process.
    own_memory: Option<PeerView>,
    to_peer: Ring,
    from_peer: Ring,
    tx: Mutex<class::LinkTx, Producer>,
    /// The end of the cells to the peer. Written with `tx` locked, and read without: a page can hold a thread up with `tx` for any time.
    sent: AtomicU64,
    /// The packets to the peer whose results are awaited, oldest first. Added with `tx` locked, and never locked while a cell is being filled.
    unacked: Mutex<class::LinkUnacked, VecDeque<AwaitedPacket>>,
    /// The first of `unacked`, and what QPs are being notified of. Written with `unacked` locked; the end of a notice, with `rx`.
    awaited: AwaitedCells,
    rx: Mutex<class::LinkRx, RingReceiver>,
    /// The cells from the peer before this position have been dealt with. Written with `rx` locked.
    taken: AtomicU64,
    pub(super) remote: OnceLock<PeerProcess>,
    settled: AtomicBool,
    /// The maker has been answered, or is this process. What it has sent isn't taken before: the program may exit at its
    /// first completion, and a maker without an answer gives the ring up with all that is in it.
    answered: AtomicBool,
    dead: AtomicBool,
    /// Numbers of QPs that wait for room.
    blocked: Mutex<class::LinkBlocked, Vec<u32>>,
    has_blocked: AtomicBool,
    full_since: AtomicU64,
    /// Each is held by a thread that uses the peer's memory, and only tried: a page of the peer's can hold that thread up for any time.
    lanes: [Mutex<class::LinkAccess, Views>; LANES],
    /// Which pages of the peer's memory are there.
    peer_pages: PeerPages,
    /// How often the peer has revoked regions that may be mapped here.
    revocations: AtomicU64,
    /// A region of the peer's couldn't be mapped.
    has_refused_views: AtomicBool,
    /// When the connection was last seen open, in ticks.
    seen_alive: AtomicU64,
    /// Of one-sided operations that this process has carried out itself.
    costs: Costs,
}

impl Link {
    pub(super) fn new(
        id: u64,
        slot: u16,
        pid: i32,
        other_user: Option<u32>,
        connection: EngineFd,
        memory: Arc<SharedMemory>,
        end: LinkEnd,
    ) -> Self {
        let pidfd = match sys::peer_pidfd(connection.raw()) {
            _ if end == LinkEnd::Both => None,
            Err(_) if pid > 0 => sys::pidfd(pid).ok(),
            pidfd => pidfd.ok(),
        };
        let [to_peer, from_peer] = match end {
            LinkEnd::Maker => [0, 1],
            LinkEnd::Peer => [1, 0],
            LinkEnd::Both => [0, 0],
        };
        Self {
            id,
            slot,
            confirmed: Mutex::default(),
            pid,
            other_user,
            pidfd,
            finishing: Mutex::new(false),
            connection,
            to_peer: Ring::new(&memory, to_peer),
            from_peer: Ring::new(&memory, from_peer),
            memory,
            own_memory: (end == LinkEnd::Both).then(PeerView::of_this_process),
            tx: Mutex::new(Producer::new(CELLS, BULK)),
            unacked: Mutex::default(),
            sent: AtomicU64::new(0),
            awaited: AwaitedCells::new(),
            rx: Mutex::new(RingReceiver::new()),
            taken: AtomicU64::new(0),
            remote: OnceLock::new(),
            settled: AtomicBool::new(false),
            answered: AtomicBool::new(end != LinkEnd::Peer),
            dead: AtomicBool::new(false),
            blocked: Mutex::default(),
            has_blocked: AtomicBool::new(false),
            full_since: AtomicU64::new(0),
            lanes: Default::default(),
            peer_pages: PeerPages::default(),
            revocations: AtomicU64::new(0),
            has_refused_views: AtomicBool::new(false),
            seen_alive: AtomicU64::new(0),
            costs: Costs::default(),
        }
    }

    #[inline]
    fn tx_lines(&self) -> &RingWords {
        &self.to_peer.head.lines
    }

    #[inline]
    fn rx_lines(&self) -> &RingWords {
        &self.from_peer.head.lines
    }

    /// It leads to this process.
    #[inline]
    pub fn is_to_itself(&self) -> bool {
        self.own_memory.is_some()
    }

    /// The process at its other end: its ID, and the number it goes by, which isn't known before it has answered.
    #[inline]
    pub fn peer(&self) -> LinkPeer {
        let process = self.remote.get().map(|remote| remote.process);
        LinkPeer { link: std::ptr::from_ref(self).addr(), pid: self.pid, process }
    }

    /// The number of the peer's process, for people; `None`: it is of another PID namespace.
    pub fn peer_pid(&self) -> Option<i32> {
        (self.pid != 0).then_some(self.pid)
    }

    /// Whether QPs of `slot` are at its other end.
    pub(super) fn leads_to(&self, slot: u16) -> bool {
        let leads = self.slot == slot || self.confirmed.lock().contains(&slot);
        leads && self.settled.load(Ordering::Acquire)
    }

    /// It will be used: it isn't given up for another any more.
    pub(super) fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }

    /// This process, which has made it, uses it without an answer from now on. False: the peer has made it yield before.
    pub(super) fn use_unanswered(&self) -> bool {
        fate(&self.to_peer.head, USED)
    }

    /// Whether this process has made it and the process `pid`, of number `process`, will use it or does.
    pub(super) fn was_offered_to(&self, pid: i32, process: u64) -> bool {
        let remote = self.remote.get();
        self.slot != 0
            && pid != 0
            && self.pid == pid
            && remote.is_none_or(|remote| remote.process == process)
            && !self.is_dead()
            && !self.terms(false).ended.is_set()
            // The peer hasn't hung up, as one does that was asked too late, or that is another program by now.
            && !sys::wait_for(self.connection.raw(), 0, Duration::ZERO)
    }

    /// The peer uses the link that it has made, and hangs up this one, which this process has made.
    pub(super) fn has_yielded(&self) -> bool {
        self.to_peer.head.terms.fate.load(Ordering::Acquire) == YIELDED
    }

    /// The peer's introduction has been answered.
    pub(super) fn answered(&self) {
        self.answered.store(true, Ordering::Release);
    }

    /// Whether the peer's directory contains `slot`.
    pub(super) fn claims(&self, slot: u16) -> bool {
        self.remote.get().is_some_and(|remote| remote.directory.has_slot(slot))
    }

    /// The kernel has confirmed that the peer holds `slot`.
    pub(super) fn confirm(&self, slot: u16) {
        self.confirmed.lock().push(slot);
    }

    /// Nothing gets through any more; nor, in the child of a fork, through a link of the parent's.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire) || self.memory.is_inherited()
    }

    /// Nothing gets through any more, and the peer, which finds the connection closed, begins no access. Whether it got through.
    fn give_up(&self) -> bool {
        let first = !self.dead.swap(true, Ordering::AcqRel);
        if first && !self.memory.is_inherited() {
            self.terms(true).ended.set();
        }
        sys::shutdown(self.connection.raw());
        first
    }

    /// Gives it up. Returns the numbers of the QPs that waited for room.
    pub(super) fn end(&self) -> Vec<u32> {
        self.give_up();
        if !self.memory.is_inherited() {
            self.drop_revoked_views();
        }
        self.take_blocked()
    }

    fn broken(&self) {
        if self.give_up() {
            tracing::warn!(
                pid = self.pid,
                "a process has written nonsense into shared memory: no more of it is believed"
            );
        }
    }

    /// The accesses that the peer is in the middle of.
    pub(super) fn accesses_of_peer(&self) -> impl Iterator<Item = PeersAccess> {
        let words = self.from_peer.head.access.iter().enumerate();
        words.map(|(lane, word)| PeersAccess { lane, value: word.value() }).filter(|access| {
            self.is_entitled() && AccessWord::is_in_use(access.value) && self.goes_on(*access)
        })
    }

    /// An access that the peer was in the middle of goes on.
    pub(super) fn goes_on(&self, access: PeersAccess) -> bool {
        !self.from_peer.head.access[access.lane].has_left(access.value) && !self.peer_has_exited()
    }

    fn peer_has_exited(&self) -> bool {
        match self.pidfd.as_ref().map_or(-1, EngineFd::checked) {
            pidfd if pidfd >= 0 => sys::wait_for(pidfd, libc::POLLIN, Duration::ZERO),
            // The program has closed it. An exit that can't be seen any more is none.
            _ => self.pid > 0 && !sys::process_exists(self.pid),
        }
    }

    /// Whether the peer may reach this process's memory by itself: it is a process of this user, and its exit is seen here. The access
    /// words of other peers mean nothing.
    pub(super) fn is_entitled(&self) -> bool {
        self.other_user.is_none() && (self.pidfd.is_some() || self.is_to_itself())
    }

    /// Grants the peer access to this process's memory if it is entitled to it.
    pub(super) fn entitle(&self) {
        self.terms(true).sees_exit.store(u64::from(self.is_entitled()), Ordering::Release);
    }

    /// The peer, of another user, has made it.
    pub(super) fn is_made_by_other_user(&self) -> bool {
        self.slot == 0 && self.other_user.is_some()
    }

    /// The terms of this process (or of the peer).
    #[inline]
    fn terms(&self, own: bool) -> &Terms {
        let ring = if own { &self.to_peer } else { &self.from_peer };
        &ring.head.terms
    }

    /// Permits the peer to send packets of connections with compact headers, and to have them acknowledged and answered by results.
    pub(super) fn offer_compact(&self) {
        self.terms(true).compact.store(1, Ordering::Release);
    }

    /// The peer takes packets of connections with compact headers, and acknowledges and answers by results: it has answered, and captures no
    /// packets.
    #[inline]
    pub fn peer_takes_compact(&self) -> bool {
        // In the child of a fork the memory isn't there.
        !self.is_dead() && self.terms(false).compact.load(Ordering::Relaxed) == 1
    }

    /// Wakes the peer if it sleeps: something was left for it. Not this process: the thread that has left something sees to it
    /// ([`Link::has_unclaimed`]).
    #[inline]
    pub fn ring_bell(&self) {
        if !self.is_to_itself() && self.remote.get().is_some_and(|remote| remote.directory.bell().is_wanted())
        {
            // Full means that it is being woken anyway.
            sys::send_byte(self.connection.checked());
        }
    }

    /// Takes bells that the peer has rung; more of them stay readable. False when it has ended instead.
    pub(super) fn take_bells(&self) -> bool {
        sys::discard_messages(self.connection.checked())
            .unwrap_or_else(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

#[cfg(test)]
mod tests {
    use super::LinkPeer;

    #[test]
    fn links_lead_to_one_process_only_if_its_numbers_show_that() {
        let peer = |link, pid, process| LinkPeer { link, pid, process };
        let is_same = |one: LinkPeer, other: LinkPeer| {
            assert_eq!(one.is(&other), other.is(&one));
            one.is(&other)
        };
        // By the kernel's number, while one of the two hasn't introduced itself.
        assert!(is_same(peer(1, 7, None), peer(2, 7, Some(3))));
        assert!(is_same(peer(1, 7, None), peer(2, 7, None)));
        assert!(!is_same(peer(1, 7, None), peer(2, 8, None)));
        // A number of the kernel's may have got another process.
        assert!(!is_same(peer(1, 7, Some(3)), peer(2, 7, Some(4))));
        // Of other PID namespaces, by the number of the introduction alone.
        assert!(is_same(peer(1, 0, Some(3)), peer(2, 0, Some(3))));
        assert!(!is_same(peer(1, 0, Some(3)), peer(2, 0, None)));
        assert!(!is_same(peer(1, 0, None), peer(2, 0, None)), "two that haven't introduced themselves");
        assert!(is_same(peer(1, 0, None), peer(1, 0, Some(3))), "one link");
        assert!(!is_same(peer(1, 0, Some(3)), peer(2, 7, Some(3))));
    }
}
