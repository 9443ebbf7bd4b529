//! The InfiniBand communication manager (IBTA volume 1, chapter 12), sans-I/O.
//!
//! In here: connections from REQ to time-wait, lookups of datagram services (SIDR), retransmission, duplicates, stale
//! connections.
//! Out of here: clocks, threads, sockets, QPs, ABI. Time is a parameter; MADs come in through [`Cm::handle`] and go out
//! through [`Cm::poll_transmit`].
#![forbid(unsafe_code)]

mod types;

pub use types::{Accept, Answer, Connect, Error, Handle, Lookup, QpParams, Route};
