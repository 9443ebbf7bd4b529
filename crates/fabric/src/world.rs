//! Hosts with queue pairs on a network, in virtual time.

use crate::host::{Notifications, QpSurroundings, SimContent};
use crate::network::{FabricLinks, FabricPacket, Forwarded, LinkSizes, NetworkNode, Shape};
use crate::outcome::{RunOutcome, Totals};
use crate::traffic::{Chances, Traffic};
use ferroce_proto::{DataRef, KeptPackets, QpParams, QpProtocol, SendOp, SendRequest};
use ferroce_types::{Access, Instant, QpState, Sge, WcStatus};
use ferroce_wire::{Bth, Headers, Opcode, Service};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;

/// How much a queue pair has in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Law {
    /// The product's towards any peer: a window that answers to loss and to congestion notifications.
    Window,
    /// The same between two hosts with the product: packets beyond a gap are kept, and only what is lost is sent again.
    Selective,
    /// Plain go-back-N: whatever the queue has, as adapters do on a network that is made lossless.
    Unlimited,
}

/// Bytes that wait at a host's own link before its queue pairs do.
const HOST_QUEUE: u64 = 128 << 10;
/// Bytes that a queue pair may send before the next one's turn (as in the adapter).
const BUDGET: u32 = 64 << 10;
/// The local ACK timeout: 67 ms to 268 ms, the default of perftest.
const TIMEOUT: u8 = 14;
/// The reserved bytes of a CNP.
const CNP_BYTES: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum FabricEvent {
    /// The packet with this index has come to a place.
    Arrival(NetworkNode, u32),
    /// The flow of this requester is posted.
    Post(u32),
    /// A timer of this end.
    Timer(u32),
    /// The link of a host has room.
    Room(u32),
}

/// One end of a flow: the requester has an even number, its responder the next. The number is the QPN.
struct FlowEnd {
    qp: QpProtocol<()>,
    host: u32,
    peer: u32,
    written: u64,
    kept: KeptPackets,
    notifications: Notifications,
    /// When its timer's event comes.
    timer: u64,
    /// It is in its host's list.
    is_ready: bool,
}

#[derive(Default)]
struct FabricHost {
    /// Ends that have something to send.
    ready: VecDeque<u32>,
    /// An event comes when its link has room.
    waits: bool,
}

/// Packets on their way, by index.
#[derive(Default)]
struct Packets {
    all: Vec<Option<FabricPacket>>,
    unused: Vec<u32>,
}

impl Packets {
    fn add(&mut self, packet: FabricPacket) -> u32 {
        if let Some(index) = self.unused.pop() {
            self.all[index as usize] = Some(packet);
            return index;
        }
        self.all.push(Some(packet));
        self.all.len() as u32 - 1
    }

    fn take(&mut self, index: u32) -> Option<FabricPacket> {
        let packet = self.all[index as usize].take();
        self.unused.push(index);
        packet
    }
}

/// Hosts on a network.
pub struct World {
    network: FabricLinks,
    sizes: LinkSizes,
    law: Law,
    mtu: u32,
    chances: Chances,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, FabricEvent)>>,
    /// Events so far: those of one moment happen in their order.
    count: u64,
    packets: Packets,
    ends: Vec<FlowEnd>,
    hosts: Vec<FabricHost>,
    surroundings: QpSurroundings,
    totals: Totals,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.now).field("totals", &self.totals).finish_non_exhaustive()
    }
}

impl World {
    /// A network without traffic. Packets carry up to `mtu` bytes.
    #[must_use]
    pub fn new(shape: Shape, sizes: LinkSizes, (law, mtu): (Law, u32), seed: u64) -> Self {
        Self {
            network: FabricLinks::new(shape, sizes),
            sizes,
            law,
            mtu,
            chances: Chances::new(seed),
            now: 0,
            events: BinaryHeap::new(),
            count: 0,
            packets: Packets::default(),
            ends: Vec::new(),
            hosts: (0..shape.hosts()).map(|_| FabricHost::default()).collect(),
            surroundings: QpSurroundings {
                window: sizes.socket,
                is_ecn_capable: law != Law::Unlimited,
                keeps: law == Law::Selective,
                ..QpSurroundings::default()
            },
            totals: Totals::default(),
        }
    }

