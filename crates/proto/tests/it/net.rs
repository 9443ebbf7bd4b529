//! A pair of QPs, the network between them and the clock, which jumps to the next thing that happens.

use crate::host::{ALL, Frame, Host, THERE};
use core::cell::RefCell;
use core::time::Duration;
use ferroce_proto::{
    Data, Env as _, FetchOp, MiddlePlace, PlainSend, QpParams, QpProtocol, SendEnds, SendOp, SendWr, Telling,
    UdTarget,
};
use ferroce_types::{Access, Completion, Instant, Placement, QpState, RemoteAccess, Sge, WcStatus};
use ferroce_wire::{Aeth, Bth, Headers, Opcode, Operation, Service, Syndrome};
use std::collections::BTreeMap;

/// The requests that have ended, each with its completion if it had one.
#[derive(Default)]
pub struct Ends(pub Vec<(u64, Option<Completion>)>);

impl SendEnds for Ends {
    type Address = u32;

    fn retire(&mut self, wr: &SendWr<u32>, status: WcStatus) {
        assert_eq!(status, WcStatus::Success);
        self.0.push((wr.wr_id, None));
    }

    fn complete_send(&mut self, completion: Completion) {
        let (wr_id, end) = self.0.last_mut().unwrap();
        assert!(*wr_id == completion.wr_id && end.is_none());
        *end = Some(completion);
    }
}

/// A host that another closure uses too.
struct SharedHost<'a, 'h>(&'a RefCell<&'h mut Host>);

impl SendEnds for SharedHost<'_, '_> {
    type Address = u32;

    fn retire(&mut self, wr: &SendWr<u32>, status: WcStatus) {
        self.0.borrow_mut().retire(wr, status);
    }

    fn complete_send(&mut self, completion: Completion) {
        self.0.borrow_mut().complete_send(completion);
    }
}

/// SplitMix64: a seed gives the same network everywhere.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn per_mille(&mut self, chance: u32) -> bool {
        self.below(1000) < u64::from(chance)
    }
}

/// What the network does to packets; chances in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// A corrupted packet fails its ICRC: for the transport it is a lost one.
    pub loss: u32,
    pub duplicate: u32,
    /// Held back for several packet times.
    pub reorder: u32,
    pub delay: Duration,
    /// Each direction's link, if it has an end.
    pub link: Option<Link>,
}

/// A link that takes its time and drops what its queue (or the receiver's socket) has no room for.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub bytes_per_second: u64,
    pub queue: u64,
    /// With so many bytes in its queue it marks the packets that come, and the receiver notifies the sender.
    pub marks_from: u64,
}

impl Link {
    fn time_for(self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.bytes_per_second)
    }
}

/// Not a syndrome of the wire: the fabric reports by its own means that a packet was executed, with the answer to it.
const EXECUTED: u8 = 0xff;

/// Bytes of Ethernet, IP, UDP and transport headers.
const HEADERS: u64 = 74;

pub const CLEAN: Faults =
    Faults { loss: 0, duplicate: 0, reorder: 0, delay: Duration::from_micros(10), link: None };

/// Returns whether a packet is lost.
pub type Filter = Option<Box<dyn FnMut(&Frame) -> bool>>;

pub struct Side {
    pub qp: QpProtocol<u32>,
    pub host: Host,
}

pub struct Pair {
    pub now: Instant,
    pub a: Side,
    pub b: Side,
    pub faults: Faults,
    pub rng: Rng,
    /// Packets under way by time of arrival and number; `true` goes to `b`.
    wire: BTreeMap<(Instant, u64), (bool, Frame, bool)>,
    frames: u64,
    /// When the links towards `a` and `b` have sent what they were given.
    busy: [Instant; 2],
    /// Packets that didn't fit into a link's queue.
    pub overflows: u64,
    /// Packets towards `b`, `a` that get lost whatever the chances.
    pub drop_to_b: Filter,
    pub drop_to_a: Filter,
}

/// Attributes of a QP that may do everything.
pub fn params(mtu: u32) -> QpParams {
    QpParams {
        access: Access {
            remote_write: true,
            remote_read: true,
            remote_atomic: true,
            flush: Placement { global: true, persistent: false },
        },
        path_mtu: mtu,
        max_dest_rd_atomic: 16,
        max_rd_atomic: 16,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        lossless: mtu == u32::MAX,
        ..QpParams::default()
    }
}

