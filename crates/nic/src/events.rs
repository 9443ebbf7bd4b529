//! Queues of events behind a file descriptor that is readable exactly while an event is unread.

use crate::error::{Error, Result};
use crate::sync::{Mutex, Ordering, sleep, wake};
use crate::sys;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::time::{Duration, Instant};

/// A queue whose eventfd (in semaphore mode) counts its entries. The reader first takes one from the descriptor, in
/// whatever way it likes to wait (it may be cancelled there), and then one from the queue.
#[derive(Debug)]
pub struct EventQueue<T> {
    /// −1 once it is closed; changed, and used to write or read, under the queue's lock. The program knows it, and may
    /// have closed it itself and opened something else.
    fd: AtomicI32,
    identity: u64,
    queue: Mutex<Unread<T>>,
}

/// How long a reader waits in vain after an event has lapsed. It may have seen the descriptor readable before, and look
/// after other things in the same loop: it gets the event after all, which says nothing new then.
const LAPSED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Unread<T> {
    events: VecDeque<T>,
    /// The event that has lapsed since the last one was taken, and when.
    lapsed: Option<(T, Instant)>,
}

impl<T> Unread<T> {
    fn take(&mut self) -> Option<T> {
        let event = self
            .events
            .pop_front()
            .or_else(|| self.lapsed.take_if(|(_, at)| at.elapsed() >= LAPSED_FOR).map(|(event, _)| event))?;
        self.lapsed = None;
        Some(event)
    }
}

impl<T> Drop for EventQueue<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T> EventQueue<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> Result<Self> {
        // SAFETY: no memory is passed; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(Error::os("eventfd")(io::Error::last_os_error()));
        }
        let identity = sys::identity(fd).unwrap_or(0);
        let queue = Mutex::new(Unread { events: VecDeque::new(), lapsed: None });
        Ok(Self { fd: AtomicI32::new(fd), identity, queue })
    }

    /// The descriptor, for poll, epoll and select. Programs may set O_NONBLOCK on it. −1 once it is closed.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.fd.load(Ordering::Relaxed)
    }

    /// Closes the descriptor: nobody reads events any more.
    pub(crate) fn close(&self) {
        let _queue = self.queue.lock();
        let fd = self.fd.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            sys::close_if(fd, self.identity);
        }
    }

    /// Appends an event and makes the descriptor readable.
    pub(crate) fn push(&self, event: T) {
        let mut queue = self.queue.lock();
        if self.fd() < 0 {
            return;
        }
        queue.events.push_back(event);
        if !self.is_intact() {
            return;
        }
        let one = 1u64;
        // SAFETY: eight readable bytes; a raw system call is no cancellation point. The counter can't overflow.
        unsafe { libc::syscall(libc::SYS_write, self.fd(), &raw const one, 8) };
    }

    /// Takes the event that a successful read of 8 bytes from the descriptor stands for. `None` when it was withdrawn
    /// in between: wait again.
    pub fn take(&self) -> Option<T> {
        self.queue.lock().take()
    }

    /// As [`EventQueue::take`], and gives the event to `f` before anybody can withdraw another: what `f` counts as got,
    /// the destruction of the event's object waits for.
    pub fn take_with<R>(&self, f: impl FnOnce(&T) -> R) -> Option<R> {
        let mut queue = self.queue.lock();
        queue.take().map(|event| f(&event))
    }

    /// Unread events that `f` picks.
    pub(crate) fn count(&self, f: impl Fn(&T) -> bool) -> usize {
        self.queue.lock().events.iter().filter(|event| f(event)).count()
    }

    /// Withdraws the unread events that `f` picks.
    pub(crate) fn withdraw(&self, mut f: impl FnMut(&T) -> bool) {
        let mut queue = self.queue.lock();
        queue.lapsed.take_if(|(e, _)| f(e));
        let before = queue.events.len();
        queue.events.retain(|e| !f(e));
        for _ in queue.events.len()..before {
            self.take_back_one();
        }
    }

    /// There is an eventfd behind the number still.
    fn is_intact(&self) -> bool {
        sys::identity(self.fd()) == Some(self.identity)
    }

    /// Takes back the last unread event that `f` picks, since what it was to tell is known. False when there is none: a
    /// reader has it.
    pub(crate) fn lapse(&self, f: impl Fn(&T) -> bool) -> bool {
        let mut queue = self.queue.lock();
        let Some(event) = queue.events.iter().rposition(f).and_then(|at| queue.events.remove(at)) else {
            return false;
        };
        queue.lapsed = Some((event, Instant::now()));
        self.take_back_one();
        true
    }

    /// Takes one from the descriptor, unless readers have taken all already: they will find that there is no event.
    fn take_back_one(&self) {
        if !self.is_intact() {
            return;
        }
        let mut count = 0u64;
        let place = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
        let anywhere: libc::c_long = -1;
        let flags = libc::RWF_NOWAIT;
        // SAFETY: eight writable bytes; a raw system call is no cancellation point. RWF_NOWAIT keeps it from waiting,
        // whatever the program's O_NONBLOCK says.
        let result = unsafe {
            libc::syscall(libc::SYS_preadv2, self.fd(), &raw const place, 1usize, anywhere, anywhere, flags)
        };
        if result >= 0 || io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock {
            return;
        }
        // A kernel before 5.8.
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: valid buffers; raw calls are no cancellation points.
        unsafe {
            if libc::syscall(libc::SYS_poll, &raw mut poll, 1, 0) == 1 {
                libc::syscall(libc::SYS_read, self.fd(), &raw mut count, 8);
            }
        }
    }
}

