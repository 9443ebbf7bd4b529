//! Packets that wait for memory. A copy to a page that isn't there stands until the page has come, and holds up all for which the thread
//! works. So a packet whose memory isn't there waits, as do those behind it, while a thread of its own [brings](bring) the page. What
//! leaves waits in the send queue.

use super::payload::pieces;
use super::{Qp, QpEnv, RxPayload};
use crate::adapter::ThreadBuffers;
use ferroce_access::{Fault, pages};
use ferroce_hostlink::ShmPayload;
use ferroce_mem::{KeyTable, KeyUser};
use ferroce_os::sync::{Mutex, class};
use ferroce_os::{clock, fork};
use ferroce_parts::Ah;
use ferroce_proto::{Buffer, KeptPacket, LookedAt, NeededMemory, Payload};
use ferroce_types::{Instant, PacketMeta, RecvWqe, RemoteAccess, Sge};
use ferroce_wire::{Headers, Service};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

type Proto = ferroce_proto::QpProtocol<Arc<Ah>>;

/// Packets of a queue pair that wait, at most, and their bytes. The peer is asked again for what is beyond.
const MOST: usize = 8192;
const MOST_BYTES: usize = 16 << 20;
/// Bytes of all queue pairs' packets that wait, at most. The first packet of a list has room all the same: the peer is asked again for those
/// behind it when its memory has come.
const MOST_OF_ALL: usize = 256 << 20;
/// What a packet takes beside its payload.
const OVERHEAD: usize = 256;
/// Threads that bring pages, at most.
const THREADS: usize = 1024;

/// Bytes of the program's memory whose pages aren't there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AbsentMemory {
    addr: u64,
    len: usize,
}

impl AbsentMemory {
    /// Whether these bytes are there. If they aren't, they are `absent`.
    ///
    /// # Errors
    /// [`Fault`] when they aren't.
    #[inline]
    pub(super) fn look(addr: u64, len: usize, absent: &mut Option<Self>) -> Result<(), Fault> {
        *absent = Self::of(addr, len);
        if absent.is_some() { Err(Fault) } else { Ok(()) }
    }

    /// These bytes, if they aren't there.
    #[inline]
    fn of(addr: u64, len: usize) -> Option<Self> {
        (!pages::are_present(addr, len)).then_some(Self { addr, len })
    }
}

/// What a queue pair needs memory for. Memory for each is brought by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NeedOf {
    /// Requests of the peer's.
    Requests,
    /// Answers to requests of this side.
    Answers,
    /// Requests of this side that leave.
    Sends,
    /// Answers to the peer that leave.
    Responses,
}

/// When another thread touches a page that hasn't come. The page may belong to another mapping by now, of whose faults the thread before is
/// not one. Twice as long each time.
const BRING_AGAIN: Duration = Duration::from_secs(1);

/// Memory that is being brought for one need of a queue pair. It changes with the queue pair locked, but for the end.
#[derive(Default, Debug)]
pub(super) struct Awaited {
    /// The connection and the address, in a word; 0: none is.
    name: AtomicU64,
    /// When another thread begins to bring it, …
    again: AtomicU64,
    /// … and how long after the one before.
    patience: AtomicU64,
}

/// For each [`NeedOf`].
pub(super) type AwaitedMemory = [Awaited; 4];

impl Awaited {
    /// Whether a thread has to bring memory with this name.
    fn begins(&self, name: u64, now: Instant) -> bool {
        let is_new = self.name.swap(name, Ordering::Relaxed) != name;
        if !is_new && now < Instant(self.again.load(Ordering::Relaxed)) {
            return false;
        }
        let patience = if is_new {
            BRING_AGAIN
        } else {
            Duration::from_nanos(self.patience.load(Ordering::Relaxed)).saturating_mul(2)
        };
        self.patience.store(patience.as_nanos() as u64, Ordering::Relaxed);
        self.again.store(now.after(patience).0, Ordering::Relaxed);
        true
    }
}

/// What of `len` bytes from `offset` of these elements on isn't there. What is wrong with a key is found out by the copy.
pub(super) fn absent_of(pd: u32, sges: &[Sge], offset: u64, len: usize, write: bool) -> Option<AbsentMemory> {
    let table = KeyTable::global();
    pieces(sges, offset, len).find_map(|(piece, _)| {
        AbsentMemory::of(table.pages_of_local(pd, &piece, write)?, piece.length as usize)
    })
}

