//! The QP context: what the transport keeps of a queue pair as plain data, and what it asks of its environment.
//!
//! In here: the send queue, PSNs, timers' times, the window, answers that are owed, packets that are kept, why requests fail, [`Env`].
//! Out of here: what becomes of a packet, a request or a timeout (`ferroce_proto`).
#![forbid(unsafe_code)]

mod answers;
mod counters;
mod delegated;
mod env;
mod failure;
mod kept;
mod kept_packets;
mod message;
mod pace;
pub mod psn;
mod rate;
mod recovery;
mod refusal;
mod requester;
mod responder;
mod sendq;
mod tagged;
mod timers;
mod types;
mod window;

pub use answers::{Answer, Answers, Atomic, Owed, Range, Read};
pub use counters::Counters;
pub use delegated::{Delegated, DelegatedRequest};
pub use env::{
    Buffer, Env, LookedAt, NeededMemory, NoReceive, Payload, PayloadSource, PlaceError, ReceivedWhole,
    SendEnds, TransmitError, Unanswered, Violation,
};
pub use failure::{Cause, Failure, Refusing, RequestedAccess, Telling};
pub use kept::{GapReport, KEPT_RANGE, KeptNumbers, PsnSet};
pub use kept_packets::KeptPackets;
pub use message::{MessageProgress, begins, ends};
pub use pace::{Pace, Portion};
pub use rate::{RateLimit, Throttle};
pub use recovery::{LastRepeat, LostPacket, Recovery};
pub use refusal::NakReason;
pub use requester::{Requester, SMALLEST_CHARGE, Sample, UnsureSample, charge};
pub use responder::Responder;
pub use sendq::{Issuer, SendQueue, Wqe};
pub use tagged::Tagged;
pub use timers::{LEAST_ACK_TIMEOUT, ack_timeout, rnr_delay};
pub use types::{
    Data, DataRef, DelegateError, Executed, KeptPacket, MAX_MESSAGE, PostError, QpEvent, QpParams, SendOp,
    SendRequest, SendWr, SrqPlace, TagInfo, Taken, UdTarget,
};
pub use window::Window;
