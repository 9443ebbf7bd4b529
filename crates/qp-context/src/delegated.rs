//! The requests that another process executes for this queue pair.

use ferroce_types::Instant;
use std::collections::VecDeque;

/// Requests that are being executed by another process, oldest first; each takes one PSN.
#[derive(Debug, Default)]
pub struct Delegated {
    /// All of them.
    pub requests: VecDeque<DelegatedRequest>,
    /// Bytes of their payload.
    pub bytes: usize,
    /// The number of the run; what an earlier run still brings is dropped.
    pub run: u32,
    /// A packet was missing. The NAK acknowledges all requests before it, so it is sent when they are done.
    pub nak: bool,
    /// If the process gives no result until then, the initiator is asked for time.
    pub patient_until: Option<Instant>,
    /// All requests that have come while something waited for the process have extended PSNs below this.
    pub come: u64,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct DelegatedRequest {
    /// The requester wants an acknowledgement.
    pub ack_request: bool,
    /// It is an atomic.
    pub atomic: bool,
    /// It is the last packet of its message.
    pub ends: bool,
    /// Bytes of its payload.
    pub bytes: usize,
}

impl Delegated {
    /// How many there are.
    pub fn len(&self) -> u64 {
        self.requests.len() as u64
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// How many of them are atomics.
    pub fn atomics(&self) -> usize {
        self.requests.iter().filter(|request| request.atomic).count()
    }

    /// Forgets them all, and what they still bring.
    pub fn end_run(&mut self) {
        *self = Self { run: self.run.wrapping_add(1), ..Self::default() };
    }
}
