//! The communication manager of a host: its state.

use ferroce_buffers::{ManagedPeer, ManagerNews};
use ferroce_cm::{Cm, Config, Handle, ListenerId};
use ferroce_types::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddrV4;

/// Ports of programs that ask begin here.
pub(crate) const FIRST_PORT: u16 = 32_768;

/// A peer's request that waits for the program.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) handle: Handle,
    pub(crate) from: SocketAddrV4,
    pub(crate) peer: ManagedPeer,
}

/// The communication manager of a host, its listeners, and what has happened.
#[derive(Debug)]
pub(crate) struct HostManager {
    pub(crate) cm: Cm,
    pub(crate) next_port: u16,
    pub(crate) listeners: BTreeMap<ListenerId, (u16, VecDeque<Asked>)>,
    pub(crate) news: BTreeMap<Handle, VecDeque<ManagerNews>>,
}

impl HostManager {
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.cm.poll_timeout().map(|at| Instant(at.as_nanos() as u64))
    }

    pub(crate) fn new() -> Self {
        // Communication IDs are of a host alone.
        let config = Config { id_prefix: 0, id_bits: 31, first_id: 1, max_connections: 1 << 16 };
        Self { cm: Cm::new(config), next_port: FIRST_PORT, listeners: BTreeMap::new(), news: BTreeMap::new() }
    }
}