impl Pair {
    /// Two connected QPs in RTS with 4 MiB of memory each.
    pub fn new(service: Service, mtu: u32) -> Self {
        Self::with(service, params(mtu), params(mtu), 0xff_fff0)
    }

    pub fn with(service: Service, a: QpParams, b: QpParams, psn: u32) -> Self {
        let mut pair = Self::down(service, a, b, psn);
        pair.up();
        pair
    }

    /// Both QPs in RESET with their attributes set.
    pub fn down(service: Service, a: QpParams, b: QpParams, psn: u32) -> Self {
        let side = |qpn, peer, params: QpParams, sq, rq| {
            let mut qp = QpProtocol::new(service, qpn, 4096);
            *qp.params_mut() = QpParams { dest_qpn: peer, sq_psn: sq, rq_psn: rq, ..params };
            let mut host = Host::new(4 << 20);
            host.srq = params.srq;
            Side { qp, host }
        };
        Self {
            now: Instant(1_000_000),
            a: side(0x11, 0x22, a, psn, psn ^ 0x5a_5a5a),
            b: side(0x22, 0x11, b, psn ^ 0x5a_5a5a, psn),
            faults: CLEAN,
            rng: Rng(1),
            wire: BTreeMap::new(),
            frames: 0,
            busy: [Instant(0); 2],
            overflows: 0,
            drop_to_b: None,
            drop_to_a: None,
        }
    }

