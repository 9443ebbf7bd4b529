//! The objects of an RDMA adapter. The program polls for completions; there are no futures and no threads in here.
//!
//! A queue pair is made in two steps. A [`Builder`] makes a [`Setup`], which takes receives and has an [`Endpoint`] for the
//! peer. With the peer's endpoint it becomes a [`Qp`], which takes requests. Requests are values ([`Send`], [`Write`],
//! [`Read`], [`FetchAdd`], [`CompareSwap`]) that own their memory until the completion gives it back.
//!
//! Each request has exactly one completion, with the tag that the program has chosen. The completion of a
//! [quiet](Send::quiet) request comes together with that of a later one.

mod builder;
mod core;
mod cq;
mod device;
mod endpoint;
mod ops;
mod qp;

pub use builder::Builder;
pub use cq::{Completion, Completions, Cq, Operated};
pub use device::{Device, Domain, Limits};
pub use endpoint::Endpoint;
pub use ops::{CompareSwap, FetchAdd, Operation, Read, Send, Write};
pub use qp::{Qp, RcQp, Setup};

/// The transport service of a queue pair.
pub trait Transport: sealed::Transport + 'static {}

/// A reliable connection (RC): requests complete in order, or the connection fails.
#[derive(Clone, Copy, Debug)]
pub enum Reliable {}

impl Transport for Reliable {}

mod sealed {
    pub trait Transport {}
    impl Transport for super::Reliable {}
}
