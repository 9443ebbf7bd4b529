//! The `udp` fabric's sockets: RoCEv2 packets in and out, many per system call.
//!
//! In here: receiving from the host's socket group (GRO), sending in trains (UDP_SEGMENT) with the ICRC, counters.
//! Out of here: who owns which QPN and where the sockets come from (`rendezvous`), what packets mean (`wire`, `proto`),
//! windows, retransmission.
//!
//! # Order of calls
//! 1. [`crate::rendezvous::Rendezvous::endpoint`] gives the [`Endpoint`] of a local address.
//! 2. For every slot the process owns: `endpoint.fd(slot & 63)` goes into the engine's `epoll`, and
//!    `endpoint.recv((slot & 63) as u8, f)` takes what has come. `f` gets [`Datagram`]s; those whose
//!    [`Datagram::dest_qpn`] isn't the process's own go to [`crate::rendezvous::Rendezvous::forward`].
//! 3. Per connected QP or address handle: [`Endpoint::dest`] once, then for every packet [`TxBatch::packet`], and at the
//!    end of each round of progress [`TxBatch::flush`].
//!
//! The receiving sockets are shared by all processes of the host whose slots have the same lowest six bits. They hold
//! packets sent before a slot changed its owner, and packets for other owners: the check of the QPN on receipt, not the
//! steering, decides whom a packet is for. Nobody drains a socket on joining.
//!
//! Nothing here blocks, but a flush into a full socket buffer, which takes at most a millisecond. No call is a
//! cancellation point.

mod batch;
mod datagram;
mod endpoint;
mod multicast;
mod receive;
mod send;
mod stats;

pub use batch::{Flushed, PushError, TxBatch};
pub(crate) use batch::{Outlet, send_alone};
pub use datagram::Datagram;
pub(crate) use datagram::{RECORD_HEADER, decode, encode};
pub(crate) use endpoint::large_buffer;
pub use endpoint::{Dest, Endpoint};
pub(crate) use multicast::GroupSocket;
pub use receive::Received;
pub(crate) use receive::receiving_socket;
pub use stats::Stats;
pub(crate) use stats::{OncePerSecond, milliseconds};

pub use ferroce_types::{GROUP_SIZE, HostAddr, steering_of};
