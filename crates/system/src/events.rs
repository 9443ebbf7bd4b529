//! Events of a device.

use crate::device::SystemDomain;
use crate::library;
use ferroce_abi::verbs::*;
use ferroce_buffers::{Error, Event};
use std::ffi::c_int;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

impl SystemDomain {
    fn event_fd(&self) -> c_int {
        // SAFETY: the library has initialised it, and doesn't change it.
        unsafe { (*self.context().get()).async_fd }
    }

    /// Lets a thread that has found no event not wait in the library.
    ///
    /// # Errors
    /// The descriptor is the parent's of a fork, or closed.
    pub fn prepare_events(&self) -> Result<(), Error> {
        self.context().maker.check("events")?;
        // SAFETY: a descriptor of the context's own.
        let set = unsafe {
            let flags = libc::fcntl(self.event_fd(), libc::F_GETFL);
            libc::fcntl(self.event_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        if set < 0 { Err(library::last_error("events", "fcntl")) } else { Ok(()) }
    }

    /// The descriptor that is readable while there is an event.
    #[must_use]
    pub fn events_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the context has it open for as long as it exists, which is at least as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.event_fd()) }
    }

    /// What has happened to the device, at most after `limit`.
    ///
    /// # Errors
    /// The device is gone, or it is the parent's of a fork.
    pub fn next_event(&self, limit: Option<Duration>) -> Result<Option<Event>, Error> {
        let context = self.context();
        // A limit beyond what the clock can express is none.
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            context.maker.check("events")?;
            let mut event = MaybeUninit::<ibv_async_event>::zeroed();
            // SAFETY: an open device, whose descriptor doesn't block, and a place for an event.
            let found = unsafe { (context.library.ibv_get_async_event)(context.get(), event.as_mut_ptr()) };
            if found == 0 {
                // SAFETY: the library has written it.
                let mut event = unsafe { event.assume_init() };
                let translated = translate(&event);
                // SAFETY: the event was got just now, and is acknowledged once.
                unsafe { (context.library.ibv_ack_async_event)(&raw mut event) };
                if translated.is_some() {
                    return Ok(translated);
                }
                continue;
            }
            let kind = std::io::Error::last_os_error().kind();
            if !matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted) {
                return Err(library::last_error("events", "ibv_get_async_event"));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            // Rounded up: a wait of less than a millisecond would be none.
            let millis = left
                .map_or(-1, |left| c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX));
            let mut one = libc::pollfd { fd: self.event_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry.
            unsafe { libc::poll(&raw mut one, 1, millis) };
        }
    }
}

/// What completions report, too, is left out.
fn translate(event: &ibv_async_event) -> Option<Event> {
    Some(match event.event_type {
        IBV_EVENT_SRQ_LIMIT_REACHED => {
            // SAFETY: the event is of a shared receive queue, which isn't destroyed before the event is acknowledged.
            let number = unsafe { (*event.element.srq).srq_context };
            Event::LowWater(number.addr() as u32)
        }
        IBV_EVENT_PORT_ACTIVE => Event::PortActive,
        IBV_EVENT_PORT_ERR => Event::PortDown,
        IBV_EVENT_GID_CHANGE => Event::AddressesChanged,
        IBV_EVENT_DEVICE_FATAL => Event::DeviceFailed,
        _ => return None,
    })
}