    /// Takes both QPs from RESET to RTS.
    pub fn up(&mut self) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.a.qp.set_state(state, &mut self.a.host);
            self.b.qp.set_state(state, &mut self.b.host);
        }
    }

    pub fn seeded(mut self, seed: u64, faults: Faults) -> Self {
        self.rng = Rng(seed);
        self.faults = faults;
        self
    }

    /// Both sides keep so many packets beyond a gap, and report them.
    pub fn keep(&mut self, packets: usize) {
        for host in [&mut self.a.host, &mut self.b.host] {
            host.kept_room = packets;
            host.telling = if packets > 0 { Telling::BeforeNak } else { Telling::Never };
        }
    }

    fn put_on_wire(&mut self, to_b: bool, frame: Frame) {
        let filter = if to_b { &mut self.drop_to_b } else { &mut self.drop_to_a };
        if filter.as_mut().is_some_and(|drops| drops(&frame)) || self.rng.per_mille(self.faults.loss) {
            return;
        }
        let (mut leaves, mut marked) = (self.now, false);
        if let Some(link) = self.faults.link {
            let busy = self.busy[usize::from(to_b)].max(self.now);
            let bytes = frame.payload.len() as u64 + HEADERS;
            if busy.since(self.now) + link.time_for(bytes) > link.time_for(link.queue) {
                self.overflows += 1;
                return;
            }
            marked = busy.since(self.now) >= link.time_for(link.marks_from);
            leaves = busy.after(link.time_for(bytes));
            self.busy[usize::from(to_b)] = leaves;
        }
        let copies = if self.rng.per_mille(self.faults.duplicate) { 2 } else { 1 };
        for copy in 0..copies {
            let mut arrives = leaves.after(self.faults.delay * (1 + copy * 3));
            if self.rng.per_mille(self.faults.reorder) {
                arrives = arrives.after(self.faults.delay * (1 + self.rng.below(8) as u32));
            }
            self.frames += 1;
            self.wire.insert((arrives, self.frames), (to_b, frame.clone(), marked));
        }
    }

    /// `b` (or `a`) has received a marked packet: it notifies the sender, and reduces its own window if the packet answers it.
    fn notify(&mut self, to_b: bool, response: bool) {
        let (side, peer) = if to_b { (&mut self.b, 0x11) } else { (&mut self.a, 0x22) };
        if response {
            side.qp.note_congestion(self.now);
        }
        let headers = Headers::new(Bth { becn: true, ..Bth::new(Opcode::CNP, peer, 0) });
        self.put_on_wire(!to_b, Frame { headers, payload: vec![0; 16] });
    }

    /// Lets both sides send what they can.
    pub fn transmit(&mut self) {
        for to_b in [true, false] {
            let side = if to_b { &mut self.a } else { &mut self.b };
            let mut rounds = 0;
            while side.qp.transmit(self.now, &mut side.host, 65_536) {
                rounds += 1;
                assert!(rounds < 100_000, "transmit never ends");
            }
            for frame in core::mem::take(&mut side.host.out) {
                self.put_on_wire(to_b, frame);
            }
        }
    }

    fn publish(&mut self) {
        for side in [&mut self.a, &mut self.b] {
            side.qp.flush_acks(&mut side.host);
            side.host.recvs.append(&mut side.host.unpublished);
        }
    }

    /// Jumps to the next event. `false` when nothing will ever happen again.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let arrival = self.wire.first_key_value().map(|((at, _), _)| *at);
        let timers = [self.a.qp.next_timeout(), self.b.qp.next_timeout()];
        let Some(next) = timers.into_iter().flatten().chain(arrival).min() else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= self.now
        {
            let (to_b, frame, marked) = entry.remove();
            if marked && frame.headers.bth.opcode.has_payload() {
                self.notify(to_b, frame.headers.bth.opcode.is_read_response());
            }
            let (side, peer) = if to_b { (&mut self.b, &mut self.a) } else { (&mut self.a, &mut self.b) };
            let awaited = peer.host.awaited.remove(&frame.headers.bth.psn);
            side.take(self.now, &frame, awaited);
            if side.host.answers_at_once {
                while side.qp.transmit(self.now, &mut side.host, 65_536) {}
            }
        }
        for side in [&mut self.a, &mut self.b] {
            side.qp.handle_timeout(self.now, &mut side.host);
        }
        self.publish();
        true
    }

    /// Runs until both send queues are empty and the wire is silent; panics after a minute of virtual time.
    pub fn run(&mut self) {
        self.run_for(Duration::from_secs(60));
        assert!(self.is_idle(), "still busy: {self:?}");
    }

    /// Runs until idle, at most for this long.
    pub fn run_for(&mut self, limit: Duration) {
        let end = self.now.after(limit);
        loop {
            self.transmit();
            self.publish();
            if self.is_idle() || self.now > end || !self.step() {
                return;
            }
        }
    }

    pub fn is_idle(&self) -> bool {
        self.wire.is_empty()
            && self.a.host.out.is_empty()
            && self.b.host.out.is_empty()
            && self.a.qp.sq_len() == 0
            && self.b.qp.sq_len() == 0
    }

    /// Gives what `a` sends now to `f` instead of the network.
    pub fn transmit_a_into(&mut self, f: impl FnOnce(Vec<Frame>, &mut Self)) {
        while self.a.qp.transmit(self.now, &mut self.a.host, 65_536) {}
        let frames = core::mem::take(&mut self.a.host.out);
        f(frames, self);
    }

    /// Delivers a packet to `b` (or `a`) at once, past the network.
    pub fn inject(&mut self, to_b: bool, frame: &Frame) {
        let side = if to_b { &mut self.b } else { &mut self.a };
        side.qp.handle_packet(self.now, &frame.headers, &frame.payload[..], &mut side.host);
    }
}

impl core::fmt::Debug for Pair {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "at {:?}\n a {:?}\n b {:?}", self.now, self.a.qp, self.b.qp)
    }
}

