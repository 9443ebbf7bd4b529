//! Memory that may be gone when it is touched: the program's, that of other processes, and what is shared with them.
//!
//! In here: copies, with or without a CRC-32 of what they copy, and atomics that fail instead of faulting; mappings that processes share, which process it is.
//! Out of here: who may touch which bytes, and what they mean.

pub mod atomic;
mod cookie;
pub mod copy;
mod fault;
mod guard;
mod mappings;
mod peer_memory;
mod peer_view;
pub mod poison;
mod shared;
pub mod summed;
mod words;

pub use cookie::Cookie;
pub use fault::Fault;
pub use guard::OwnFaults;
pub use mappings::{Mapped, mapped};
pub use peer_memory::PeerMemory;
pub use peer_view::PeerView;
pub use shared::{SharedMemory, SharedPlace, SharedWords};
pub use words::{layout, layout_of_field};
