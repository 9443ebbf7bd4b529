//! Where requests and completions wait: completion queues, receive queues, queues of events, and completion counters.
//!
//! In here: the queues, when a completion raises its event, tags that messages match, descriptors that are readable while there are
//! events.
//! Out of here: which thread makes progress, the clock for events that moderation delays ([`EventTimer`]), queue pairs and their
//! send queues.

mod comp_cntr;
mod cq;
mod events;
pub mod late;
mod limits;
mod recv;

pub use comp_cntr::{CntrValue, CompCntr, CompCntrType, CountedOp, MAX_COMP_CNTR, QpCntrs};
pub use cq::{CompChannel, Cq, CqFill, CqInit, EventTimer, MAX_CQ, Stamp, WcTags};
pub use events::{EventQueue, Unacked};
pub use limits::{Limits, LimitsOf, MAX_CQE, MAX_INLINE, MAX_RD_ATOMIC, MAX_SGE, MAX_WR};
pub use recv::{
    MAX_SRQ, MAX_TAG_OPS, MAX_TAGS, NewSize, NewSrq, RecvQueue, Srq, SrqAttr, SrqRegistration, TagEntry,
    TagOp, TagRequest,
};
