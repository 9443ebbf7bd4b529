//! ibv_close_device(3) while objects of the context still exist.

use crate::Context;
use crate::adapter;
use ferroce_mem::{KeyTable, QueueKind};
use ferroce_parts::frame_qps;
use std::fmt;

/// What a program has left in a context that it closes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[allow(missing_docs)] // the fields are named after the objects
pub struct Leftovers {
    pub qps: usize,
    pub srqs: usize,
    pub cqs: usize,
    pub regions: usize,
    pub windows: usize,
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qps, srqs, cqs, regions, windows } = self;
        write!(
            f,
            "{qps} queue pairs, {srqs} shared receive queues, {cqs} completion queues, {regions} memory regions and \
             {windows} memory windows"
        )
    }
}

impl Context {
    /// Ends the context as the kernel ends one whose descriptor is closed: its queue pairs send and receive nothing any
    /// more, no peer accesses memory by its regions and windows, and its descriptors are closed. The objects keep their own
    /// memory, which is freed when the program destroys them. While an import of the context is open, nothing ends.
    /// Returns how many objects there were to end.
    pub fn close(&self) -> Leftovers {
        if adapter::contexts().iter().any(|other| other.is_import_of(self)) {
            return Leftovers::default();
        }
        let qps = adapter::qps_of(self).iter().filter(|qp| qp.end_with_context(self)).count();
        let raw_qps = frame_qps().map_or(0, |qps| qps.end_with(self));
        let (windows, regions) = KeyTable::global().end_with_owner(self);
        self.async_events().close();
        self.handles().close();
        Leftovers {
            qps: qps + raw_qps,
            srqs: self.queues(QueueKind::SharedReceive),
            cqs: self.queues(QueueKind::Completion),
            regions,
            windows,
        }
    }
}
