//! The vocabulary that the adapter's crates share: errors of verbs calls, asynchronous events, addresses of hosts, packets as they
//! come, the layout of QPNs.
//!
//! In here: plain values, and what follows from a value alone.
//! Out of here: system calls, sockets and the kernel's structures (`os`), wire formats (`ferroce_wire`), the transport
//! (`ferroce_proto`).
#![forbid(unsafe_code)]

mod async_event;
mod datagram;
mod error;
mod gid;
mod host_addr;
mod packet;
mod qpn;
mod quota;
mod unreachable;
mod users;

pub use async_event::AsyncEvent;
pub use datagram::Datagram;
pub use error::{Error, Result};
pub use gid::{gid_of, ip_of};
pub use host_addr::HostAddr;
pub use packet::{Grh, MAX_FLOW_LABEL, PacketMeta, is_adapter_port};
pub use qpn::{GROUP_SIZE, QPNS_PER_SLOT, SLOTS, first_qpn, slot_of, steering_of};
pub use quota::{Quota, QuotaPlace};
pub use unreachable::Unreachable;
pub use users::Users;