impl Side {
    /// Gives the QP a packet, the short way if the side takes that and the packet can. What is `awaited` is acknowledged, or answered, without
    /// a packet of the transport if it goes the short way.
    fn take(&mut self, now: Instant, frame: &Frame, awaited: bool) {
        let Headers { bth, immediate, aeth, .. } = frame.headers;
        if aeth.is_some_and(|aeth| aeth.syndrome == EXECUTED) {
            match bth.opcode.operation {
                Operation::Acknowledge => self.qp.plain_executed(now, bth.psn, &mut self.host),
                _ if self.take_fetched(now, frame) => self.host.plain += 1,
                _ => self.qp.fetched(now, bth.psn, &&frame.payload[..], &mut self.host),
            }
            return;
        }
        let send = matches!(bth.opcode.operation, Operation::SendOnly | Operation::SendOnlyWithImmediate);
        let payload = &frame.payload[..];
        if self.host.takes_plain && send {
            let (psn, pkey, solicited) = (bth.psn, bth.pkey, bth.solicited);
            let ack_request = bth.ack_request && !awaited;
            let send = PlainSend { psn, pkey, solicited, ack_request, immediate };
            if self.qp.take_plain(&send, &payload, &mut self.host) {
                self.host.plain += 1;
                if awaited {
                    let opcode = Opcode { service: Service::Rc, operation: Operation::Acknowledge };
                    let mut headers = Headers::new(Bth::new(opcode, self.qp.params().dest_qpn, psn));
                    headers.aeth = Some(Aeth { syndrome: EXECUTED, msn: 0 });
                    self.host.out.push(Frame { headers, payload: Vec::new() });
                }
                return;
            }
        }
        if self.host.takes_plain && self.take_write(frame) {
            self.host.plain += 1;
            return;
        }
        // Every other one, so that the two ways follow each other in each message.
        if bth.psn % 2 == 1 && self.take_middle(now, frame) {
            return;
        }
        let taken = self.host.takes_plain
            && (self.answer(&frame.headers, awaited)
                || self.take_acknowledgement(now, frame)
                || self.take_answer(now, frame));
        if taken {
            self.host.plain += 1;
        } else {
            self.qp.handle_packet(now, &frame.headers, payload, &mut self.host);
            if self.host.asks_for_time {
                self.qp.ask_for_time(now, bth.psn, false, &mut self.host);
            }
        }
    }

    /// Places a packet from within a message, and notes it in the QP, if that is possible.
    fn take_middle(&mut self, now: Instant, frame: &Frame) -> bool {
        let bth = frame.headers.bth;
        let Some(middles) = self.qp.middles(&bth) else { return false };
        if middles.most == 0 || middles.packet != frame.payload.len() {
            return false;
        }
        let payload = &frame.payload[..];
        let placed = match middles.place {
            MiddlePlace::Remote { va, rkey } => self.host.write_remote(rkey, va, &payload).is_ok(),
            MiddlePlace::Local(buffer, sges, offset) => {
                self.host.place(buffer, sges, offset, &payload, 0).is_ok()
            }
        };
        if placed {
            self.qp.middles_taken(now, bth.opcode.operation, 1, bth.ack_request);
        }
        placed
    }

    /// Executes a WRITE of one packet, if that is possible the short way.
    fn take_write(&mut self, frame: &Frame) -> bool {
        let (Headers { bth, reth, .. }, payload) = (frame.headers, &frame.payload[..]);
        let Some(reth) = reth.filter(|_| bth.opcode.operation == Operation::WriteOnly) else { return false };
        let placed = self.qp.expects_write(&bth, &reth, payload.len())
            && (payload.is_empty() || self.host.write_remote(reth.rkey, reth.va, &payload).is_ok());
        if placed {
            self.qp.write_taken(&bth, payload.len());
        }
        placed
    }

    /// Executes and answers a fetch, if that is possible the short way: by a packet, unless the answer is `awaited` without one.
    fn answer(&mut self, headers: &Headers, awaited: bool) -> bool {
        let Headers { bth, reth, atomic, .. } = headers;
        let op = match (bth.opcode.operation, reth, atomic) {
            (Operation::ReadRequest, Some(reth), _) => Some(FetchOp::read(reth)),
            (operation, _, Some(atomic)) => FetchOp::atomic(operation, atomic),
            _ => None,
        };
        let Some(op) = op else { return false };
        if self.host.room.is_some() || !self.qp.expects_fetch(bth.psn, bth.pkey, &op) {
            return false;
        }
        let (mut payload, original) = match op {
            FetchOp::Read { va, rkey, len } => {
                if self.host.check_remote(rkey, va, u64::from(len), RemoteAccess::Read).is_err() {
                    return false;
                }
                (self.host.bytes(va, len as usize).to_vec(), 0)
            }
            FetchOp::Atomic { va, rkey, op } => {
                let Ok(found) = self.host.atomic_remote(rkey, va, op) else { return false };
                (Vec::new(), found)
            }
        };
        let mut headers = self.qp.fetch_response(&op, original);
        if awaited {
            headers.aeth = Some(Aeth { syndrome: EXECUTED, msn: 0 });
            payload.extend(headers.atomic_ack.take().map(u64::to_ne_bytes).as_slice().as_flattened());
        }
        self.host.log.push((headers.bth.opcode.operation, headers.bth.psn));
        self.host.out.push(Frame { headers, payload });
        self.qp.fetch_answered(&op, original);
        true
    }

