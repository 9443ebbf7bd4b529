//! The InfiniBand transport, sans-I/O: RC, UC and UD queue pairs as deterministic state machines.
//!
//! In here: requester, responder, completer, PSN arithmetic, RNR, retransmission, the send window.
//! Out of here: clocks, threads, sockets, memory, ABI. Time is a parameter, memory is a trait ([`Env`]),
//! packets come in through [`handle_packet`] and go out through [`Env::transmit`].
//! The same core serves every fabric: on a lossless one the path MTU is unlimited and a message is one packet.
#![forbid(unsafe_code)]

mod env;
mod time;
mod types;

pub use env::{Env, Payload, RemoteAccess, RemoteError, Source, TransmitError};
pub use time::Instant;
pub use types::{
    Access, AtomicOp, Completion, Data, PostError, QpEvent, QpParams, QpState, RecvWqe, SendOp, SendWr, Sge,
    SgeList, UdTarget, WcOpcode, WcStatus,
};
