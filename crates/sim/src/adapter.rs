//! The adapter of a host: its keys, queue pairs and completion queues.

use crate::frame::Frame;
use crate::host_manager::HostManager;
use crate::licences::Licences;
use crate::unplaced::Unplaced;
use crate::wait::Boot;
use ferroce_buffers::{Event, Fault, QpAttributes, QpService, Rights, Stamp, Tap};
use ferroce_proto::QpProtocol;
use ferroce_types::{Completion, Instant, RecvWqe};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;

/// A key, and the memory that it permits access to.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) tap: Tap,
    pub(crate) address: u64,
    pub(crate) domain: u32,
    /// Rights of peers; `None` for a local key.
    pub(crate) remote: Option<Rights>,
    /// Of a window: the queue pair whose peer alone may use it.
    pub(crate) of_qp: Option<u32>,
}

/// A completion, before it is polled.
#[derive(Debug)]
pub(crate) struct CompletedRequest {
    pub(crate) completion: Completion,
    pub(crate) stamp: Stamp,
    /// Why the request has failed, if it has.
    pub(crate) fault: Option<Fault>,
}

#[derive(Debug)]
pub(crate) struct CqState {
    pub(crate) entries: VecDeque<CompletedRequest>,
    pub(crate) capacity: u32,
    /// Polls since the last that has found something.
    pub(crate) empty_polls: u32,
}

/// A memory window.
#[derive(Debug)]
pub(crate) struct WindowState {
    pub(crate) domain: u32,
    /// Its key, while it is bound.
    pub(crate) key: Option<u32>,
}

/// The user of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) domain: u32,
    pub(crate) qpn: u32,
}

/// A shared receive queue.
#[derive(Debug, Default)]
pub(crate) struct SrqState {
    pub(crate) receives: VecDeque<RecvWqe>,
    /// With fewer receives, there is one event. 0: there is none.
    pub(crate) limit: u32,
    /// Its number in events.
    pub(crate) number: u32,
}

impl SrqState {
    /// The event of too few receives.
    fn take_low_water(&mut self) -> Option<Event> {
        let low = (self.receives.len() as u32) < self.limit;
        if low {
            self.limit = 0;
        }
        low.then_some(Event::LowWater(self.number))
    }
}

/// What the queue pairs of a host share: what requests lead to.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) keys: BTreeMap<u32, Key>,
    pub(crate) srqs: BTreeMap<u32, SrqState>,
    pub(crate) windows: BTreeMap<u64, WindowState>,
    /// Keys of windows that were deallocated. They are used again, as by adapters.
    pub(crate) free_windows: Vec<u32>,
    pub(crate) events: VecDeque<Event>,
}

impl Tables {
    /// A receive was taken from a shared queue.
    pub(crate) fn note_low_water(&mut self, srq: u32) {
        let event = self.srqs.get_mut(&srq).and_then(SrqState::take_low_water);
        self.events.extend(event);
    }
}

/// What surrounds the transport of a queue pair.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) user: User,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    /// The peer's host, once it is connected.
    pub(crate) peer: Option<Ipv4Addr>,
    pub(crate) is_for_datagrams: bool,
    /// The GRH of the datagram that has arrived.
    pub(crate) grh: [u8; 40],
    /// Where receives come from, if it isn't `receives`.
    pub(crate) srq: Option<u32>,
    pub(crate) recv_depth: u32,
    pub(crate) receives: VecDeque<RecvWqe>,
    pub(crate) sends_completed: Vec<Completion>,
    /// Receive completions that wait for their acknowledgement to leave, each with the number of the packet that it has to acknowledge.
    pub(crate) unpublished: Vec<(Completion, u64)>,
    pub(crate) out: Vec<Frame>,
    /// The first failure.
    pub(crate) first: Option<(u16, Fault)>,
    /// Bytes that were received and wait to be placed.
    pub(crate) placing: Vec<Unplaced>,
    /// The world has an event for `placing`.
    pub(crate) places_later: bool,
    /// The queue pair pauses between two packets.
    pub(crate) pauses: bool,
    /// It may answer a message with RNR.
    pub(crate) is_reliable: bool,
    /// The last message was answered with RNR although a receive was posted.
    pub(crate) refused: bool,
    /// What READs were answered with, by PSN: key, address, bytes.
    pub(crate) answers: BTreeMap<u32, (u32, u64, Vec<u8>)>,
    /// When the last completion of a send and of a receive is added to its CQ.
    pub(crate) completed: [Instant; 2],
    /// When the peer may be notified of congestion again.
    pub(crate) notifies_from: Instant,
}

