//! Events of a device.

use crate::device::NativeDomain;
use crate::library;
use ferroce_buffers::{Error, Event};
use ferroce_os::sys;
use ferroce_queues::EventQueue;
use ferroce_types::AsyncEvent;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

impl NativeDomain {
    fn queue(&self) -> &EventQueue<AsyncEvent> {
        self.context().async_events()
    }

    /// The descriptor that is readable while there is an event.
    #[must_use]
    pub fn events_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the device has it open for as long as it is, which is at least as long as `self` is borrowed.
        #[allow(unsafe_code)]
        unsafe {
            BorrowedFd::borrow_raw(self.queue().fd())
        }
    }

    /// What has happened to the device, at most after `limit`.
    ///
    /// # Errors
    /// The adapter can't be used in this process.
    pub fn next_event(&self, limit: Option<Duration>) -> Result<Option<Event>, Error> {
        // A limit beyond what the clock can express is none.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut waited = Duration::ZERO;
        loop {
            let inside = library::enter("events")?;
            while let Some(event) = self.queue().take_with(waited, |event| *event) {
                if let Some(event) = translate(event) {
                    return Ok(Some(event));
                }
            }
            self.queue().lower_if_empty();
            drop(inside);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let before = Instant::now();
            let mut fd = [libc::pollfd { fd: self.queue().fd(), events: libc::POLLIN, revents: 0 }];
            // Signals end a wait early.
            let _ = sys::poll(&mut fd, left.unwrap_or(Duration::from_secs(60)));
            waited = before.elapsed();
        }
    }
}

/// What completions report, too, is left out.
fn translate(event: AsyncEvent) -> Option<Event> {
    Some(match event {
        AsyncEvent::SrqLimitReached(number) => Event::LowWater(number as u32),
        AsyncEvent::PortActive(_) => Event::PortActive,
        AsyncEvent::PortError(_) => Event::PortDown,
        AsyncEvent::GidChange(_) => Event::AddressesChanged,
        AsyncEvent::DeviceFatal => Event::DeviceFailed,
        _ => return None,
    })
}
