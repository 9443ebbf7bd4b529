//! A link: two rings between this process and another, and what each knows of the other.

use super::directory::{Ends, PeerDirectory, Purpose};
use super::memory::{Shared, SharedMemory};
use super::payload::{Received, RingBytes};
use super::peer_memory::PeerMemory;
use super::protocol::{Broken, Busy, Consumer, Lines, Producer};
use super::record::{self, Draft, Piece};
use crate::packet::PacketMeta;
use crate::qp::Qp;
use crate::sys::{self, EngineFd};
use ferroce_proto::Instant;
use ferroce_wire::Headers;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Bytes of records in a ring.
pub(super) const RING: usize = 512 * 1024;
/// Where a ring's bytes begin: after its words.
const BYTES_AT: usize = 4096;
/// Where the busy word is, of the ring's producer.
const BUSY_AT: usize = 2048;
/// Where a ring's producer says whether it can copy from the consumer.
const TERMS_AT: usize = 2048 + 128;
const SPAN: usize = BYTES_AT + RING;
/// Bytes of a link's memory.
pub(super) const LEN: usize = 2 * SPAN;

/// How long a peer that doesn't read holds up packets that nobody would repeat.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a peer that was there is taken to be there still.
const TRUST: Duration = Duration::from_micros(50);

/// The other process, as it has introduced itself.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) process: u64,
    pub(super) directory: PeerDirectory,
    /// Its memory, if this process may copy there.
    pub(super) memory: Option<PeerMemory>,
    /// Readable when it has died.
    pub(super) pidfd: Option<EngineFd>,
}

/// A process at the other end of a link. Two links lead to the same process if this is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    /// What the kernel says; 0: a process of another PID namespace.
    pid: i32,
    /// What it says itself; `None`: nothing yet.
    process: Option<u64>,
}

impl Peer {
    /// Whether `other` is the same process, as far as can be known.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.pid == other.pid
            && (self.process == other.process
                || (self.pid != 0 && (self.process.is_none() || other.process.is_none())))
    }
}

/// What the producer of a ring says of itself.
#[repr(C)]
struct Terms {
    /// 1: it can copy from the memory of the ring's consumer, so packets may leave their payload there.
    fetches: AtomicU64,
}

// SAFETY: atomics alone.
unsafe impl Shared for Terms {}

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent<E> {
    /// It is in the ring, which the peer has dealt with when it has consumed everything up to this position.
    Published(u64),
    /// There is no room now.
    Full,
    /// The peer is gone, or hasn't read for long: the packet is lost, as on a wire.
    Lost,
    /// The payload couldn't be copied.
    Failed(E),
}

/// Both directions between this process and another.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) id: u64,
    /// The slot it was made for; 0: the peer made it.
    pub(super) slot: u16,
    /// The peer's slots beside that one, as the kernel has confirmed.
    confirmed: Mutex<SmallVec<[u16; 4]>>,
    /// The peer, as the kernel names it in this process's PID namespace; 0: it can't be seen there.
    pub(super) pid: i32,
    /// Held by the thread that reads the peer's answer.
    pub(super) finishing: Mutex<()>,
    pub(super) connection: EngineFd,
    pub(super) memory: SharedMemory,
    /// Which of the two rings this process writes to.
    side: usize,
    tx: Mutex<Producer>,
    rx: Mutex<Consumer>,
    pub(super) remote: OnceLock<Remote>,
    settled: AtomicBool,
    dead: AtomicBool,
    /// QPs that wait for room.
    blocked: Mutex<Vec<Arc<Qp>>>,
    has_blocked: AtomicBool,
    full_since: AtomicU64,
    /// Held by the thread that makes the busy word odd.
    access: Mutex<()>,
    seen_alive: AtomicU64,
}

