//! Taps: what looks at packets, or meddles with them, between the transport and a fabric.
//!
//! In here: the packet capture ([`capture`], `FERROCE_CAPTURE`) and fault injection ([`fault`], `FERROCE_FAULT`).
//! Out of here: where packets come from and go to; a fabric calls these and does what they say.
//! Both cost one load and a branch when they are off, and neither holds a lock, so that `fork` is safe at any time.

pub mod capture;
pub mod fault;
mod from_env;
mod synthesis;

/// Which way a packet goes, seen from this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}
