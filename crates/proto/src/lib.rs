//! The InfiniBand transport, sans-I/O: RC, XRC, UC and UD queue pairs as deterministic state machines.
//!
//! In here: requester, responder, completer, PSN arithmetic, RNR, retransmission, the send window.
//! Out of here: clocks, threads, sockets, memory, ABI. Time is a parameter, memory is a trait ([`Env`]),
//! packets come in through [`QpProtocol::handle_packet`] and go out through [`Env::transmit`].
//! What it keeps of a queue pair, and the vocabulary, is in `ferroce_qp_context`; the modules with functions (`requester`, `responder`,
//! `completer`, …) use that, and none of them imports another.
//! The same core serves every fabric: on a lossless one packets carry as much as the fabric likes.
#![forbid(unsafe_code)]

mod answers;
mod completer;
mod delegated;
mod execute;
mod fetch;
mod kept;
mod middles;
mod needs;
mod one_sided;
mod plain;
mod qp;
mod reasons;
mod repeat;
mod requester;
mod responder;
mod retransmit;
mod state;
mod tags;
mod uc;
mod ud;
mod unreliable;

/// The vocabulary of the functions here.
pub use ferroce_qp_context::{
    Buffer, Cause, Counters, Data, DataRef, DelegateError, Env, Executed, Failure, KeptPacket, KeptPackets,
    LEAST_ACK_TIMEOUT, LookedAt, MAX_MESSAGE, NeededMemory, NoReceive, Pace, Payload, PayloadSource,
    PlaceError, Portion, PostError, QpEvent, QpParams, RateLimit, ReceivedWhole, Refusing, RequestedAccess,
    SendEnds, SendOp, SendRequest, SendWr, SrqPlace, TagInfo, Taken, Telling, Throttle, TransmitError,
    UdTarget, Unanswered, Violation, Wqe, ack_timeout, rnr_delay,
};
pub use fetch::FetchOp;
pub use middles::{MiddlePlace, Middles};
pub use plain::PlainSend;
pub use qp::Oldest;
pub use state::QpProtocol;
pub use tags::MAX_RENDEZVOUS_REQUEST;

use ferroce_qp_context::psn;
