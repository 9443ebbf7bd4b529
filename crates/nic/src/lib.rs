//! The adapter: verbs objects, and the choice of the fabric that carries their packets.
//!
//! In here: devices and contexts, QPs, AHs, XRC domains; how engine, fabrics and host are put together.
//! Out of here: which threads make progress (`ferroce_engine`), how packets travel (`ferroce_hostlink`, `ferroce_udp`), the host's other
//! processes (`ferroce_host`), the transport (`ferroce_proto`), memory and its keys (`ferroce_mem`), queues
//! (`ferroce_queues`), the C ABI (`capi`).
//!
//! Everything a program calls may be called from any thread. Nothing here is a cancellation point, blocks without a
//! bound (but for the acknowledgement of events that the man pages ask for), or runs in an exit handler.

#![cfg_attr(not(test), forbid(unsafe_code))]

#[cfg(test)]
extern crate self as ferroce_nic;

mod adapter;
mod addressing;
mod checker;
mod closing;
mod device;
mod drive;
mod ending;
mod fabric;
mod gids;
mod importing;
mod listed_regions;
mod opening;
pub mod path_mtu;
mod poll;
pub mod qp;
/// Public, as only a part of it is needed here.
#[cfg(test)]
#[path = "../tests/verbs/side.rs"]
pub mod side;
mod tracer;
mod watched;
mod xrc;

#[cfg(test)]
use ferroce_tests::inside as namespace;

pub use adapter::{Adapter, prepare_wait, progress_of_waiter};
pub use addressing::create_ah;
pub use closing::Leftovers;
pub use device::{Context, Device, DeviceLimits, DeviceNews, MAX_MESSAGE, OfContext, fail_devices, limits};
pub use ending::{come_back_to_network, has_network, leave_network};
pub use gids::gid_table;
pub use opening::{devices, start};
pub use poll::{Poll, read_comp_cntr};
pub use qp::{Poster, Qp, wait_for_work};
pub use xrc::{XrcTarget, Xrcd};
