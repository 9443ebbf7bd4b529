//! Memory as the adapter sees it: protection domains, memory regions, keys.
//!
//! In here: who may touch which bytes.
//! Out of here: the touching itself (`ferroce_os::memory`), packets, queues, work requests.

mod async_event;
mod backing;
mod dm;
mod dmabuf;
mod keys;
mod listing;
mod mr;
mod mw;
mod null;
mod odp;
mod owner;
mod pd;
pub(crate) mod persist;
mod queue_memory;

pub use async_event::AsyncEvent;
pub(crate) use backing::Backing;
pub use dm::{Dm, MAX_DM};
pub(crate) use ferroce_os::memory::{Fault, atomic, copy, mappings_permit};
pub(crate) use keys::{KeyTable, KeyUser, MAX_MR, MAX_MW};
pub(crate) use listing::RegionListing;
pub(crate) use mr::MAX_MR_SIZE;
pub use mr::{Mr, MrAccess, MrInit};
pub use mw::{Mw, MwKind};
pub use odp::Prefetch;
pub(crate) use owner::Counted;
pub use owner::{ListedMr, Owner, is_same};
pub use pd::{MAX_PD, Pd, PdHold};
pub use queue_memory::{Given, QueueKind, QueueMemory};