/// Counts the events of one object that a program has got and not yet acknowledged; its destruction waits for them
/// (ibv_ack_cq_events(3), ibv_ack_async_event(3)).
#[derive(Debug, Default)]
pub struct Unacked(AtomicU32);

impl Unacked {
    /// The program got one.
    pub fn got(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The program acknowledges `n`.
    pub fn ack(&self, n: u32) {
        // The object may be gone as soon as nothing is left.
        let count = &raw const self.0;
        let fewer = |count: u32| Some(count.saturating_sub(n));
        let before = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, fewer);
        if before.is_ok_and(|before| before <= n) {
            wake(count, i32::MAX);
        }
    }

    /// Waits until all are acknowledged. A program that never acknowledges waits here for ever, as the man pages say;
    /// every ten seconds the log says why.
    pub fn wait(&self) {
        const SPEAKS_AFTER: Duration = Duration::from_secs(10);
        let mut since = Instant::now();
        loop {
            let count = self.0.load(Ordering::Acquire);
            if count == 0 {
                return;
            }
            sleep(&self.0, count, Some(SPEAKS_AFTER));
            if since.elapsed() >= SPEAKS_AFTER {
                tracing::warn!("destroying an object waits for {count} unacknowledged events");
                since = Instant::now();
            }
        }
    }
}

/// What an asynchronous event is about (ibv_get_async_event(3)). The `usize` is the cookie of the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the names are the man page's
pub enum AsyncEvent {
    QpFatal(usize),
    QpRequestError(usize),
    QpAccessError(usize),
    CommunicationEstablished(usize),
    SqDrained(usize),
    QpLastWqeReached(usize),
    CqError(usize),
    SrqError(usize),
    SrqLimitReached(usize),
    WqFatal(usize),
    PortActive(u8),
    PortError(u8),
    GidChange(u8),
    DeviceFatal,
    SpeedChange,
}

impl AsyncEvent {
    /// The object's cookie; `None` for events of a port or device.
    #[must_use]
    pub fn object(&self) -> Option<usize> {
        match *self {
            Self::QpFatal(o)
            | Self::QpRequestError(o)
            | Self::QpAccessError(o)
            | Self::CommunicationEstablished(o)
            | Self::SqDrained(o)
            | Self::QpLastWqeReached(o)
            | Self::CqError(o)
            | Self::SrqError(o)
            | Self::SrqLimitReached(o)
            | Self::WqFatal(o) => Some(o),
            Self::PortActive(_)
            | Self::PortError(_)
            | Self::GidChange(_)
            | Self::DeviceFatal
            | Self::SpeedChange => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(fd: RawFd) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    fn read_one(fd: RawFd) {
        let mut count = 0u64;
        // SAFETY: eight writable bytes.
        assert_eq!(unsafe { libc::read(fd, (&raw mut count).cast(), 8) }, 8);
        assert_eq!(count, 1);
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_an_event_is_unread() {
        let q = EventQueue::new().unwrap();
        assert!(!readable(q.fd()));
        q.push(1);
        q.push(2);
        read_one(q.fd());
        assert_eq!(q.take(), Some(1));
        assert!(readable(q.fd()));
        q.push(3);
        q.withdraw(|&e| e == 2);
        assert!(readable(q.fd()));
        read_one(q.fd());
        assert_eq!(q.take(), Some(3));
        assert!(!readable(q.fd()));
    }

    #[test]
    fn an_event_that_has_lapsed_is_gone_but_for_a_reader_who_waits_long_in_vain() {
        let q = EventQueue::new().unwrap();
        for event in [1, 2, 1] {
            q.push(event);
        }
        assert!(q.lapse(|&e| e == 1) && !q.lapse(|&e| e == 3));
        read_one(q.fd());
        assert_eq!((q.take(), readable(q.fd())), (Some(1), true));
        assert!(q.lapse(|&e| e == 2));
        assert_eq!((q.take(), readable(q.fd())), (None, false));
        q.queue.lock().lapsed = Some((2, Instant::now().checked_sub(LAPSED_FOR).unwrap()));
        assert_eq!((q.take_with(|&e| e), q.take()), (Some(2), None));
        // An event that is taken after it ends the wait just as well, and an object that goes takes its events along.
        q.push(4);
        assert!(q.lapse(|&e| e == 4));
        q.push(5);
        read_one(q.fd());
        assert_eq!(q.take(), Some(5));
        assert!(q.queue.lock().lapsed.is_none());
        q.push(6);
        assert!(q.lapse(|&e| e == 6));
        q.withdraw(|&e| e == 6);
        assert!(q.queue.lock().lapsed.is_none());
    }
}
