//! A snapshot of a process for `ferroce ps`, `top` and `trace`: its devices, queue pairs, queues, regions and counters.
//!
//! In here: the snapshot as data, its form (JSON), and the validation by the reader. Out of here: collecting it (`nic`), sending it
//! (`host`), showing it (`cli`, `preload`).
//!
//! A watcher may be root, and the watched process anybody's. So what comes is bounded, in bytes ([`LONGEST`]), in entries
//! ([`MOST`]) and in letters of a text, and a [`Text`] has no letter that a terminal acts upon.
#![forbid(unsafe_code)]

mod bounded;
mod counters;
mod text;
mod trace;

pub use bounded::MOST;
pub use counters::{Counters, PORT_COUNTERS, port_counter};
pub use text::{LONGEST_TEXT, Text, harmless};
pub use trace::{BURST, Filter, NAMED, TraceBatch, TracedMessage};

use bounded::list;
use serde::{Deserialize, Serialize};

/// Bytes of the longest account of a process.
pub const LONGEST: usize = 16 << 20;
/// How many of each kind of object are listed; the others are only counted.
pub const TOLD: usize = 4096;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// All there is.
    Everything,
    /// The devices with their counters.
    Devices,
}

impl Wish {
    /// As it is in a request.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Everything => 0,
            Self::Devices => 1,
        }
    }

    /// The wish of a request.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Everything),
            1 => Some(Self::Devices),
            _ => None,
        }
    }
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its version of Ferroce.
    pub version: Text,
    /// Slots of the QPN space that it owns.
    #[serde(deserialize_with = "list")]
    pub slots: Vec<u16>,
    /// The devices that it has open.
    #[serde(deserialize_with = "list")]
    pub devices: Vec<DeviceSnapshot>,
    /// Its queue pairs.
    #[serde(deserialize_with = "list")]
    pub queue_pairs: Vec<QueuePair>,
    /// Queue pairs that aren't listed one by one.
    pub more_queue_pairs: u64,
    /// Its listeners and connections of librdmacm, once it has used them.
    pub connection_manager: Option<ConnectionManager>,
    /// The completion queues of its queue pairs.
    #[serde(deserialize_with = "list")]
    pub completion_queues: Vec<CompletionQueue>,
    /// The shared receive queues of its queue pairs.
    #[serde(deserialize_with = "list")]
    pub shared_receive_queues: Vec<SharedReceiveQueue>,
    /// Its regions.
    #[serde(deserialize_with = "list")]
    pub regions: Vec<Region>,
    /// Regions that aren't listed one by one.
    pub more_regions: u64,
    /// Bytes of all regions.
    pub registered: u64,
}

/// The communication manager of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionManager {
    /// It was at work all the while, so the lists are empty.
    pub busy: bool,
    /// Its listeners.
    #[serde(deserialize_with = "list")]
    pub listeners: Vec<ListenerAccount>,
    /// Listeners beyond [`TOLD`].
    pub more_listeners: u64,
    /// Its connections and lookups.
    #[serde(deserialize_with = "list")]
    pub connections: Vec<ConnectionAccount>,
    /// Connections beyond [`TOLD`].
    pub more_connections: u64,
}

/// A listener of librdmacm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListenerAccount {
    /// TCP, UDP or IB.
    pub port_space: Text,
    /// Its address and port.
    pub address: Text,
    /// Requests that the program hasn't fetched.
    pub waiting: u32,
    /// Requests that may wait.
    pub backlog: u32,
}

/// A connection of librdmacm, or a lookup of a datagram service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionAccount {
    /// Its communication ID.
    pub id: u32,
    /// Its state as Linux names it: `REQ_SENT`, `ESTABLISHED` …
    pub state: Text,
    /// This side's address and port; port 0: unknown.
    pub local: Text,
    /// The peer's address and port; port 0: unknown.
    pub peer: Text,
    /// The number of its queue pair; 0: none yet.
    pub queue_pair: u32,
    /// Milliseconds for which it has waited for the peer or for the process's program; `None`: it doesn't wait.
    pub waited: Option<u64>,
}

/// An open device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceSnapshot {
    /// Its name.
    pub name: Text,
    /// The interface that it stands for.
    pub interface: Text,
    /// The port is active.
    pub active: bool,
    /// What the process's queue pairs of this device have counted, those that are gone too.
    pub counters: Counters,
}

/// A queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuePair {
    /// Its number.
    pub number: u32,
    /// Its device's name.
    pub device: Text,
    /// RC, XRC, UC or UD.
    pub service: Text,
    /// RESET, INIT, RTR, RTS, SQD, SQE or ERR.
    pub state: Text,
    /// It was at work all the while, so what is below and changes is unknown. The counters are the last ones it published.
    pub busy: bool,
    /// How packets go: local, shm or udp; empty before there is a way.
    pub fabric: Text,
    /// Its own address, while it has a way.
    pub address: Text,
    /// The other end of a connection.
    pub peer: Option<Peer>,
    /// The send queue.
    pub send: WorkQueue,
    /// The oldest request of the send queue.
    pub oldest: Option<PostedRequest>,
    /// The receive queue; `None`: it takes from a shared one.
    pub receive: Option<WorkQueue>,
    /// The number of its shared receive queue in this account.
    pub shared_receive_queue: Option<u64>,
    /// Numbers of its completion queues in this account: of sends, of receives.
    pub completion_queues: [u64; 2],
    /// Bytes of payload in a packet.
    pub path_mtu: u32,
    /// PSN of the next new request.
    pub send_psn: u32,
    /// PSN of the next request that is expected.
    pub expected_psn: u32,
    /// The reason for which it has failed (FC000: none).
    pub reason: u16,
    /// What it has counted.
    pub counters: Counters,
}

/// The other end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Peer {
    /// Its number.
    pub number: u32,
    /// Its address.
    pub address: Text,
    /// Its process, where it is of this host and known.
    pub process: Option<u32>,
}

/// A queue of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkQueue {
    /// Requests it can hold.
    pub depth: u32,
    /// Requests in it: posted, and not ended yet.
    pub outstanding: u32,
}

/// A request of a send queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PostedRequest {
    /// The program's number of it.
    pub wr_id: u64,
    /// What it does.
    pub operation: Text,
    /// Bytes.
    pub length: u64,
    /// Packets of it have left.
    pub started: bool,
    /// Milliseconds for which the peer has had no receive for it; `None`: it doesn't wait for one.
    pub waits_for_receive: Option<u64>,
}

/// A completion queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompletionQueue {
    /// Its number in this account: the same as long as it exists.
    pub number: u64,
    /// Its device's name.
    pub device: Text,
    /// Completions it can hold.
    pub depth: u32,
    /// Completions that wait to be polled.
    pub filled: u32,
    /// The program has asked for an event that hasn't come: it may be asleep until then.
    pub armed: bool,
    /// A completion has found no room.
    pub overrun: bool,
}

/// A shared receive queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedReceiveQueue {
    /// Its number in this account: the same as long as it exists.
    pub number: u64,
    /// Its device's name.
    pub device: Text,
    /// Its receives.
    pub receive: WorkQueue,
    /// Below this an event is raised; 0: never.
    pub limit: u32,
}

/// A memory region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Region {
    /// Its key.
    pub key: u32,
    /// Its device's name.
    pub device: Text,
    /// The first byte, as requests name it.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Its rights: "local-write,remote-read"; empty: it may be read here.
    pub access: Text,
}

impl Process {
    /// The form in which it is sent.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Nothing in it has a form that JSON hasn't.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The snapshot that a process has sent; `None` if it isn't valid.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > LONGEST {
            return None;
        }
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests;
