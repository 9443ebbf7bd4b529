//! Access rights to memory: protection domains, memory regions and windows, and the keys that name them.
//!
//! In here: the table of keys, revoking, which waits for the copies under way, device memory, dma-bufs, prefetching.
//! Out of here: the touching itself (`ferroce_access`), queues and work requests, where other processes look up regions
//! ([`RegionListing`]), and what objects belong to ([`Owner`]).

mod backing;
mod dm;
mod dmabuf;
#[cfg(test)]
mod double;
mod in_flight;
mod indices;
mod keys;
mod last_user;
mod listing;
mod mapping;
mod mr;
mod mw;
mod null;
mod odp;
mod owner;
mod pd;
mod persist;
mod queue_memory;
mod register;
mod rights;
mod shortcut;

pub use backing::Backing;
pub use dm::{Dm, MAX_DM};
pub use in_flight::{InFlight, forget_requests_after_fork, place, place_atomically};
pub use indices::{MAX_MR, MAX_MW};
pub use keys::KeyTable;
pub use listing::RegionListing;
pub use mr::{HeldPages, Mr};
pub use mw::{Mw, MwKind};
pub use odp::Prefetch;
pub use owner::{CountedQueue, ListedObject, Owner, is_same};
pub use pd::{MAX_PD, Pd, PdHold};
pub use persist::write_back;
pub use queue_memory::{AllocatorAnswer, QueueKind, QueueMemory, ring_for};
pub use rights::{Denied, KeyUser, MAX_MR_SIZE, MrAccess, MrInit};
