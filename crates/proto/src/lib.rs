//! The InfiniBand transport, sans-I/O: RC, XRC, UC and UD queue pairs as deterministic state machines.
//!
//! In here: requester, responder, completer, PSN arithmetic, RNR, retransmission, the send window.
//! Out of here: clocks, threads, sockets, memory, ABI. Time is a parameter, memory is a trait ([`Env`]),
//! packets come in through [`QpProtocol::handle_packet`] and go out through [`Env::transmit`].
//! Order of the modules: `types`, `env` and `failure` are vocabulary; `state` contains all data of a queue pair; the modules with
//! functions (`requester`, `responder`, `completer`, …) use both, and none of them imports another.
//! The same core serves every fabric: on a lossless one packets carry as much as the fabric likes.
#![forbid(unsafe_code)]

mod answers;
mod completer;
mod counters;
mod delegated;
mod env;
mod execute;
mod failure;
mod fetch;
mod kept;
mod kept_packets;
mod middles;
mod one_sided;
mod pace;
mod plain;
mod psn;
mod qp;
mod rate;
mod reasons;
mod repeat;
mod requester;
mod responder;
mod retransmit;
mod rnr;
mod sendq;
mod state;
mod tags;
mod types;
mod uc;
mod ud;
mod unreliable;
mod window;

pub use counters::Counters;
pub use env::{
    Buffer, Env, NoReceive, Payload, PayloadSource, PlaceError, ReceivedWhole, TransmitError, Unanswered,
    Violation,
};
pub use failure::{Cause, Failure, Refusing, RequestedAccess, Telling};
pub use fetch::FetchOp;
pub use kept_packets::KeptPackets;
pub use middles::{MiddlePlace, Middles};
pub use pace::{Pace, Portion};
pub use plain::PlainSend;
pub use qp::{Oldest, RequestEnd};
pub use rate::{RateLimit, Throttle};
pub use retransmit::{LEAST_ACK_TIMEOUT, ack_timeout};
pub use rnr::rnr_delay;
pub use sendq::Wqe;
pub use state::QpProtocol;
pub use tags::MAX_RENDEZVOUS_REQUEST;
pub use types::{
    Data, DataRef, DelegateError, Executed, KeptPacket, MAX_MESSAGE, PostError, QpEvent, QpParams, SendOp,
    SendRequest, SendWr, SrqPlace, TagInfo, Taken, UdTarget,
};
