//! `libferroce_rsocket_preload.so`: lets programs of sockets use rsockets, unmodified. It stands before the C library's functions
//! for sockets and passes on what isn't an rsocket.
//!
//! In here: which sockets become rsockets (`config`) and when (`forking`), the program's numbers of them (`numbers`), whose a thread is
//! (`inside`), and the functions. Out of here:
//! rsockets, which are librdmacm's.
//!
//! A socket that can't be an rsocket is an ordinary one. The number that a program gets is a copy of the rsocket's descriptor, so numbers
//! are given out by the kernel as always, which also polls them.

mod config;
mod counterparts;
mod forking;
mod inside;
mod numbers;
mod polling;
/// Public, as only a part of it is needed here.
#[path = "../../../preload/src/real.rs"]
pub mod real;
mod rsocket;
mod sockets;
mod stdio;
mod threads;
mod transfer;