impl Link {
    pub(super) fn new(
        id: u64,
        slot: u16,
        pid: i32,
        connection: EngineFd,
        memory: SharedMemory,
        side: usize,
    ) -> Self {
        Self {
            id,
            slot,
            confirmed: Mutex::default(),
            pid,
            finishing: Mutex::new(()),
            connection,
            memory,
            side,
            tx: Mutex::new(Producer::new(RING)),
            rx: Mutex::new(Consumer::new(RING)),
            remote: OnceLock::new(),
            settled: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            blocked: Mutex::default(),
            has_blocked: AtomicBool::new(false),
            full_since: AtomicU64::new(0),
            access: Mutex::new(()),
            seen_alive: AtomicU64::new(0),
        }
    }

    /// Where the ring that this process (or the peer) writes to begins in the memory.
    fn ring(&self, own: bool) -> usize {
        SPAN * if own { self.side } else { 1 - self.side }
    }

    fn tx_lines(&self) -> &Lines {
        self.memory.words(self.ring(true))
    }

    fn rx_lines(&self) -> &Lines {
        self.memory.words(self.ring(false))
    }

    /// The peer's busy word.
    pub(super) fn peer_busy(&self) -> &Busy {
        self.memory.words(self.ring(false) + BUSY_AT)
    }

    /// The process at its other end: its ID, and the number it goes by, which isn't known before it has answered.
    pub(crate) fn peer(&self) -> Peer {
        Peer { pid: self.pid, process: self.remote.get().map(|remote| remote.process) }
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

    /// Whether the peer says so.
    pub(super) fn claims(&self, slot: u16) -> bool {
        self.remote.get().is_some_and(|remote| remote.directory.has_slot(slot))
    }

    /// … and the kernel too.
    pub(super) fn confirm(&self, slot: u16) {
        self.confirmed.lock().push(slot);
    }

    /// Nothing gets through any more; nor, in the child of a fork, through a link of the parent's.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire) || self.memory.is_inherited()
    }

    /// Nothing gets through any more. Returns those who waited for room. The peer finds the connection closed.
    pub(super) fn end(&self) -> Vec<Arc<Qp>> {
        self.dead.store(true, Ordering::Release);
        sys::shutdown(self.connection.raw());
        self.take_blocked()
    }

    fn broken(&self) {
        if !self.dead.swap(true, Ordering::AcqRel) {
            sys::shutdown(self.connection.raw());
            tracing::warn!(
                pid = self.pid,
                "a process has written nonsense into shared memory: no more of it is believed"
            );
        }
    }

