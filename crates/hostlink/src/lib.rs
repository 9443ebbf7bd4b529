//! The `shm` fabric: packets, and memory accesses without packets, between processes of one host.
//!
//! In here: the memory that two processes share and its contents (rings of cells, a directory of accessible objects),
//! how they introduce themselves, and copies between them.
//! Out of here: which QP uses which fabric, and which thread reads the rings when (`engine`); names and sockets (`host`).
//!
//! A *link* joins two processes: one memfd with a ring each way, made by the process that has something to send first.
//! A packet is a cell of one line, with bulk beside it where a line is too short: the transport headers as on the wire and up to 64 KiB of
//! payload. Packets of a connection that both ends know have compact headers instead. A large payload of a SEND stays in the sender's memory,
//! from which the receiver copies it. No byte is changed on the way, so there is no ICRC,
//! and a cell is given back when it has been executed. RC loses nothing; UC and UD do when a ring has been full for 100 ms.
//!
//! An RDMA WRITE or READ needs no packet while its QP has no other outstanding request: the initiator looks up region and QP in the
//! target's *directory* and copies, in memory that both have mapped or by the kernel. A target that watches its ring gets a packet
//! all the same. An *access word* names the region and the QP that an initiator uses; a process that withdraws either waits for the
//! words that name it.
//!
//! A plain SEND is acknowledged by the result of its cell, a word of the receiver, without a packet.
//!
//! A sleeping thread is woken by a byte over the link's connection.
//!
//! No peer is trusted: bytes that a peer writes into shared memory can break its own link, and nothing else. When a process
//! dies, however it dies, its connection is closed: the packets that it has left are executed, then its link ends.
#![forbid(unsafe_code)]

mod cells;
mod compact;
mod directory;
mod hello;
mod limits;
mod link;
mod links;
mod own;
mod payload;
mod protocol;
mod record;
mod revocation;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod untrusted;

pub use compact::{CompactHeaders, MemoryOffer};
pub use directory::{Directory, ListedQp, ListedRegion, Purpose, QpnPair};
pub use hello::LAYOUT;
pub use link::{
    ArrivalMark, LARGE, Link, LinkPeer, OfferedPayload, PeerAccess, Receive, RecordRun, SendOutcome,
    SentPacket, Unserved, is_large,
};
pub use links::{LinkRefusal, LinkWithWork, Links};
pub use own::own_directory;
pub use payload::{RingBytes, ShmPayload};
pub use protocol::{Attention, Bell};
pub use record::{CompactRecord, MAX_PAYLOAD, Record, RingRecord};
pub use revocation::{RevokedQp, revoke_qp, revoke_region, withdraw_qp, withdraw_region};

use ferroce_access::PeerMemory;

/// What [`protocol`] is made of, which its models replace.
mod sync {
    pub(crate) use ferroce_access::shared_words;
    pub(crate) use ferroce_os::sync::{AtomicU64, Ordering, fence};
}
