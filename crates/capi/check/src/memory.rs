//! The memory of requests, from when they are posted until the program polls their completion (`--check=memory`).

use super::found;
use ferroce_explain::Finding;
use ferroce_parts::settings;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory that a request names; empty where memory isn't checked.
#[derive(Debug, Default)]
pub struct Buffers {
    /// The adapter writes there: a receive, an RDMA READ, an atomic.
    filled: bool,
    parts: Vec<ferroce_mem::InFlight>,
}

impl Buffers {
    /// Those of a request that is about to be posted to a queue of `pd`. `list` gives its elements; they are asked for only if memory is
    /// looked at.
    pub fn begin(pd: &ferroce_mem::Pd, filled: bool, list: impl FnOnce() -> ferroce_types::SgeList) -> Self {
        if !settings::checks_memory() {
            return Self::default();
        }
        Self { filled, parts: ferroce_mem::InFlight::begin(pd.id(), &list(), filled) }
    }

    /// Whether the request names no memory.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

/// Which findings about a queue pair's memory were reported.
#[derive(Debug, Default)]
pub(super) struct ToldMemory {
    sent: AtomicBool,
    filled: AtomicBool,
}

impl ToldMemory {
    /// The program polls a request's completion: reports, once, if it has written to the memory before.
    pub(super) fn compare(&self, name: impl FnOnce() -> String, wr_id: u64, buffers: &Buffers) {
        let Some((addr, length)) = buffers.parts.iter().find_map(ferroce_mem::InFlight::written) else {
            return;
        };
        let (told, number) = if buffers.filled { (&self.filled, 109) } else { (&self.sent, 108) };
        if !told.swap(true, Ordering::Relaxed) {
            let last = addr + length as u64 - 1;
            let known = format!("request {wr_id}: from {addr:#x} to {last:#x}");
            found(&Finding { number, about: name(), known, place: None });
        }
    }
}