/// What of the first `len` bytes of a range isn't there that a peer reaches.
fn absent_of_peer(
    by: KeyUser,
    (rkey, va, whole): (u32, u64, u64),
    access: RemoteAccess,
    len: usize,
) -> Option<AbsentMemory> {
    let addr = KeyTable::global().pages_of_remote(by, rkey, va, whole, access)?;
    AbsentMemory::of(addr, len.min(whole as usize))
}

#[derive(Debug)]
enum Waiting {
    Packet {
        headers: Headers,
        payload: Vec<u8>,
        /// `None`: it has come without addresses.
        meta: Option<PacketMeta>,
    },
    /// The answer to a READ or an atomic of this PSN, which has come as a result.
    Answer { psn: u32, answer: Vec<u8> },
    /// The peer has executed everything up to this PSN, as a result has shown.
    Executed { psn: u32 },
}

impl Waiting {
    fn bytes(&self) -> usize {
        OVERHEAD
            + match self {
                Self::Packet { payload: bytes, .. } | Self::Answer { answer: bytes, .. } => bytes.len(),
                Self::Executed { .. } => 0,
            }
    }
}

/// Packets that wait, if there are any.
#[derive(Default, Debug)]
pub(crate) struct WaitingPackets(Option<Box<WaitingLists>>);

#[derive(Debug)]
struct WaitingLists {
    requests: WaitingList,
    /// Answers to requests of this side. They don't wait for requests of the peer's.
    answers: WaitingList,
}

/// In the order in which they have come.
#[derive(Debug)]
struct WaitingList {
    packets: VecDeque<Waiting>,
    bytes: usize,
    /// The bytes of all queue pairs' packets that wait.
    of_all: &'static AtomicUsize,
    /// There was no room for a packet, nor is there for those behind it.
    is_lossy: bool,
}

impl WaitingLists {
    const fn new(of_all: &'static AtomicUsize) -> Self {
        Self { requests: WaitingList::new(of_all), answers: WaitingList::new(of_all) }
    }

    const fn list(&mut self, answers: bool) -> &mut WaitingList {
        if answers { &mut self.answers } else { &mut self.requests }
    }
}

impl WaitingList {
    const fn new(of_all: &'static AtomicUsize) -> Self {
        Self { packets: VecDeque::new(), bytes: 0, of_all, is_lossy: false }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.packets.is_empty()
            || !self.is_lossy
                && self.packets.len() < MOST
                && self.bytes + bytes <= MOST_BYTES
                && self.of_all.load(Ordering::Relaxed) + bytes <= MOST_OF_ALL
    }

    fn push(&mut self, packet: Waiting) {
        let bytes = packet.bytes();
        if self.has_room(bytes) {
            self.add(bytes);
            self.packets.push_back(packet);
        } else {
            self.is_lossy = true;
        }
    }