    /// Sends a packet; `fill` copies the payload into the ring.
    pub(crate) fn send<E>(
        &self,
        headers: &Headers,
        meta: &PacketMeta,
        payload: usize,
        fill: impl FnOnce(&RingBytes<'_>) -> Result<(), E>,
    ) -> Sent<E> {
        match Draft::packet(headers, meta, payload) {
            Some(draft) => {
                self.publish(&draft, |at| fill(&RingBytes::new(&self.memory, draft.payload_at(at), payload)))
            }
            None => Sent::Lost,
        }
    }

    /// Sends a packet whose payload the peer fetches from `pieces` of this process's memory.
    pub(crate) fn send_reference<E>(
        &self,
        headers: &Headers,
        meta: &PacketMeta,
        pieces: &[Piece],
    ) -> Sent<E> {
        match Draft::reference(headers, meta, pieces) {
            Some(draft) => self.publish(&draft, |_| Ok(())),
            None => Sent::Lost,
        }
    }

    fn publish<E>(&self, draft: &Draft, fill: impl FnOnce(usize) -> Result<(), E>) -> Sent<E> {
        if self.is_dead() {
            return Sent::Lost;
        }
        let (ring, lines) = (self.ring(true), self.tx_lines());
        let mut tx = self.tx.lock();
        let place = match tx.reserve(lines, draft.total()) {
            Ok(Some(place)) => place,
            Ok(None) => return Sent::Full,
            Err(Broken) => {
                self.broken();
                return Sent::Lost;
            }
        };
        let at = ring + BYTES_AT + place.at;
        if let Err(error) = fill(at) {
            return Sent::Failed(error);
        }
        draft.write(&self.memory, at);
        if let Some((start, len)) = place.padding {
            record::write_padding(&self.memory, ring + BYTES_AT + start, len);
        }
        let end = tx.publish(lines, place);
        drop(tx);
        if self.full_since.load(Ordering::Relaxed) != 0 {
            self.full_since.store(0, Ordering::Relaxed);
        }
        Sent::Published(end)
    }

    fn terms(&self, own: bool) -> &Terms {
        self.memory.words(self.ring(own) + TERMS_AT)
    }

    /// Tells the peer whether its packets may leave their payload in its memory.
    pub(super) fn offer_to_fetch(&self, offer: bool) {
        self.terms(true).fetches.store(u64::from(offer), Ordering::Release);
    }

    /// The peer fetches payloads from this process's memory.
    pub(crate) fn peer_fetches(&self) -> bool {
        self.terms(false).fetches.load(Ordering::Acquire) == 1
    }

    /// Whether the ring has been full for so long that packets which nobody repeats are given up.
    pub(crate) fn is_stuck(&self, now: Instant) -> bool {
        let since = self.full_since.load(Ordering::Relaxed);
        if since == 0 {
            self.full_since.store(now.0, Ordering::Relaxed);
        }
        since != 0 && now.since(Instant(since)) > PATIENCE
    }

    /// When [`Link::is_stuck`] may say so.
    pub(crate) fn stuck_at(&self, now: Instant) -> Instant {
        now.after(PATIENCE + Duration::from_millis(1))
    }

    /// The peer has dealt with everything up to `position`.
    pub(crate) fn is_consumed(&self, position: u64) -> bool {
        self.tx_lines().is_consumed(position)
    }

    /// Wakes the peer if it sleeps: something was left for it.
    pub(crate) fn ring_bell(&self) {
        if self.remote.get().is_some_and(|remote| remote.directory.bell().is_wanted()) {
            // Full means that it is being woken anyway.
            sys::send_byte(self.connection.raw());
        }
    }

    /// Takes bells that the peer has rung; more of them stay readable. False when it has ended instead.
    pub(super) fn take_bells(&self) -> bool {
        for _ in 0..4 {
            match sys::read(self.connection.raw(), &mut [0; 8]) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Takes packets, `limit` at most, and hands them to `f`, those in a row for one QP together. The peer gets the room
    /// back when `f` has dealt with them. Returns whether there was any.
    pub(crate) fn receive<'a>(&'a self, limit: usize, f: &mut dyn FnMut(&[Received<'a>])) -> bool {
        self.rx.try_lock().is_some_and(|mut rx| self.receive_with(&mut rx, limit, f))
    }

    /// As [`Link::receive`], for what a peer has left that is gone: all of it.
    pub(crate) fn receive_last<'a>(&'a self, f: &mut dyn FnMut(&[Received<'a>])) {
        self.receive_with(&mut self.rx.lock(), RING / Lines::GRAIN, f);
    }

    fn receive_with<'a>(
        &'a self,
        rx: &mut Consumer,
        limit: usize,
        f: &mut dyn FnMut(&[Received<'a>]),
    ) -> bool {
        let (ring, lines) = (self.ring(false), self.rx_lines());
        let mut any = false;
        let mut batch: SmallVec<[Received<'a>; 16]> = SmallVec::new();
        let mut taken = 0;
        while taken < limit {
            // A run of packets for one QP; nothing is given back before they have been dealt with.
            batch.clear();
            let mut len = 0;
            let mut ahead = match rx.peek(lines) {
                Ok(Some(ahead)) => ahead,
                Ok(None) => return any,
                Err(Broken) => {
                    self.broken();
                    return any;
                }
            };
            while ahead.1 > 0 && taken < limit {
                let read = record::read(&self.memory, ring + BYTES_AT + ahead.0, ahead.1);
                let Ok((packet, total)) = read else {
                    self.broken();
                    return any;
                };
                if let Some(packet) = packet {
                    let other =
                        |first: &Received<'_>| first.packet.headers.bth.dest_qp != packet.headers.bth.dest_qp;
                    if batch.first().is_some_and(other) {
                        break;
                    }
                    batch.push(Received::new(self, packet));
                }
                taken += 1;
                len += total;
                ahead = (ahead.0 + total, ahead.1 - total);
            }
            any = true;
            if !batch.is_empty() {
                f(&batch);
            }
            if rx.release(lines, len) {
                self.ring_bell();
            }
        }
        any
    }

    /// Whether the peer has published something that hasn't been dealt with.
    pub(super) fn has_records(&self) -> bool {
        !self.is_dead() && self.rx_lines().has_records()
    }

    /// `qp` goes on when there is room. False when there is some already.
    pub(crate) fn block(&self, qp: &Arc<Qp>) -> bool {
        let mut blocked = self.blocked.lock();
        self.has_blocked.store(true, Ordering::SeqCst);
        let mut tx = self.tx.lock();
        tx.wait(self.tx_lines());
        if self.is_dead() || tx.has_room(self.tx_lines()) != Ok(false) {
            self.has_blocked.store(!blocked.is_empty(), Ordering::SeqCst);
            return false;
        }
        if !blocked.iter().any(|other| Arc::ptr_eq(other, qp)) {
            blocked.push(qp.clone());
        }
        true
    }

    /// Somebody waits for room, and there is some.
    pub(crate) fn has_room_for_blocked(&self) -> bool {
        self.has_blocked.load(Ordering::SeqCst) && self.tx.lock().has_room(self.tx_lines()) != Ok(false)
    }

    /// Those who wait for room; they have to be looked after now.
    pub(crate) fn take_blocked(&self) -> Vec<Arc<Qp>> {
        let mut blocked = self.blocked.lock();
        self.has_blocked.store(false, Ordering::SeqCst);
        std::mem::take(&mut *blocked)
    }

    /// Whether QPs may reach the peer's memory without the peer.
    pub(crate) fn may_access(&self) -> bool {
        self.remote.get().is_some_and(|remote| remote.memory.is_some()) && !self.is_dead()
    }

    /// Lets `f` copy from or to a range (key, address, length) of the peer's memory, on behalf of a QP and its peer. `None`
    /// when that isn't allowed or isn't possible this way: a packet then says why.
    pub(crate) fn access<R>(
        &self,
        ends: Ends,
        range: (u32, u64, u64),
        purpose: Purpose,
        f: impl FnOnce(&PeerMemory, u64) -> Option<R>,
    ) -> Option<R> {
        let remote = self.remote.get()?;
        let memory = remote.memory.as_ref()?;
        let busy: &Busy = self.memory.words(self.ring(true) + BUSY_AT);
        let _one = self.access.lock();
        if !self.is_there() {
            return None;
        }
        busy.enter();
        let find = || remote.directory.find(ends, range, purpose);
        let result = find().and_then(|address| f(memory, address));
        // What a failed QP has sent isn't waited for when it fails: its memory may have changed while it was read.
        let result = result.filter(|_| purpose != Purpose::Fetch || find().is_some());
        busy.leave();
        result
    }

    /// The peer hasn't ended and hasn't become another program. After an exec the numbers stay, the memory doesn't.
    fn is_there(&self) -> bool {
        let now = crate::clock::now();
        if now.since(Instant(self.seen_alive.load(Ordering::Relaxed))) < TRUST {
            return true;
        }
        if self.is_dead() || sys::wait_for(self.connection.raw(), libc::POLLRDHUP, Duration::ZERO) {
            return false;
        }
        self.seen_alive.store(now.0, Ordering::Relaxed);
        true
    }
}
