//! The adapter in the process, as the crate `ferroce` uses it.
//!
//! In here: devices, domains, completion queues and queue pairs of `ferroce_nic`, connections of `ferroce_connect`, with the errors and the memory of `ferroce_buffers`.
//! Out of here: the adapter (`ferroce_nic`), and the slots that own the memory of outstanding requests (`ferroce`).
//!
//! The `unsafe` that counts is the registration of memory. Its promise, that the adapter accesses memory as a Rust program may, is kept
//! by three parts: `buffers` keeps the memory mapped while it is registered and gives no reference to memory that is lent,
//! the slots in `ferroce` keep what an outstanding request names, and this crate ends registrations and queue pairs before
//! it returns.
#![deny(unsafe_code)]

mod cq;
mod device;
mod events;
mod failures;
mod library;
mod manager;
mod qp;
mod register;
mod srq;
mod window;

pub use cq::NativeCq;
pub use device::{NativeDevice, NativeDomain};
pub use manager::{NativeConnection, NativeListener};
pub use qp::{NativeAddress, NativeQp};
pub use srq::NativeSrq;
pub use window::NativeWindow;