    /// Has the link between a leaf and a spine lose so many of a million packets.
    pub fn lose(&mut self, leaf: u32, spine: u32, in_a_million: u32) {
        self.network.lose(leaf, spine, in_a_million);
    }

    /// Runs until all flows have ended, or for `limit` nanoseconds. Flows that go on by then have failed, and end then.
    #[must_use]
    pub fn run(mut self, traffic: &Traffic, limit: u64) -> RunOutcome {
        for flow in &traffic.flows {
            let number = self.ends.len() as u32;
            self.add_end(flow.from, flow.to);
            self.add_end(flow.to, flow.from);
            self.plan(flow.at, FabricEvent::Post(number));
        }
        let mut ends = vec![None; traffic.flows.len()];
        let mut left = ends.len();
        while left > 0
            && let Some(Reverse((at, _, event))) = self.events.pop()
            && at <= limit
        {
            self.now = at;
            let end = match event {
                FabricEvent::Arrival(NetworkNode::Host(_), packet) => self.receive(packet),
                FabricEvent::Arrival(place, packet) => {
                    if let Some(packet) = self.packets.take(packet) {
                        self.forward(place, packet);
                    }
                    continue;
                }
                FabricEvent::Post(end) => self.post(end, traffic.flows[end as usize / 2].bytes),
                FabricEvent::Timer(end) => self.time_out(end),
                FabricEvent::Room(host) => {
                    self.hosts[host as usize].waits = false;
                    self.send_of(host);
                    continue;
                }
            };
            for status in std::mem::take(&mut self.surroundings.ended) {
                self.totals.failed += u64::from(status != WcStatus::Success);
                ends[end as usize / 2] = Some(at);
                left -= 1;
            }
        }
        for end in self.ends.iter().step_by(2) {
            let counters = end.qp.counters();
            self.totals.requests += counters.requests_sent;
            self.totals.repeated += counters.retransmissions;
            self.totals.timeouts += counters.timeouts;
        }
        self.totals.failed += left as u64;
        self.totals.marked = self.network.marked;
        let ends: Vec<u64> = ends.into_iter().map(|end| end.unwrap_or(limit)).collect();
        RunOutcome::new(traffic, &self.sizes, self.mtu, &ends, self.totals)
    }

    fn plan(&mut self, at: u64, event: FabricEvent) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    /// Adds an end whose peer is the other one of its pair, connected.
    fn add_end(&mut self, host: u32, peer: u32) {
        let number = self.ends.len() as u32;
        let mut qp = QpProtocol::new(Service::Rc, number, 1);
        *qp.params_mut() = QpParams {
            access: Access { remote_write: true, ..Access::default() },
            dest_qpn: number ^ 1,
            path_mtu: self.mtu,
            timeout: TIMEOUT,
            retry_cnt: 7,
            lossless: self.law == Law::Unlimited,
            ..QpParams::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            qp.set_state(state, &mut self.surroundings);
        }
        self.ends.push(FlowEnd {
            qp,
            host,
            peer,
            written: 0,
            kept: KeptPackets::default(),
            notifications: Notifications::default(),
            timer: u64::MAX,
            is_ready: false,
        });
    }

    /// Posts the WRITE of a flow. Returns the end.
    fn post(&mut self, number: u32, bytes: u32) -> u32 {
        let sges = [Sge { addr: 0, length: bytes, lkey: 0 }];
        let request = SendRequest {
            wr_id: 0,
            op: SendOp::Write { va: 0, rkey: 0 },
            data: DataRef::Sges(&sges),
            signaled: true,
            solicited: false,
            fence: false,
            ud: None,
            remote_srqn: 0,
        };
        self.totals.failed += u64::from(self.ends[number as usize].qp.post_send(&request).is_err());
        self.settle(number);
        number
    }

