//! Packets that wait for memory. A copy to a page that isn't there stands until the page has come, and holds up all for which the thread
//! works. So a packet whose memory isn't there waits, as do those behind it, while a thread of its own [brings](bring) the page. What
//! leaves waits in the send queue.

use super::payload::{pieces, rest_of_element};
use super::{Qp, QpEnv, RxPayload};
use crate::adapter::ThreadBuffers;
use ferroce_access::{Fault, pages};
use ferroce_hostlink::ShmPayload;
use ferroce_mem::{KeyTable, KeyUser};
use ferroce_os::sync::{Mutex, class};
use ferroce_os::{clock, fork};
use ferroce_parts::Ah;
use ferroce_proto::{Buffer, NeededMemory, Payload};
use ferroce_types::{Instant, PacketMeta, RecvWqe, RemoteAccess, Sge};
use ferroce_wire::{Headers, Service};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

type Proto = ferroce_proto::QpProtocol<Arc<Ah>>;

/// Packets of a queue pair that wait, at most, and their bytes. What is beyond is lost, as on a wire.
const MOST: usize = 8192;
const MOST_BYTES: usize = 16 << 20;
/// So many bytes of a message are brought at a time, at most.
const BROUGHT: u64 = 1 << 20;
/// Threads that bring pages, at most.
const THREADS: usize = 32;

/// Bytes of the program's memory whose pages aren't there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AbsentMemory {
    addr: u64,
    len: usize,
}

impl AbsentMemory {
    /// Whether these bytes (address, length) are there. If they aren't, they are `absent`, with those of `rest` that follow in their message.
    ///
    /// # Errors
    /// [`Fault`] when they aren't.
    #[inline]
    pub(super) fn look((addr, len): (u64, usize), rest: u64, absent: &mut Option<Self>) -> Result<(), Fault> {
        if pages::are_present(addr, len) {
            return Ok(());
        }
        let least = len as u64;
        *absent = Some(Self { addr, len: rest.clamp(least, BROUGHT.max(least)) as usize });
        Err(Fault)
    }
}

/// What of `len` bytes from `offset` of these elements on isn't there. What is wrong with a key is found out by the copy.
pub(super) fn absent_of(pd: u32, sges: &[Sge], offset: u64, len: usize, write: bool) -> Option<AbsentMemory> {
    let table = KeyTable::global();
    let mut absent = None;
    for (piece, at) in pieces(sges, offset, len) {
        let rest = rest_of_element(sges, offset + at as u64);
        let look = |addr| AbsentMemory::look((addr, piece.length as usize), rest, &mut absent);
        let _ = table.local(pd, &piece, write, look);
        if absent.is_some() {
            break;
        }
    }
    absent
}

/// What of the first `len` bytes of a range isn't there that a peer reaches.
fn absent_of_peer(
    by: KeyUser,
    (rkey, va, whole): (u32, u64, u64),
    access: RemoteAccess,
    len: usize,
) -> Option<AbsentMemory> {
    let mut absent = None;
    let look = |addr| AbsentMemory::look((addr, len), whole, &mut absent);
    let _ = KeyTable::global().remote(by, rkey, va, whole, access, look);
    absent
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
        match self {
            Self::Packet { payload: bytes, .. } | Self::Answer { answer: bytes, .. } => bytes.len(),
            Self::Executed { .. } => 0,
        }
    }
}

/// Packets that wait, if there are any.
#[derive(Default, Debug)]
pub(crate) struct WaitingPackets(Option<Box<WaitingLists>>);

/// In the order in which they have come.
#[derive(Default, Debug)]
struct WaitingLists {
    requests: VecDeque<Waiting>,
    /// Answers to requests of this side. They don't wait for requests of the peer's.
    answers: VecDeque<Waiting>,
    bytes: usize,
}