    fn push_before_all(&mut self, packets: impl Iterator<Item = Waiting>) {
        let behind = self.packets.len();
        packets.for_each(|packet| self.push(packet));
        self.packets.rotate_left(behind);
    }

    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.of_all.fetch_add(bytes, Ordering::Relaxed);
    }

    fn subtract(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.of_all.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for WaitingList {
    fn drop(&mut self) {
        self.subtract(self.bytes);
    }
}

impl WaitingPackets {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The answers to this side's requests have come, at least in part.
    #[inline]
    pub(crate) fn has_answers(&self) -> bool {
        self.has(true)
    }

    /// Requests of the peer wait.
    #[inline]
    pub(super) fn has_requests(&self) -> bool {
        self.has(false)
    }

    #[inline]
    fn has(&self, answers: bool) -> bool {
        let has = |lists: &WaitingLists| match answers {
            true => !lists.answers.packets.is_empty(),
            false => !lists.requests.packets.is_empty(),
        };
        self.0.as_deref().is_some_and(has)
    }

    /// Forgets all of them.
    #[inline]
    pub(super) fn clear(&mut self) {
        if !self.is_empty() {
            self.0 = None;
        }
    }

    fn list(&mut self, answers: bool) -> Option<&mut WaitingList> {
        self.0.as_deref_mut().map(|lists| lists.list(answers))
    }

    /// As [`WaitingPackets::list`], though there are none. `of_all`: the bytes of all queue pairs' packets that wait.
    fn list_of(&mut self, of_all: &'static AtomicUsize, answers: bool) -> &mut WaitingList {
        self.0.get_or_insert_with(|| Box::new(WaitingLists::new(of_all))).list(answers)
    }

    fn push(&mut self, of_all: &'static AtomicUsize, answers: bool, packet: Waiting) {
        self.list_of(of_all, answers).push(packet);
    }

    /// Takes the first one out.
    fn pop(&mut self, answers: bool) -> Option<Waiting> {
        let list = self.list(answers)?;
        let packet = list.packets.pop_front()?;
        list.subtract(packet.bytes());
        Some(packet)
    }

    /// Undoes [`WaitingPackets::pop`].
    fn put_back(&mut self, answers: bool, packet: Waiting) {
        if let Some(list) = self.list(answers) {
            list.add(packet.bytes());
            list.packets.push_front(packet);
        }
    }

    /// Whether packets were lost behind those of a list, which is empty by now.
    fn take_loss(&mut self, answers: bool) -> bool {
        let list = self.list(answers).filter(|list| list.packets.is_empty());
        list.is_some_and(|list| std::mem::take(&mut list.is_lossy))
    }

    /// Frees the lists if they are empty.
    fn tidy(&mut self) {
        if !self.has(true) && !self.has(false) {
            self.0 = None;
        }
    }
}

fn copy_of(payload: &RxPayload<'_>) -> Option<Vec<u8>> {
    let mut copy = vec![0; payload.len()];
    payload.copy(&mut copy).ok()?;
    Some(copy)
}

impl QpEnv<'_> {
    /// The QP goes on when this memory is there.
    #[cold]
    pub(super) fn await_memory(&mut self, need: NeedOf, absent: AbsentMemory) {
        // The program may unmap the page: then a later look finds out.
        self.work.awaits_memory = true;
        let name = self.connection << 40 ^ absent.addr | 1;
        if self.qp.awaited[need as usize].begins(name, self.now) {
            self.work.absent.push(AwaitingQp { qp: Arc::downgrade(self.qp), name, need, absent });
        }
    }

    /// Whether the memory is there that a packet with `len` bytes of payload needs. If it isn't, the QP awaits it.
    fn has_memory(&mut self, proto: &mut Proto, headers: &Headers, len: usize) -> bool {
        if headers.bth.opcode.is_response() {
            // The result of an atomic isn't a payload.
            let len = if headers.atomic_ack.is_some() { size_of::<u64>() } else { len };
            let absent = self.absent_of_needed(&proto.needed_memory(headers, len), len);
            return self.takes_answer(proto, headers.bth.psn, absent);
        }
        proto.has_memory_for(headers, len, self)
    }

    /// As [`QpEnv::has_memory`], for an answer of `len` bytes that has come as a result.
    fn has_memory_of_answer(&mut self, proto: &mut Proto, psn: u32, len: usize) -> bool {
        let absent = self.absent_of_needed(&proto.needed_by_answer(psn), len);
        self.takes_answer(proto, psn, absent)
    }

    /// Whether the memory of an answer is there. If it isn't, the requests before it end all the same.
    fn takes_answer(&mut self, proto: &mut Proto, psn: u32, absent: Option<AbsentMemory>) -> bool {
        if let Some(absent) = absent {
            self.await_memory(NeedOf::Answers, absent);
            proto.answer_waits(self.now, psn, self);
        }
        absent.is_none()
    }

    fn absent_of_needed(&self, needed: &NeededMemory<'_>, len: usize) -> Option<AbsentMemory> {
        match *needed {
            NeededMemory::Nothing | NeededMemory::NextReceive => None,
            NeededMemory::Local(buffer, sges, offset) => {
                absent_of(self.pd_of(buffer), sges, offset, len, true)
            }
            NeededMemory::Remote { rkey, va, len: whole, access } => {
                let len = if access == RemoteAccess::Write { len } else { 8 };
                absent_of_peer(self.key_user(), (rkey, va, whole), access, len)
            }
        }
    }

    /// [`Env::look`](ferroce_proto::Env::look).
    pub(super) fn look_at_needed(&mut self, needed: &NeededMemory<'_>, len: usize) -> LookedAt {
        let (absent, receive) = match needed {
            NeededMemory::NextReceive => self.look_at_receive(len),
            _ => (self.absent_of_needed(needed, len), None),
        };
        if let Some(absent) = absent {
            self.await_memory(NeedOf::Requests, absent);
        }
        LookedAt { is_there: absent.is_none(), receive }
    }

    /// What isn't there of the next receive, and the receive if another QP could take it.
    fn look_at_receive(&self, len: usize) -> (Option<AbsentMemory>, Option<RecvWqe>) {
        let pd = self.pd_of(Buffer::Receive);
        let look = |receive: &RecvWqe| absent_of(pd, &receive.sges, 0, len, true);
        let Some(srq) = &self.qp.srq else { return (self.qp.rq.lock().front().and_then(look), None) };
        let receive = match self.qp.service {
            Service::Ud => srq.pop_for(len as u64).ok(),
            _ => srq.pop(),
        };
        (receive.as_ref().and_then(look), receive)
    }

    /// Whether a packet has to wait, for memory or for those before it. It is kept then.
    pub(super) fn keeps_waiting(
        &mut self,
        proto: &mut Proto,
        headers: &Headers,
        payload: &RxPayload<'_>,
        meta: Option<&PacketMeta>,
    ) -> bool {
        let answers = headers.bth.opcode.is_response();
        if headers.bth.opcode.service == Service::Cnp
            || !self.waiting.has(answers) && self.has_memory(proto, headers, payload.len())
        {
            return false;
        }
        match copy_of(payload) {
            Some(payload) => {
                let packet = Waiting::Packet { headers: *headers, payload, meta: meta.copied() };
                self.waiting.push(&self.qp.adapter.waiting_bytes, answers, packet);
            }
            // It was offered, and can't be read. Without packets before it no turn of the list asks for it.
            None => match self.waiting.list(answers) {
                Some(list) if !list.packets.is_empty() => list.is_lossy = true,
                _ => proto.request_again(),
            },
        }
        true
    }

    /// As [`QpEnv::keeps_waiting`], for the answer that has come with the result of the request with this PSN; without one, for the result.
    pub(super) fn keeps_result_waiting(
        &mut self,
        proto: &mut Proto,
        psn: u32,
        answer: Option<&ShmPayload<'_>>,
    ) -> bool {
        let Some(answer) = answer else {
            let waits = self.waiting.has_answers();
            if waits {
                self.waiting.push(&self.qp.adapter.waiting_bytes, true, Waiting::Executed { psn });
            }
            return waits;
        };
        if !self.waiting.has_answers() && self.has_memory_of_answer(proto, psn, answer.len()) {
            return false;
        }
        self.waiting.push(
            &self.qp.adapter.waiting_bytes,
            true,
            Waiting::Answer { psn, answer: answer.to_vec() },
        );
        true
    }

    /// [`Env::await_memory_of_kept`](ferroce_proto::Env::await_memory_of_kept). The packet at hand has come from where the others have.
    #[cold]
    pub(super) fn keep_waiting_before_all(&mut self, packets: Vec<KeptPacket>) {
        let meta = self.meta;
        let packets = packets.into_iter().map(|KeptPacket { headers, payload }| {
            let len = headers.packet_len(payload.len());
            Waiting::Packet {
                headers,
                payload: payload.into_vec(),
                meta: meta.map(|meta| meta.with_len(len)),
            }
        });
        self.waiting.list_of(&self.qp.adapter.waiting_bytes, false).push_before_all(packets);
    }

    /// Gives the transport what has waited, as far as its memory is there by now.
    #[cold]
    pub(super) fn handle_waiting(&mut self, proto: &mut Proto, now: Instant) {
        for answers in [true, false] {
            while let Some(packet) = self.waiting.pop(answers) {
                let is_there = match &packet {
                    Waiting::Packet { headers, payload, .. } => {
                        self.has_memory(proto, headers, payload.len())
                    }
                    Waiting::Answer { psn, answer } => self.has_memory_of_answer(proto, *psn, answer.len()),
                    Waiting::Executed { .. } => true,
                };
                if !is_there {
                    self.waiting.put_back(answers, packet);
                    break;
                }
                match packet {
                    Waiting::Packet { headers, payload, meta } => {
                        let payload = RxPayload::of_packet(&payload);
                        match meta {
                            Some(meta) => self.deliver(proto, now, &headers, payload, &meta),
                            None => proto.handle_packet(now, &headers, payload, self),
                        }
                    }
                    Waiting::Answer { psn, answer } => {
                        proto.fetched(now, psn, &RxPayload::of_packet(&answer), self);
                    }
                    Waiting::Executed { psn } => proto.plain_executed(now, psn, self),
                }
            }
            if self.waiting.take_loss(answers) {
                if answers {
                    proto.ask_again(now);
                } else {
                    proto.request_again();
                }
            }
        }
        self.waiting.tidy();
    }
}