    /// A packet has come to its host. Returns the end that it is for.
    fn receive(&mut self, packet: u32) -> u32 {
        let Some(packet) = self.packets.take(packet) else { return 0 };
        let (number, now) = (packet.headers.bth.dest_qp, Instant(self.now));
        let end = &mut self.ends[number as usize];
        if packet.is_marked && end.notifications.is_due(now) {
            let headers = Headers::new(Bth { becn: true, ..Bth::new(Opcode::CNP, number ^ 1, 0) });
            self.surroundings.out.push((headers, SimContent::Length(CNP_BYTES)));
        }
        self.surroundings.written = end.written;
        std::mem::swap(&mut self.surroundings.kept, &mut end.kept);
        end.qp.handle_packet(now, &packet.headers, packet.content.payload(), &mut self.surroundings);
        end.qp.flush_acks(&mut self.surroundings);
        end.written = self.surroundings.written;
        std::mem::swap(&mut self.surroundings.kept, &mut end.kept);
        self.settle(number);
        number
    }

    fn time_out(&mut self, number: u32) -> u32 {
        let end = &mut self.ends[number as usize];
        if end.timer == self.now {
            end.timer = u64::MAX;
            end.qp.handle_timeout(Instant(self.now), &mut self.surroundings);
            self.settle(number);
        }
        number
    }

    /// After something has happened to an end: what it has sent leaves, and it gets its turn to send more.
    fn settle(&mut self, number: u32) {
        self.let_go(number);
        let end = &mut self.ends[number as usize];
        let host = end.host;
        if end.qp.wants_transmit() && !end.is_ready {
            end.is_ready = true;
            self.hosts[host as usize].ready.push_back(number);
        }
        self.set_timer(number);
        self.send_of(host);
    }

    fn set_timer(&mut self, number: u32) {
        let end = &mut self.ends[number as usize];
        if let Some(Instant(next)) = end.qp.next_timeout()
            && next < end.timer
        {
            end.timer = next;
            self.plan(next, FabricEvent::Timer(number));
        }
    }

    /// The ends of a host send in turns, as long as its link has room.
    fn send_of(&mut self, host: u32) {
        while !self.hosts[host as usize].waits
            && let Some(number) = self.hosts[host as usize].ready.pop_front()
        {
            let waiting = self.network.backlog_of_host(host, self.now);
            self.surroundings.room = HOST_QUEUE.saturating_sub(waiting);
            self.surroundings.is_blocked = false;
            let end = &mut self.ends[number as usize];
            let more = end.qp.transmit(Instant(self.now), &mut self.surroundings, BUDGET);
            let is_blocked = self.surroundings.is_blocked;
            end.is_ready = more || is_blocked;
            if end.is_ready {
                self.hosts[host as usize].ready.push_back(number);
            }
            self.let_go(number);
            self.set_timer(number);
            if is_blocked {
                self.hosts[host as usize].waits = true;
                let half = self.sizes.time_of(HOST_QUEUE / 2);
                self.plan(self.now + half, FabricEvent::Room(host));
            }
        }
    }

    /// Packets of an end leave its host.
    fn let_go(&mut self, number: u32) {
        let FlowEnd { host, peer, .. } = self.ends[number as usize];
        let mut out = std::mem::take(&mut self.surroundings.out);
        for (headers, content) in out.drain(..) {
            self.totals.packets += 1;
            let is_markable = self.law != Law::Unlimited && headers.bth.opcode.has_payload();
            let way = (number / 2).wrapping_mul(0x9e37_79b9) >> 16;
            let packet = FabricPacket { headers, content, to: peer, way, is_markable, is_marked: false };
            self.forward(NetworkNode::Host(host), packet);
        }
        self.surroundings.out = out;
    }

    fn forward(&mut self, at: NetworkNode, mut packet: FabricPacket) {
        let chances = &mut self.chances;
        match self.network.send(self.now, at, &mut packet, || chances.below(1_000_000) as u32) {
            Forwarded::Arrives(place, then) => {
                let packet = self.packets.add(packet);
                self.plan(then, FabricEvent::Arrival(place, packet));
            }
            Forwarded::Dropped => self.totals.dropped += 1,
            Forwarded::Lost => self.totals.lost += 1,
        }
    }
}