impl WaitingLists {
    fn queue(&mut self, answers: bool) -> &mut VecDeque<Waiting> {
        if answers { &mut self.answers } else { &mut self.requests }
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

    #[inline]
    fn has(&self, answers: bool) -> bool {
        let waits = |lists: &WaitingLists| match answers {
            true => !lists.answers.is_empty(),
            false => !lists.requests.is_empty(),
        };
        self.0.as_deref().is_some_and(waits)
    }

    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    fn push(&mut self, answers: bool, packet: Waiting) {
        let lists = self.0.get_or_insert_default();
        let bytes = lists.bytes + packet.bytes();
        if lists.requests.len() + lists.answers.len() < MOST && bytes <= MOST_BYTES {
            lists.bytes = bytes;
            lists.queue(answers).push_back(packet);
        }
    }

    /// Takes the first one out.
    fn pop(&mut self, answers: bool) -> Option<Waiting> {
        let lists = self.0.as_deref_mut()?;
        let packet = lists.queue(answers).pop_front()?;
        lists.bytes -= packet.bytes();
        if lists.requests.is_empty() && lists.answers.is_empty() {
            self.0 = None;
        }
        Some(packet)
    }

    /// Undoes [`WaitingPackets::pop`].
    fn put_back(&mut self, answers: bool, packet: Waiting) {
        let lists = self.0.get_or_insert_default();
        lists.bytes += packet.bytes();
        lists.queue(answers).push_front(packet);
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
    pub(super) fn await_memory(&mut self, absent: AbsentMemory) {
        if !self.qp.awaits_memory.swap(true, Ordering::Relaxed) {
            self.work.absent.push((self.qp.clone(), absent));
        }
    }

    /// Whether the memory is there that a packet with `len` bytes of payload needs. If it isn't, the QP awaits it.
    fn has_memory(&mut self, proto: &Proto, headers: &Headers, len: usize) -> bool {
        // The result of an atomic isn't a payload.
        let len = if headers.atomic_ack.is_some() { size_of::<u64>() } else { len };
        let needed = proto.needed_memory(headers, len);
        if let NeededMemory::NextReceive(len) = needed {
            return self.has_memory_of_receive(len);
        }
        self.is_there(&needed, len)
    }

    fn is_there(&mut self, needed: &NeededMemory<'_>, len: usize) -> bool {
        let absent = match *needed {
            NeededMemory::Nothing | NeededMemory::NextReceive(_) => None,
            NeededMemory::Local(buffer, sges, offset) => {
                absent_of(self.pd_of(buffer), sges, offset, len, true)
            }
            NeededMemory::Remote { rkey, va, len: whole, access } => {
                let len = if access == RemoteAccess::Write { len } else { 8 };
                absent_of_peer(self.key_user(), (rkey, va, whole), access, len)
            }
        };
        absent.inspect(|absent| self.await_memory(*absent)).is_none()
    }

    fn has_memory_of_receive(&mut self, len: usize) -> bool {
        let pd = self.pd_of(Buffer::Receive);
        let look = |receive: &RecvWqe| absent_of(pd, &receive.sges, 0, len, true);
        let absent = match &self.qp.srq {
            None => self.qp.rq.lock().front().and_then(look),
            // Another QP may take it meanwhile.
            Some(srq) => srq.look_at_next(look).flatten(),
        };
        absent.inspect(|absent| self.await_memory(*absent)).is_none()
    }

    /// Whether a packet has to wait, for memory or for those before it. It is kept then.
    pub(super) fn keeps_waiting(
        &mut self,
        proto: &Proto,
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
        if let Some(payload) = copy_of(payload) {
            self.waiting.push(answers, Waiting::Packet { headers: *headers, payload, meta: meta.copied() });
        }
        true
    }

    /// As [`QpEnv::keeps_waiting`], for the answer that has come with the result of the request with this PSN; without one, for the result.
    pub(super) fn keeps_result_waiting(
        &mut self,
        proto: &Proto,
        psn: u32,
        answer: Option<&ShmPayload<'_>>,
    ) -> bool {
        let Some(answer) = answer else {
            let waits = self.waiting.has_answers();
            if waits {
                self.waiting.push(true, Waiting::Executed { psn });
            }
            return waits;
        };
        if !self.waiting.has_answers() && self.is_there(&proto.needed_by_answer(psn), answer.len()) {
            return false;
        }
        self.waiting.push(true, Waiting::Answer { psn, answer: answer.to_vec() });
        true
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
                    Waiting::Answer { psn, answer } => {
                        self.is_there(&proto.needed_by_answer(*psn), answer.len())
                    }
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
        }
    }
}

/// Memory that is to be brought, for more queue pairs than there are threads.
#[derive(Default, Debug)]
pub(crate) struct Bringing(Mutex<class::Bringing, BringingQueue>);

#[derive(Default, Debug)]
struct BringingQueue {
    threads: usize,
    rest: VecDeque<(Arc<Qp>, AbsentMemory)>,
}

impl Bringing {
    /// Has a thread bring memory that isn't there. Then the QP goes on.
    #[cold]
    pub(crate) fn bring(&'static self, work: &mut ThreadBuffers) {
        for awaited in work.absent.drain(..) {
            let mut queue = self.0.lock();
            queue.rest.push_back(awaited);
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

    fn next(&self) -> Option<(Arc<Qp>, AbsentMemory)> {
        let mut queue = self.0.lock();
        let next = queue.rest.pop_front();
        queue.threads -= usize::from(next.is_none());
        next
    }

    fn run(&self) {
        let Ok(_inside) = fork::enter_library() else { return };
        while let Some((qp, AbsentMemory { addr, len })) = self.next() {
            // A fork doesn't wait for the page.
            fork::outside_library(|| pages::bring(addr, len));
            qp.memory_has_come();
        }
    }

    /// No thread can be made: copies bring their pages themselves.
    #[cold]
    fn give_up(&self) {
        let mut queue = self.0.lock();
        queue.threads -= 1;
        let rest = if queue.threads == 0 { std::mem::take(&mut queue.rest) } else { VecDeque::new() };
        drop(queue);
        for (qp, AbsentMemory { addr, len }) in rest {
            pages::assume_present(addr, len);
            qp.look_for_memory_again();
        }
    }
}

impl Qp {
    /// Looks for memory that it needs in its next turn.
    pub(crate) fn look_for_memory_again(self: &Arc<Self>) {
        self.awaits_memory.store(false, Ordering::Relaxed);
        self.adapter.enqueue(self);
    }

    /// Goes on with what has waited for memory.
    fn memory_has_come(self: &Arc<Self>) {
        self.awaits_memory.store(false, Ordering::Relaxed);
        self.adapter.with_work(|work| self.work_in_turn(work, clock::now(), |_, _| ()));
    }
}
