//! A simulated RDMA network: hosts with adapters, and the network between them, in one process and in virtual time.
//!
//! In here: [`World`], [`Host`], the adapters' objects ([`SimDomain`], [`SimCq`], [`SimQp`]), [`Faults`] of the network and
//! [`Licences`] of adapters by a seed, the [`Trace`] of what has happened, and threads that take turns ([`Program`]).
//! Out of here: the transport (`proto`), the communication manager (`cm`), memory (`buffers`), and the interface for programs (`ferroce`).
//!
//! Time stands still while a program runs. It moves on when all programs wait: to the arrival of the next packet, the next
//! timer, or the end of a wait. One program runs at a time, so equal seeds give equal traces.
#![forbid(unsafe_code)]

mod adapter;
mod capture;
mod chances;
mod current;
mod drive;
mod env;
mod explore;
mod faults;
mod frame;
mod host_manager;
mod keys;
mod licences;
mod life;
mod mail;
mod manager;
mod network;
mod objects;
mod placing;
mod planned;
mod programs;
mod random;
mod reasons;
mod report;
mod state;
mod stream;
mod trace;
mod unplaced;
mod wait;
mod world;

pub use drive::{Changed, Drive};
pub use explore::explore;
pub use faults::Faults;
pub use licences::Licences;
pub use mail::{Receiver, Sender};
pub use manager::{SimConnection, SimListener};
pub use objects::{SimAddress, SimCq, SimDomain, SimQp, SimSrq, SimWindow};
pub use programs::Program;
pub use stream::Stream;
pub use trace::{Trace, TraceEvent, What};
pub use world::{Disturbance, Host, Link, World};
