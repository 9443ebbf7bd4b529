//! The adapter of a host: its keys, queue pairs and completion queues.

use crate::frame::Frame;
use crate::host_manager::HostManager;
use ferroce_buffers::{Fault, Rights, Tap};
use ferroce_proto::{Completion, Instant, Qp, RecvWqe};
use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// A key, and the memory that it permits access to.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) tap: Tap,
    pub(crate) address: u64,
    pub(crate) domain: u32,
    /// Rights of peers; `None` for a local key.
    pub(crate) remote: Option<Rights>,
}

/// A completion, as a CQ contains it.
#[derive(Clone, Debug)]
pub struct SimCompletion {
    /// The transport's completion.
    pub inner: Completion,
    /// The queue pair.
    pub qpn: u32,
    /// Why the request has failed, if it has.
    pub fault: Option<Fault>,
}

#[derive(Debug)]
pub(crate) struct CqState {
    pub(crate) entries: VecDeque<SimCompletion>,
    pub(crate) capacity: u32,
    /// Polls since the last that has found something.
    pub(crate) empty_polls: u32,
}

/// What surrounds the transport of a queue pair.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) domain: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    /// The peer's host, once it is connected.
    pub(crate) peer: Option<Ipv4Addr>,
    pub(crate) recv_depth: u32,
    pub(crate) receives: VecDeque<RecvWqe>,
    pub(crate) sends_completed: Vec<Completion>,
    /// Receive completions that wait for their acknowledgement to leave.
    pub(crate) unpublished: Vec<Completion>,
    pub(crate) out: Vec<Frame>,
    /// The first failure.
    pub(crate) first: Option<(u16, Arc<Fault>)>,
}

#[derive(Debug)]
pub(crate) struct QpState {
    pub(crate) qp: Qp<()>,
    pub(crate) side: Side,
    /// The timer that the world has.
    pub(crate) timer: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct HostState {
    pub(crate) name: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) plugged: bool,
    pub(crate) keys: BTreeMap<u32, Key>,
    pub(crate) qps: BTreeMap<u32, QpState>,
    pub(crate) cqs: BTreeMap<u32, CqState>,
    pub(crate) manager: HostManager,
    next_key: u32,
    next_address: u64,
    next_object: u32,
}

impl HostState {
    pub(crate) fn new(name: String, ip: Ipv4Addr) -> Self {
        Self {
            name,
            ip,
            plugged: true,
            keys: BTreeMap::new(),
            qps: BTreeMap::new(),
            cqs: BTreeMap::new(),
            manager: HostManager::new(),
            next_key: 0x1000,
            next_address: 1 << 32,
            next_object: 0x11,
        }
    }

    /// Adds a key. Keys look like an adapter's: they aren't consecutive.
    pub(crate) fn add_key(&mut self, key: Key) -> u32 {
        self.next_key += 0x101;
        self.keys.insert(self.next_key, key);
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