impl Side {
    pub(crate) fn new(
        user: User,
        (send_cq, recv_cq): (u32, u32),
        srq: Option<u32>,
        limits: &QpAttributes,
    ) -> Self {
        Self {
            user,
            send_cq,
            recv_cq,
            peer: None,
            is_for_datagrams: limits.service == QpService::Datagram,
            grh: [0; 40],
            srq,
            recv_depth: limits.recv_depth,
            receives: VecDeque::new(),
            sends_completed: Vec::new(),
            unpublished: Vec::new(),
            out: Vec::new(),
            first: None,
            placing: Vec::new(),
            places_later: false,
            pauses: false,
            is_reliable: limits.service == QpService::Reliable,
            refused: false,
            answers: BTreeMap::new(),
            completed: [Instant(0); 2],
            notifies_from: Instant(0),
        }
    }
}

#[derive(Debug)]
pub(crate) struct QpState {
    pub(crate) qp: QpProtocol<Ipv4Addr>,
    pub(crate) side: Side,
    /// The timer that the world has.
    pub(crate) timer: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct HostState {
    pub(crate) name: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) plugged: bool,
    /// It hasn't crashed.
    pub(crate) up: bool,
    /// How often it has crashed.
    pub(crate) crashes: u32,
    /// Its programs don't run.
    pub(crate) paused: bool,
    pub(crate) licences: Licences,
    /// Programs that it starts by itself.
    pub(crate) boots: Vec<Boot>,
    /// Looks at exposed memory since the last completion.
    pub(crate) looks: u32,
    pub(crate) domains: BTreeSet<u32>,
    pub(crate) tables: Tables,
    pub(crate) qps: BTreeMap<u32, QpState>,
    pub(crate) cqs: BTreeMap<u32, CqState>,
    pub(crate) manager: HostManager,
    next_key: u32,
    next_address: u64,
    next_object: u32,
}

impl HostState {
    /// The first host has the index 0.
    pub(crate) fn new(name: String, ip: Ipv4Addr, index: usize) -> Self {
        // Each host has keys of its own, so a program that uses the key of another host doesn't reach memory by chance.
        let next_key = (index as u32).wrapping_mul(0x100_0000).wrapping_add(0x1000);
        Self {
            name,
            ip,
            plugged: true,
            up: true,
            crashes: 0,
            paused: false,
            licences: Licences::default(),
            boots: Vec::new(),
            looks: 0,
            domains: BTreeSet::new(),
            tables: Tables::default(),
            qps: BTreeMap::new(),
            cqs: BTreeMap::new(),
            manager: HostManager::new(),
            next_key,
            next_address: 1 << 32,
            next_object: 0x11,
        }
    }

    /// Ends all objects. Their numbers don't come again, so handles of programs find nothing.
    pub(crate) fn crash(&mut self) {
        self.up = false;
        self.crashes += 1;
        self.domains.clear();
        // The memory itself belongs to regions of the programs, so nothing is released here.
        self.tables = Tables::default();
        self.qps.clear();
        self.cqs.clear();
        self.manager = HostManager::new();
    }

    /// Adds a key.
    pub(crate) fn add_key(&mut self, key: Key) -> u32 {
        let number = self.new_key();
        self.tables.keys.insert(number, key);
        number
    }

    /// A number for a key. Keys look like an adapter's: they aren't consecutive. They differ in more than the low 8 bits, which
    /// those of a window change.
    pub(crate) const fn new_key(&mut self) -> u32 {
        self.next_key = self.next_key.wrapping_add(0x101);
        self.next_key
    }

    /// Addresses for a region, as far from a multiple of 8 as its memory is. They depend on the order of registrations alone.
    pub(crate) fn addresses(&mut self, tap: &Tap) -> u64 {
        let start = self.next_address + tap.misalignment();
        self.next_address = (start + tap.len() as u64).next_multiple_of(4096) + 4096;
        start
    }

    /// A number for an object.
    pub(crate) const fn new_number(&mut self) -> u32 {
        self.next_object += 1;
        self.next_object
    }
}
