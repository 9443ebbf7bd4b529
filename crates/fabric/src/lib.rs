//! A data center in virtual time, under the transport: `cargo xtask bench fabric`.
//!
//! In here: a leaf-spine network with finite buffers, ECN marks and losses ([`Shape`], [`LinkSizes`]), hosts whose queue pairs are those of
//! `ferroce-proto` ([`World`]), and traffic with its results ([`Traffic`], [`RunOutcome`]). The transport under test is the one of the product;
//! payloads are lengths only. Not here: memory, the ring within a host and rdma_cm, which [`ferroce_proto::Env`] or `sim` simulate.
//! Equal seeds give equal runs.
#![forbid(unsafe_code)]

mod host;
mod network;
mod outcome;
mod traffic;
mod world;

pub use network::{LinkSizes, Shape};
pub use outcome::{RunOutcome, Totals};
pub use traffic::{Chances, Traffic, WriteFlow};
pub use world::{Law, World};
