//! Raw packet QPs (IBV_QPT_RAW_PACKET): whole Ethernet frames, sent and received through a packet socket, and the flows
//! that choose which frames which QP receives.
//!
//! In here: the QPs, work queues and receive-side scaling, flows and their counters, the sockets.
//! Out of here: the formats of headers (`ferroce_wire`), which threads read the sockets and when (`engine`).
//!
//! A raw QP is a tap on its interface: the kernel gets the frames too. A frame that a QP sends leaves through the interface,
//! and goes to the QPs of this host on the same interface whose flows match it as well, the sender among them.
//! A frame goes to every process by that process's own flows: none takes it away from another process.
#![forbid(unsafe_code)]

mod counters;
mod frame;
mod qp;
mod receive;
mod rss;
mod segment;
mod spec;
mod tso;
mod wq;

pub use counters::{CounterPoint, FlowCounters, MAX_COUNTERS};
pub use qp::{FlowInit, FlowKind, RawInit, RawQp, RawSend, SteeringFlow};
pub use rss::{HASH_KEY_LEN, IndTable, MAX_TABLE, MAX_TABLES, Rss, fields};
pub use spec::{Masked, Match, Spec};
pub use tso::{MAX_TSO, Tso};
pub use wq::{Wq, WqInit, WqState};