/// A queue pair that needs memory.
#[derive(Debug)]
pub(crate) struct AwaitingQp {
    qp: Weak<Qp>,
    name: u64,
    need: NeedOf,
    absent: AbsentMemory,
}

impl AwaitingQp {
    /// The queue pair looks for the memory once more, in its next turn.
    #[cold]
    pub(crate) fn looks_again(&self) {
        let Some(qp) = self.qp.upgrade() else { return };
        qp.forget_awaited(self.need, self.name);
        qp.adapter.enqueue(&qp);
    }

    /// The memory has come.
    fn goes_on(&self) {
        let Some(qp) = self.qp.upgrade() else { return };
        qp.adapter.with_work(|work| {
            let mut inner = qp.inner.lock();
            // With the QP locked, as where it is set.
            if qp.forget_awaited(self.need, self.name) {
                qp.work_locked(&mut inner, work, clock::now(), |_, _| ());
            }
        });
    }
}

/// Memory that is to be brought, for more queue pairs than there are threads.
#[derive(Default, Debug)]
pub(crate) struct Bringing(Mutex<class::Bringing, BringingQueue>);

#[derive(Default, Debug)]
struct BringingQueue {
    threads: usize,
    rest: VecDeque<AwaitingQp>,
}

impl Bringing {
    /// Has threads bring memory that isn't there. Then the queue pairs go on.
    #[cold]
    pub(crate) fn bring(&'static self, work: &mut ThreadBuffers) {
        for awaiting in work.absent.drain(..) {
            let mut queue = self.0.lock();
            queue.rest.push_back(awaiting);
            if queue.threads < THREADS {
                queue.threads += 1;
                drop(queue);
                if let Err(why) = ferroce_engine::start_thread("ferroce-pages", || self.run()) {
                    tracing::debug!(%why, "copies wait for pages: the thread that brings them can't be started");
                    self.give_up();
                }
            }
        }
    }

    fn next(&self) -> Option<AwaitingQp> {
        let mut queue = self.0.lock();
        let next = queue.rest.pop_front();
        queue.threads -= usize::from(next.is_none());
        next
    }

    fn run(&self) {
        let Ok(_inside) = fork::enter_library() else { return };
        while let Some(awaiting) = self.next() {
            let AbsentMemory { addr, len } = awaiting.absent;
            // A fork doesn't wait for the page.
            fork::outside_library(|| pages::bring(addr, len));
            awaiting.goes_on();
        }
    }

    /// No thread can be made: copies bring their pages themselves.
    #[cold]
    fn give_up(&self) {
        let mut queue = self.0.lock();
        queue.threads -= 1;
        let rest = std::mem::take(&mut queue.rest);
        drop(queue);
        for awaiting in rest {
            pages::assume_present(awaiting.absent.addr, awaiting.absent.len);
            awaiting.looks_again();
        }
    }
}

impl Qp {
    /// Memory with this name isn't brought any more. False: it wasn't.
    fn forget_awaited(&self, need: NeedOf, name: u64) -> bool {
        let awaited = &self.awaited[need as usize].name;
        awaited.compare_exchange(name, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests;
