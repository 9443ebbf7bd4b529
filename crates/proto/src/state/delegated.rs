//! The requests that another process executes for this queue pair.

use ferroce_types::Instant;
use std::collections::VecDeque;

/// Requests that are being executed by another process, oldest first; each takes one PSN.
#[derive(Debug, Default)]
pub(crate) struct Delegated {
    pub(crate) requests: VecDeque<DelegatedRequest>,
    pub(crate) bytes: usize,
    pub(crate) run: u32,
    /// A packet was missing. The NAK acknowledges all requests before it, so it is sent when they are done.
    pub(crate) nak: bool,
    /// If the process gives no result until then, the initiator is asked for time.
    pub(crate) patient_until: Option<Instant>,
    /// All requests that have come while something waited for the process have extended PSNs below this.
    pub(crate) come: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DelegatedRequest {
    pub(crate) ack_request: bool,
    pub(crate) atomic: bool,
    pub(crate) ends: bool,
    pub(crate) bytes: usize,
}

impl Delegated {
    pub(crate) fn len(&self) -> u64 {
        self.requests.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn atomics(&self) -> usize {
        self.requests.iter().filter(|request| request.atomic).count()
    }

    /// Forgets them all, and what they still bring.
    pub(crate) fn end_run(&mut self) {
        *self = Self { run: self.run.wrapping_add(1), ..Self::default() };
    }
}
