//! The `udp` fabric: RoCEv2 packets in and out of sockets, many per system call, captured and disturbed on demand.
//!
//! In here: receiving from the host's socket group (GRO), sending in trains (UDP_SEGMENT) with the ICRC, counters,
//! and the taps ([`tap`]).
//! Out of here: which process owns a QPN and where the sockets of a group come from, what packets mean (`wire`, `proto`), windows,
//! retransmission.
//!
//! # Order of calls
//! 1. [`Endpoint::new`] with the sockets of a local address, which the processes of a host share.
//! 2. For every slot the process owns: `endpoint.fd(slot & 63)` goes into the engine's `epoll`, and
//!    `endpoint.recv((slot & 63) as u8, f)` takes what has come. `f` gets [`ferroce_types::Datagram`]s; those whose
//!    [`ferroce_types::Datagram::dest_qpn`] isn't the process's own are for another process that shares the sockets.
//! 3. Per connected QP or address handle: [`Endpoint::dest`] once, then for every packet [`TxBatch::packet`], and at the
//!    end of each round of progress [`TxBatch::flush`].
//!
//! The receiving sockets are shared by all processes of the host whose slots have the same lowest six bits. They hold packets sent
//! before a slot changed its owner, and packets for other owners: the check of the QPN on receipt, not the steering, decides which
//! process a packet is for. A process that joins doesn't drain its sockets.
//!
//! Nothing here blocks, except a flush into a full socket buffer, which takes at most a millisecond. No call is a cancellation
//! point.

#![cfg_attr(not(test), forbid(unsafe_code))]

mod batch;
mod endpoint;
mod multicast;
mod receive;
mod returned;
mod send;
mod stats;
pub mod tap;
mod train;

pub use batch::{OutgoingTap, PushError, TxBatch, send_alone, send_at_once};
pub use endpoint::{Dest, Endpoint};
pub use multicast::GroupSocket;
pub use receive::RecvOutcome;
pub use receive::receiving_socket;
pub use stats::Stats;
pub use train::Flushed;
