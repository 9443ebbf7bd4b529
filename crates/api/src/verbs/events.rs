//! Events of a device.

use crate::verbs::device::Domain;
use ferroce_buffers::{Event, Result};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What a device reports besides completions. [`Domain::events`] makes it.
///
/// Each event is reported once, whichever domain of the device it is asked for.
///
/// ```
/// # use ferroce::{sim::World, verbs::{Device, Event, Send}};
/// # use std::time::Duration;
/// # fn main() -> ferroce::Result<()> {
/// # let world = World::new(1);
/// # let host = world.host("a");
/// # let cable = host.clone();
/// let domain = Device::simulated(&host).open()?;
/// let mut events = domain.events()?;
/// assert_eq!(events.next(Some(Duration::from_millis(1)))?, None);
/// cable.unplug();
/// assert_eq!(events.next(None)?, Some(Event::PortDown));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Events {
    domain: Domain,
}

impl Events {
    pub(crate) fn new(domain: &Domain) -> Result<Self> {
        domain.inner.prepare_events()?;
        Ok(Self { domain: domain.clone() })
    }

    /// Waits for the next event, at most for `limit`.
    ///
    /// # Errors
    /// The device can't be used any more.
    ///
    /// # Panics
    /// In a simulation without a limit: no event will ever come.
    pub fn next(&mut self, limit: Option<Duration>) -> Result<Option<Event>> {
        self.domain.inner.next_event(limit)
    }

    /// The descriptor for an event loop, which is readable while there is an event; a simulated device has none. Programs don't
    /// read it.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.domain.inner.events_descriptor()
    }
}
