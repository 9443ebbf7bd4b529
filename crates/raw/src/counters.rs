//! Counters of flows: ibv_create_counters(3), ibv_attach_counters_point_flow(3), ibv_read_counters(3).

use ferroce_os::sync::{RwLock, class};
use ferroce_types::{Result, Users, invalid};
use std::sync::atomic::{AtomicU64, Ordering};

/// Places a counters object has for what it counts.
pub const MAX_COUNTERS: u32 = 64;

/// What is counted (`enum ibv_counter_description`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterPoint {
    /// Frames that matched.
    Packets,
    /// Their bytes.
    Bytes,
}

/// Counts what the flows that name it match.
#[derive(Debug, Default)]
pub struct FlowCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    points: RwLock<class::CounterPoints, Vec<(u32, CounterPoint)>>,
    flows: Users,
}

impl FlowCounters {
    /// Lets the value at `index` show `point`; several points at one index are added up.
    ///
    /// # Errors
    /// [`ferroce_types::Error::Invalid`] for an index of [`MAX_COUNTERS`] or more; [`ferroce_types::Error::Busy`] while a flow counts here.
    pub fn attach(&self, index: u32, point: CounterPoint) -> Result<()> {
        if index >= MAX_COUNTERS {
            return invalid!("counter index {index}: up to {} are possible", MAX_COUNTERS - 1);
        }
        self.check_unused()?;
        self.points.write().push((index, point));
        Ok(())
    }

    /// The values, from index 0 on; those of indices without a point are 0.
    pub fn read(&self, values: &mut [u64]) {
        values.fill(0);
        for &(index, point) in self.points.read().iter() {
            if let Some(value) = values.get_mut(index as usize) {
                *value += match point {
                    CounterPoint::Packets => self.packets.load(Ordering::Relaxed),
                    CounterPoint::Bytes => self.bytes.load(Ordering::Relaxed),
                };
            }
        }
    }

    /// May it be destroyed?
    ///
    /// # Errors
    /// [`ferroce_types::Error::Busy`] while a flow counts here.
    pub fn check_unused(&self) -> Result<()> {
        self.flows.check_none("the counters still count flows")
    }

    pub(super) fn hold(&self) {
        self.flows.hold();
    }

    pub(super) fn release(&self) {
        self.flows.release();
    }

    pub(super) fn count(&self, bytes: usize) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