    /// Takes the answer to a fetch that was executed, if that is possible the short way.
    fn take_fetched(&mut self, now: Instant, frame: &Frame) -> bool {
        let psn = frame.headers.bth.psn;
        self.take_bytes(&frame.payload, |qp, len, place, ends| {
            qp.take_fetched(|| now, (psn, len), place, ends)
        })
    }

    /// Takes an answer to a fetch that has come as a packet, if that is possible the short way.
    fn take_answer(&mut self, now: Instant, frame: &Frame) -> bool {
        let Headers { bth, aeth, atomic_ack, .. } = &frame.headers;
        let result;
        let bytes = match (bth.opcode.operation, atomic_ack) {
            (Operation::ReadResponseOnly, _) => &frame.payload[..],
            (Operation::AtomicAcknowledge, Some(original)) => {
                result = original.to_ne_bytes();
                &result
            }
            _ => return false,
        };
        aeth.is_some_and(|aeth| matches!(Syndrome::from_u8(aeth.syndrome), Syndrome::Ack { .. }))
            && self.take_bytes(bytes, |qp, len, place, ends| qp.take_answer(now, bth, len, place, ends))
    }

    /// Has `take` take these bytes, which answer a fetch.
    fn take_bytes(
        &mut self,
        bytes: &[u8],
        take: impl FnOnce(
            &mut QpProtocol<u32>,
            usize,
            &mut dyn FnMut(&Sge) -> bool,
            &mut SharedHost<'_, '_>,
        ) -> bool,
    ) -> bool {
        let Self { qp, host } = self;
        let host = RefCell::new(host);
        let mut place =
            |sge: &Sge| host.borrow_mut().place_bytes(std::slice::from_ref(sge), 0, bytes).is_ok();
        take(qp, bytes.len(), &mut place, &mut SharedHost(&host))
    }

    /// Takes an acknowledgement, if that is possible the short way.
    fn take_acknowledgement(&mut self, now: Instant, frame: &Frame) -> bool {
        let Headers { bth, aeth, .. } = &frame.headers;
        let acknowledges = |aeth: &Aeth| matches!(Syndrome::from_u8(aeth.syndrome), Syndrome::Ack { .. });
        bth.opcode.operation == Operation::Acknowledge
            && frame.payload.is_empty()
            && aeth.as_ref().is_some_and(acknowledges)
            && self.qp.take_acknowledgement(now, bth, &mut self.host)
    }

    pub fn post(&mut self, wr: SendWr<u32>) {
        self.qp.post_send(&wr.request()).unwrap();
    }

    pub fn send_ok(&self) -> bool {
        self.host.sends.iter().all(|c| c.status == WcStatus::Success)
    }
}

/// Operations on the peer's memory.
pub const WRITE: SendOp = SendOp::Write { va: THERE, rkey: ALL };
pub const READ: SendOp = SendOp::Read { va: THERE, rkey: ALL };

/// A signaled work request with one element of the memory with key [`ALL`].
pub fn wr(wr_id: u64, op: SendOp, addr: u64, length: u32) -> SendWr<u32> {
    let sges = if length == 0 { Vec::new() } else { vec![Sge { addr, length, lkey: ALL }] };
    SendWr {
        wr_id,
        op,
        data: Data::Sges(sges.into_iter().collect()),
        signaled: true,
        solicited: false,
        fence: false,
        ud: None,
        remote_srqn: 0,
    }
}

/// A UD work request.
pub fn datagram(wr_id: u64, op: SendOp, addr: u64, length: u32, qpn: u32, qkey: u32) -> SendWr<u32> {
    SendWr { ud: Some(UdTarget { address: 7, qpn, qkey }), ..wr(wr_id, op, addr, length) }
}
