//! What has happened, in order.

use ferroce_wire::Operation;
use std::fmt;
use std::time::Duration;

/// Something that has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// The virtual time since the world began.
    pub at: Duration,
    /// What it is.
    pub what: What,
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum What {
    /// A packet has left.
    Sent {
        /// The host that has sent it.
        from: String,
        /// The host that it goes to.
        to: String,
        /// The destination QPN.
        qpn: u32,
        /// What the packet is.
        operation: Operation,
        /// Its PSN.
        psn: u32,
        /// Bytes of payload.
        len: usize,
        /// How often it will arrive: 0 is lost.
        copies: u8,
    },
    /// A packet has arrived.
    Arrived {
        /// The host.
        at: String,
        /// The destination QPN.
        qpn: u32,
        /// What the packet is.
        operation: Operation,
        /// Its PSN.
        psn: u32,
    },
    /// A packet has arrived with a wrong checksum.
    Dropped {
        /// The host.
        at: String,
        /// The destination QPN.
        qpn: u32,
        /// What the packet is.
        operation: Operation,
        /// Its PSN.
        psn: u32,
    },
    /// A fault that the seed has chosen: of the network, or a licence that an adapter has used.
    Fault {
        /// Its number in this run.
        number: u64,
        /// What it is.
        what: String,
    },
    /// A host has crashed, restarted, stopped or gone on.
    Host {
        /// The host.
        at: String,
        /// What has happened to it.
        what: String,
    },
    /// The network was partitioned or healed.
    Network {
        /// What has happened to it.
        what: String,
    },
    /// A completion was added to a CQ.
    Completed {
        /// The host.
        at: String,
        /// The QPN.
        qpn: u32,
        /// The request's number.
        wr_id: u64,
        /// The status, as `enum ibv_wc_status` has it.
        status: u32,
    },
    /// A program goes on.
    Runs {
        /// Its name.
        program: String,
    },
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>14.9} ", self.at.as_secs_f64())?;
        match &self.what {
            What::Sent { from, to, qpn, operation, psn, len, copies } => {
                write!(f, "{from} -> {to} {qpn:#x} {operation:?} PSN {psn:#x}, {len} bytes")?;
                match copies {
                    0 => f.write_str(", lost"),
                    1 => Ok(()),
                    copies => write!(f, ", {copies} copies"),
                }
            }
            What::Arrived { at, qpn, operation, psn } => {
                write!(f, "{at} {qpn:#x} receives {operation:?} PSN {psn:#x}")
            }
            What::Dropped { at, qpn, operation, psn } => {
                write!(f, "{at} {qpn:#x} drops {operation:?} PSN {psn:#x}, which is damaged")
            }
            What::Fault { number, what } => write!(f, "fault {number}: {what}"),
            What::Host { at, what } => write!(f, "{at} {what}"),
            What::Network { what } => write!(f, "the network {what}"),
            What::Completed { at, qpn, wr_id, status } => {
                write!(f, "{at} {qpn:#x} completes {wr_id:#x}, status {status}")
            }
            What::Runs { program } => write!(f, "{program} runs"),
        }
    }
}

/// All that has happened in a world, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace(pub Vec<TraceEvent>);

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|event| writeln!(f, "{event}"))
    }
}
