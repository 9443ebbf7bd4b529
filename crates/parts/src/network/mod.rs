//! What the adapter has for the network: addresses, multicast groups, capture and faults.
//!
//! In here: data. Out of here: how packets come and leave (`fabric`).

mod addresses;
mod flow;
mod multicast;
mod taps;

pub use addresses::{Addresses, Arrivals, LeftOut, Local, is_of_this_host};
pub use flow::{flow_of, identification, verify};
pub use multicast::{Group, MAX_ATTACHED, MAX_GROUPS, Multicast};
pub use taps::{Faults, Taps};

use ferroce_types::Instant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Forwarded packets are looked for by pollers for this long after the last one.
const FORWARD_MEMORY: Duration = Duration::from_millis(100);

/// When other processes have passed packets on.
#[derive(Debug, Default)]
pub struct Forwarding {
    last: AtomicU64,
}

impl Forwarding {
    /// A process has passed packets on at that time.
    pub fn happened(&self, now: Instant) {
        self.last.store(now.0, Ordering::Relaxed);
    }

    /// A process has passed packets on lately.
    #[inline]
    pub fn happened_lately(&self, now: Instant) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        last != 0 && now.since(Instant(last)) < FORWARD_MEMORY
    }
}
