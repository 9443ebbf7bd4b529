//! RDMA verbs in safe Rust: on an adapter in the process, on the machine's adapters, and on a simulated network.
//!
//! [`verbs`] has the objects of an RDMA adapter: devices, domains, queue pairs, completion queues. Memory is passed by value:
//! a posted [`Buffer`] belongs to the queue pair until its completion, so neither a timeout, nor a panic, nor a peer can
//! corrupt memory that the program uses.
//!
//! A program gets its [`Device`](verbs::Device) from its caller or from one of these, and does the same on each:
//!
//! | device | feature | where it is |
//! |---|---|---|
//! | [`Device::native`](verbs::Device::native) | `native` | Ferroce's adapter in this process. Peers are queue pairs of this process, of others of the host, and of other hosts (RoCEv2). |
//! | [`Device::system`](verbs::Device::system) | `system` | A device of the machine's `libibverbs.so.1`: an RDMA adapter, or `rdma_rxe`. |
//! | [`Device::simulated`](verbs::Device::simulated) | `sim` | A host of a [simulation](sim). |
//!
//! This version has reliable connections (RC) with SEND, WRITE, READ and atomics, unreliable ones (UC), datagrams (UD), shared
//! receive queues, memory that is [lent](verbs::Lend) to a peer, and [scopes](verbs::Qp::scope) of borrowed memory. [`session`] has
//! connections whose requests are futures, on any runtime or without one, and [`cm`] makes them by address, on all devices but
//! [`Device::system`](verbs::Device::system). Queue pairs of the system's devices are connected by the RoCEv2 addresses in their
//! endpoints, so [`open`](verbs::Device::open) refuses a device whose link layer is InfiniBand.
//!
//! # A test
//!
//! [`sim`] has hosts, adapters and a network in one process and in virtual time. A test of a distributed program is an
//! ordinary test: it needs no adapter, no kernel module and no privilege. Equal seeds give equal runs.
//!
//! ```
//! use ferroce::sim::{Faults, explore};
//! use ferroce::verbs::{Device, Send};
//!
//! # fn main() {
//! explore(0..10, |world| {
//!     world.faults(Faults { loss: 0.1, ..Faults::default() });
//!     let (client, server) = (world.host("client"), world.host("server"));
//!     let a = Device::simulated(&client).open().unwrap();
//!     let b = Device::simulated(&server).open().unwrap();
//!     let (mut a_cq, mut b_cq) = (a.cq(16).unwrap(), b.cq(16).unwrap());
//!     let a_setup = a.rc(&a_cq).build().unwrap();
//!     let mut b_setup = b.rc(&b_cq).build().unwrap();
//!     b_setup.recv(1, b.alloc(64).unwrap()).unwrap();
//!     // Between hosts, the endpoints go over a connection of another kind.
//!     let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
//!     let mut a_qp = a_setup.connect(&b_end).unwrap();
//!     let _b_qp = b_setup.connect(&a_end).unwrap();
//!
//!     let mut hello = a.alloc(64).unwrap();
//!     hello.fill(b"hello");
//!     a_qp.post(2, Send::new(hello)).unwrap();
//!     let mut received = b_cq.next(None).unwrap().unwrap();
//!     received.result().unwrap();
//!     assert_eq!(&received.take().buffer().unwrap()[..], b"hello");
//!     assert_eq!(a_cq.next(None).unwrap().unwrap().tag(), 2);
//! });
//! # }
//! ```
//!
//! On a device of this process, the lines from `open` on are the same, with [`Device::native`](verbs::Device::native) for both.
//! `examples/greet.rs` is a program of two processes.
//!
//! # Unsafe code
//!
//! `unsafe` is left to users in three places: implementations of [`Memory`], [`RawMemory::new`], and [`Exposed::quiet`].
#![forbid(unsafe_code)]

pub mod cm;
pub mod session;
#[cfg(feature = "sim")]
pub mod sim;
pub mod verbs;

pub use ferroce_buffers::{
    Buffer, Error, Exposed, Failed, Fault, Frozen, Inline, Kind, Memory, Part, Parts, Payload, PayloadMut,
    Pool, RawMemory, Remote, Result, Rights, Status, Word, rights,
};

/// The code blocks of the README.
#[cfg(all(doctest, feature = "native", feature = "sim"))]
#[doc = include_str!("../README.md")]
struct Readme;
