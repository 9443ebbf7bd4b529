//! The machine's `libibverbs.so.1`, as the crate `ferroce` uses it: adapters, `rdma_rxe`, or Ferroce's own library.
//!
//! In here: loading the library, and devices, domains, completion queues and queue pairs of it, with the errors and the memory of
//! `ferroce_buffers`.
//! Out of here: the structures of its ABI (`ferroce_abi`), and the slots that own the memory of outstanding requests (`ferroce`).
//!
//! The library isn't linked: a binary starts on a machine without it. The library and its provider are trusted to end a request, a
//! registration and a queue pair when they report that. What a completion contains is checked by `ferroce` before it is believed.
//!
//! Handles of a fork's child belong to the parent: the child calls nothing for them.

mod cq;
mod device;
mod elements;
mod events;
mod failures;
mod library;
mod qp;
mod register;
mod srq;
mod window;

pub use cq::SystemCq;
pub use device::{SystemDevice, SystemDomain};
pub use qp::{SystemAddress, SystemQp};
pub use srq::SystemSrq;
pub use window::SystemWindow;
