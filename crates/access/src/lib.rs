//! Memory that may be unmapped when it is accessed: the program's, that of other processes, and memory shared with them.
//!
//! In here: copies, with or without a CRC-32 of the copied bytes, and atomics, which return an error instead of faulting; mappings
//! that processes share; identifying a process. Out of here: access rights, and the meaning of the bytes.

pub mod atomic;
mod cookie;
pub mod copy;
mod fault;
mod guard;
mod late;
mod mappings;
mod pagemap;
pub mod pages;
mod peer_memory;
mod peer_pages;
mod peer_view;
pub mod poison;
mod proc_file;
mod seen;
mod shared;
pub mod summed;
mod userfaultfd;
mod words;

pub use cookie::Cookie;
pub use fault::Fault;
pub use guard::OwnFaults;
pub use late::NotedRanges;
pub use mappings::{MappedRange, mapped};
pub use peer_memory::{MOST_RANGES, PeerMemory, PeerRead};
pub use peer_pages::{PeerPages, PeerRegion};
pub use peer_view::PeerView;
pub use shared::{SharedMemory, SharedPlace, SharedWords};
pub use words::{layout, layout_of_field};
