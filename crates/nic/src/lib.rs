//! A software RoCEv2 adapter in the process: verbs objects, the progress engine, the fabrics between QPs.
//!
//! In here: devices and contexts, PDs, MRs, CQs, SRQs, QPs, AHs, events; who makes progress; the host's other processes.
//! Out of here: wire formats (`ferroce_wire`), the transport (`ferroce_proto`), the C ABI (`capi`).
//! Everything a program calls may be called from any thread. Nothing here is a cancellation point, blocks without a
//! bound (but for the acknowledgement of events that the man pages ask for), or runs in an exit handler.

#[cfg(test)]
extern crate self as ferroce_nic;

mod ah;
mod closing;
mod comp_cntr;
mod cq;
mod device;
mod engine;
mod events;
mod gids;
pub mod mem;
#[cfg(test)]
#[path = "../tests/fabric/namespace.rs"]
mod namespace;
mod owner;
mod poll;
pub mod qp;
pub mod raw;
mod recv;
mod ring;
pub mod settings;
mod share;
mod shm;
#[cfg(test)]
#[allow(dead_code)] // The tests of verbs use all of it.
#[path = "../tests/verbs/side.rs"]
mod side;
mod xrc;

pub use ah::{Ah, MAX_AH};
pub use closing::Leftovers;
pub use comp_cntr::{CntrValue, CompCntr, CountedOp, Counts, MAX_COMP_CNTR};
pub use cq::{Alarm, CompChannel, Cq, CqInit, MAX_CQ, MAX_CQE, Network, Stamp, Tags, Wc};
pub use device::{Context, Device, DeviceLimits, LIMITS, MAX_MESSAGE, devices, fail_devices};
pub use engine::{WaitPlan, prepare_wait, progress_of_waiter};
pub use events::{AsyncEvent, EventQueue, Unacked};
pub use gids::gid_table;
pub use mem::{
    Dm, Given, ListedMr, MAX_DM, Mr, MrAccess, MrInit, Mw, MwKind, Owner, Pd, PdHold, Prefetch, QueueKind,
    QueueMemory,
};
pub use owner::OfContext;
pub use poll::{Poll, read_comp_cntr};
pub use qp::Qp;
pub use recv::{
    MAX_SGE, MAX_SRQ, MAX_TAG_OPS, MAX_TAGS, MAX_WR, NewSize, Srq, SrqAttr, TagEntry, TagOp, TagRequest,
};
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use shm::untrusted;
pub use xrc::{XrcTarget, Xrcd};

pub use ferroce_host as host;
pub(crate) use ferroce_host as rendezvous;
pub use ferroce_netdev as net;
pub use ferroce_netdev::{VENDOR_ID, VENDOR_PART_ID};
pub use ferroce_os::fork::{Inside, Unusable, enter, install as prepare_for_forks, outside};
pub use ferroce_os::{clock, sys};
pub(crate) use ferroce_os::{fork, room, sync};
pub(crate) use ferroce_types as error;
pub(crate) use ferroce_types as packet;
pub(crate) use ferroce_types as quota;
pub use ferroce_types::{Error, Result};
pub use ferroce_udp as udp;
pub use ferroce_udp::tap;

/// The transport's vocabulary, as far as callers need it.
pub use ferroce_proto::{
    Access, BindMw, Completion, Counters, Data, MAX_RENDEZVOUS_REQUEST, Placement, QpState, RecvWqe, SendOp,
    SendWr, Sge, SgeList, TagFlags, TagInfo, UdTarget, WcOpcode, WcStatus,
};
pub use ferroce_wire::Service;
