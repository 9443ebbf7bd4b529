//! The vocabulary that the adapter's crates share: time, states and completions, memory as requests name it, errors of verbs calls,
//! asynchronous events, addresses of hosts, packets as they arrive, the layout of QPNs.
//!
//! In here: plain values, and what follows from a value alone.
//! Out of here: system calls, sockets and the kernel's structures (`os`), wire formats (`wire`), work requests and the
//! transport (`proto`). It depends on no crate of the workspace.
#![forbid(unsafe_code)]

mod async_event;
mod completion;
mod datagram;
mod error;
mod gid;
mod host_addr;
mod memory;
mod packet_meta;
mod qp_state;
mod qpn;
mod quota;
mod time;
mod unreachable;
mod users;

pub use async_event::AsyncEvent;
pub use completion::{Completion, TagFlags, WcOpcode, WcStatus, reason_of, vendor_err, wc_flag};
pub use datagram::Datagram;
pub use error::{Error, Result};
pub use gid::{gid_of, ip_of};
pub use host_addr::HostAddr;
pub use memory::{
    Access, AtomicOp, BindMw, Placement, RecvWqe, RemoteAccess, RemoteError, Sge, SgeList, one_sge, sge_list,
};
pub use packet_meta::{MAX_FLOW_LABEL, PacketMeta, is_adapter_port};
pub use qp_state::QpState;
pub use qpn::{GROUP_SIZE, QPNS_PER_SLOT, SLOTS, first_qpn, slot_of, steering_of};
pub use quota::{Quota, QuotaPlace};
pub use time::Instant;
pub use unreachable::Unreachable;
pub use users::Users;
