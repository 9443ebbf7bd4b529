//! The parts of the network that a process has once.

use crate::gsi::GsiState;
use crate::locals::Addresses;
use crate::multicast::Multicast;
use crate::taps::Taps;
use ferroce_engine::{Handler, Loop};
use ferroce_host::Host;
use ferroce_hostlink::Links;
use ferroce_parts::settings;
use ferroce_types::{Instant, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a process has of the network, with the engine that drives its adapter `H`. It lives as long as the process.
pub struct Network<H: Handler> {
    /// Which thread makes progress.
    pub engine: Loop<H>,
    /// The host's processes.
    pub host: Arc<Host>,
    /// The addresses in use, and what is known of peers.
    pub addresses: Addresses,
    /// The multicast groups of the process.
    pub multicast: Multicast<H::Job>,
    /// Capture and faults, if there are any.
    pub taps: Option<&'static Taps>,
    /// Shared memory with the host's other processes.
    pub links: Arc<Links>,
    /// When other processes have passed packets on.
    pub forwarding: Forwarding,
    /// QP 1.
    pub gsi: GsiState,
}

impl<H: Handler> Network<H> {
    /// Joins the host's processes. No address is in use yet.
    ///
    /// # Errors
    /// What kept the process from joining the host's others.
    pub fn new() -> Result<Self> {
        let taps = Taps::from_env();
        let lossless = !settings::udp_only() && !taps.is_some_and(Taps::has_faults);
        let captured = taps.is_some_and(Taps::has_capture);
        let links = Links::new(lossless, captured, settings::allows_copies())?;
        Ok(Self {
            engine: Loop::new()?,
            host: Host::join_trusting(settings::trust())?,
            addresses: Addresses::default(),
            multicast: Multicast::default(),
            taps,
            links,
            forwarding: Forwarding::default(),
            gsi: GsiState::default(),
        })
    }

    /// How many forks lie between the first process and this one.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.engine.generation()
    }
}

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
