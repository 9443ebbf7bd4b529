//! Memory that an adapter reads and writes, for the safe crate `ferroce`.
//!
//! In here: [regions](Registration) of the program's memory, [buffers](Buffer) that are disjoint pieces of them, memory
//! [exposed](Exposed) to peers, the [slots] that own the memory of outstanding requests, and the errors of all of these.
//! Out of here: adapters, queue pairs (but for what they are made with).
//!
//! An adapter is a thread that Rust doesn't see. It reads the memory of a send until the completion, writes the memory of a
//! receive until the completion, and does what a peer's key permits until the key is invalid. Three rules keep that sound:
//!
//! - S1: memory stays mapped, unmoved and registered while a request names it. A [`Buffer`] holds its registration, and the
//!   [slots] own the buffers of outstanding requests.
//! - S5: the slots of a queue retire in order. An unsignalled request retires with a later completion.
//! - S7: all bytes up to the capacity of a buffer are initialised.
//!
//! A simulated adapter accesses memory by a [`Tap`], within the ranges that are lent to it: each region has a ledger of them. So
//! an access after the end of a loan is an error ([`NotLent`]) instead of undefined behaviour. An adapter that accesses memory
//! by its [address](AccessBy::Address) has no ledger.

mod borrowed;
mod buffer;
mod connection;
mod ended;
mod error;
mod event;
mod exposed;
mod frozen;
mod home;
mod mapping;
mod memory;
mod payload;
mod pool;
mod raced;
mod range;
mod region;
mod register;
mod remote;
mod results;
mod segment;
mod shelf;
pub mod slots;
mod sync;

pub use borrowed::{Borrows, borrowing};
pub use buffer::Buffer;
pub use connection::{ConnectedTo, ManagedPeer, ManagedQp, ManagerNews, QpAttributes, QpService};
pub use ended::{Ended, Polled, Stamp, Stamped};
pub use error::{Error, Failed, Fault, Kind, Result, Status};
pub use event::Event;
pub use exposed::{Exposed, Word};
pub use frozen::Frozen;
pub use mapping::{AccessBy, NotLent, Tap};
pub use memory::{Memory, RawMemory};
pub use payload::{Held, Inline, Lendable, Part, Parts, Payload, PayloadMut};
pub use pool::Pool;
pub use region::{Exposure, Registration};
pub use register::{alloc, register};
pub use remote::{Remote, Rights, rights};
pub use results::Results;
pub use segment::Segments;
pub use shelf::{MAX_SHELF, Shelf};
