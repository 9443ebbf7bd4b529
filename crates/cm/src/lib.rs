//! The InfiniBand communication manager (IBTA volume 1, chapter 12), sans-I/O.
//!
//! In here: connections from REQ to time-wait, lookups of datagram services (SIDR), retransmission, duplicates, stale
//! connections.
//! Out of here: clocks, threads, sockets, QPs, ABI. Time is a parameter; MADs come in through [`Cm::handle`] and go out
//! through [`Cm::poll_transmit`].
//!
//! A MAD is answered by at most one of the same length, and what comes from a stranger is remembered only as long as a listener's
//! backlog has room. Nothing here panics, whatever comes.
#![forbid(unsafe_code)]

mod active;
mod claims;
mod cm;
mod connection;
mod ending;
mod lookup;
mod passive;
mod stray;
mod time;
mod types;

pub use claims::Claim;
pub use cm::{Cm, Config};
pub use stray::answer_for_nobody;
pub use types::{
    Accept, AddressedMad, AskedUser, CmError, Connect, ConnectionEvent, ConnectionQp, ConnectionRoute, Event,
    Handle, Listen, ListenerId, Lookup, LookupReply, Status,
};
