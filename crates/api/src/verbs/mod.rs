//! The objects of an RDMA adapter. The program polls for completions, or waits for them; there are no futures in here.
//!
//! [`Device::native`] has a thread of its own, which receives packets while no thread of the program polls or waits.
//!
//! A queue pair is made in two steps. A [`Builder`] makes a [`Setup`], which takes receives and has an [`Endpoint`] for the
//! peer. With the peer's endpoint it becomes a [`Qp`], which takes requests. Requests are values ([`Send`], [`SendTo`], [`Write`],
//! [`Read`], [`FetchAdd`], [`CompareSwap`], [`Lend`]) that own their memory until the completion gives it back.
//!
//! Each request has exactly one completion, with the tag that the program has chosen. The completion of a
//! [quiet](Send::quiet) request comes together with that of a later one.
//!
//! A peer's memory is named by a [`Remote`](crate::Remote) token, whose type has the rights:
//!
//! ```
//! use ferroce::sim::World;
//! use ferroce::verbs::{Device, FetchAdd, Operated, Write};
//! use ferroce::{Inline, rights};
//!
//! # fn main() -> ferroce::Result<()> {
//! let world = World::new(1);
//! let [a, b] = ["a", "b"].map(|name| Device::simulated(&world.host(name)));
//! let (a, b) = (a.open()?, b.open()?);
//! let (mut a_cq, b_cq) = (a.cq(16)?, b.cq(16)?);
//! let a_setup = a.rc(&a_cq).send_depth(8).recv_depth(0).build()?;
//! let b_setup = b.rc(&b_cq).send_depth(0).recv_depth(0).build()?;
//! let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
//! let mut a_qp = a_setup.connect(&b_end)?;
//! let _b_qp = b_setup.connect(&a_end)?;
//!
//! let counters = b.alloc(64)?.expose(rights::All)?;
//! let token = counters.token();
//! a_qp.post(1, Write::new(Inline::from(&7_u64.to_ne_bytes()), token.slice(..8)).quiet())?;
//! a_qp.post(2, FetchAdd::new(token.slice(..8), 3))?;
//! a_cq.wait(None)?;
//! let mut ended = a_cq.poll()?;
//! while let Some(completion) = ended.next() {
//!     completion.result()?;
//!     if completion.what() == Operated::Atomic {
//!         assert_eq!(completion.value(), Some(7));
//!     }
//! }
//! assert_eq!(counters.word(0).load(), 10);
//! let memory = counters.revoke(); // from here on the token leads nowhere
//! assert_eq!(memory[..8], 10_u64.to_ne_bytes());
//! # Ok(())
//! # }
//! ```
//!
//! Memory comes back whatever happens. A program that gives up waiting aborts the queue pair:
//!
//! ```
//! # use ferroce::sim::World;
//! # use ferroce::verbs::{Device, Read};
//! # use ferroce::{Status, rights};
//! # use std::time::Duration;
//! # fn main() -> ferroce::Result<()> {
//! # let world = World::new(1);
//! # let (a, b) = (world.host("a"), world.host("b"));
//! # let cable = b.clone();
//! # let (a, b) = (Device::simulated(&a).open()?, Device::simulated(&b).open()?);
//! # let (mut cq, b_cq) = (a.cq(16)?, b.cq(16)?);
//! # let a_setup = a.rc(&cq).build()?;
//! # let b_setup = b.rc(&b_cq).build()?;
//! # let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
//! # let mut qp = a_setup.connect(&b_end)?;
//! # let _b_qp = b_setup.connect(&a_end)?;
//! # let exposed = b.alloc(4096)?.expose(rights::Read)?;
//! # let token = exposed.token();
//! # cable.unplug();
//! qp.post(1, Read::new(a.alloc(4096)?, token))?;
//! if !cq.wait(Some(Duration::from_millis(50)))? {
//!     qp.abort();
//!     let mut ended = cq.next(None)?.unwrap();
//!     assert_eq!(ended.result().unwrap_err().status(), Status::Flushed);
//!     let buffer = ended.take().buffer().unwrap(); // a late answer doesn't write it
//!     assert_eq!(buffer.capacity(), 4096);
//! }
//! # Ok(())
//! # }
//! ```

mod address;
pub(crate) mod backend;
mod batch;
mod builder;
mod core;
mod cq;
mod device;
mod endpoint;
mod events;
mod extra;
mod loans;
mod ops;
mod posting;
mod qp;
mod scope;
mod slots;
mod srq;

pub use address::Address;
pub use batch::Batch;
pub use builder::Builder;
pub use cq::{AnyCq, Completion, Completions, Cq, Operated};
pub use device::{Device, Domain, Limits};
pub use endpoint::Endpoint;
pub use events::Events;
pub use extra::{Extra, Timestamp, WallClock};
pub use ferroce_buffers::Event;
pub use loans::Loan;
pub use ops::{CompareSwap, FetchAdd, Lend, Operation, Read, Send, SendTo, Write};
pub use qp::{Qp, RcQp, Setup, UcQp, UdQp};
pub use scope::Scope;
pub(crate) use slots::Entry;
pub use srq::Srq;

/// The transport service of a queue pair.
pub trait Transport: sealed::Transport + 'static {}

/// A reliable connection (RC): requests complete in order, or the connection fails.
#[derive(Clone, Copy, Debug)]
pub enum Reliable {}

impl Transport for Reliable {}

/// An unreliable connection (UC): what the network loses is lost.
#[derive(Clone, Copy, Debug)]
pub enum Unreliable {}

impl Transport for Unreliable {}

/// Datagrams (UD): messages of one packet, to and from any queue pair that knows the Q_Key.
#[derive(Clone, Copy, Debug)]
pub enum Datagram {}

impl Transport for Datagram {}

/// A transport service with a peer.
pub trait Connected: Transport {}

impl Connected for Reliable {}
impl Connected for Unreliable {}

mod sealed {
    use ferroce_buffers::QpService;

    pub trait Transport {
        const SERVICE: QpService;
    }

    impl Transport for super::Reliable {
        const SERVICE: QpService = QpService::Reliable;
    }

    impl Transport for super::Unreliable {
        const SERVICE: QpService = QpService::Unreliable;
    }

    impl Transport for super::Datagram {
        const SERVICE: QpService = QpService::Datagram;
    }
}
