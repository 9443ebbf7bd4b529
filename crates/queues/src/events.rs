//! Queues of events behind a file descriptor that is readable exactly while an event is unread.

use ferroce_os::Readiness;
use ferroce_os::sync::{Mutex, Ordering, class, sleep, wake};
use ferroce_types::{Error, Result};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::time::{Duration, Instant};

/// A queue and a descriptor that is readable while the queue has events. A reader takes events from the queue; the descriptor is
/// for waiting, by any system call that waits for descriptors.
#[derive(Debug)]
pub struct EventQueue<T> {
    /// The program's descriptor; −1 once it is closed.
    fd: AtomicI32,
    /// There are unread events, as of the last change.
    unread: AtomicBool,
    inner: Mutex<class::EventQueue, EventQueueState<T>>,
}

/// A reader that has waited this long gets an event that has lapsed this long ago. It may have seen the descriptor readable before
/// the event lapsed, and serve other descriptors in the same loop: it gets the event after all, which announces nothing new then.
const LAPSED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct EventQueueState<T> {
    events: VecDeque<T>,
    /// The event that has lapsed since the last one was taken, and when.
    lapsed: Option<(T, Instant)>,
    /// Raised exactly while there are events, but for those that a reader is about to take; `None` once it is closed.
    readiness: Option<Readiness>,
    /// It is raised, as far as this process knows.
    raised: bool,
    /// Readers that are about to take the next events.
    attending: u32,
    /// Events have come meanwhile without raising the descriptor.
    deferred: bool,
}

impl<T> EventQueueState<T> {
    fn take(&mut self, waited: Duration) -> Option<T> {
        let event = match self.events.pop_front() {
            Some(event) => {
                self.lower_if_empty();
                event
            }
            None if waited < LAPSED_FOR => return None,
            None => self.lapsed.take_if(|(_, at)| at.elapsed() >= LAPSED_FOR)?.0,
        };
        self.lapsed = None;
        Some(event)
    }

    fn raise(&mut self) {
        if let Some(readiness) = &mut self.readiness {
            readiness.raise();
            self.raised = true;
        }
    }

    fn lower_if_empty(&mut self) {
        if self.raised {
            self.lower_surely_if_empty();
        }
    }

    fn lower_surely_if_empty(&mut self) {
        if let Some(readiness) = self.readiness.as_mut().filter(|_| self.events.is_empty()) {
            readiness.lower();
            self.raised = false;
        }
    }
}

/// While this lives, its thread is about to take the events that come, and the descriptor isn't raised for them. On drop, the
/// descriptor is raised if events are left.
#[derive(Debug)]
pub struct Attending<'a, T>(&'a EventQueue<T>);

impl<T> Drop for Attending<'_, T> {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.attending -= 1;
        if inner.attending == 0 && std::mem::take(&mut inner.deferred) && !inner.events.is_empty() {
            inner.raise();
        }
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
        let readiness = Readiness::new().map_err(Error::os("making a descriptor for events"))?;
        Ok(Self {
            fd: AtomicI32::new(readiness.fd()),
            unread: AtomicBool::new(false),
            inner: Mutex::new(EventQueueState {
                events: VecDeque::new(),
                lapsed: None,
                readiness: Some(readiness),
                raised: false,
                attending: 0,
                deferred: false,
            }),
        })
    }

    /// The descriptor, for poll, epoll and select. Programs may set O_NONBLOCK on it. −1 once it is closed.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.fd.load(Ordering::Relaxed)
    }

    /// Closes the descriptor: no more events are read.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        self.fd.store(-1, Ordering::Relaxed);
        if let Some(readiness) = inner.readiness.take() {
            readiness.close();
        }
    }

    /// Appends an event and makes the descriptor readable.
    pub fn push(&self, event: T) {
        let mut inner = self.inner.lock();
        if inner.readiness.is_some() {
            inner.events.push_back(event);
            self.note_unread(&inner);
        }
        if inner.attending > 0 {
            inner.deferred = true;
        } else {
            inner.raise();
        }
    }

    /// From here on this thread takes the events that come, without the cost of raising the descriptor. Keep it for a moment only:
    /// threads that sleep on the descriptor aren't woken meanwhile.
    pub fn attend(&self) -> Attending<'_, T> {
        self.inner.lock().attending += 1;
        Attending(self)
    }

    /// There are unread events.
    pub fn has_events(&self) -> bool {
        !self.inner.lock().events.is_empty()
    }

    /// As [`EventQueue::has_events`], without the lock: other threads may be about to change it.
    pub fn may_have_events(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    fn note_unread(&self, inner: &EventQueueState<T>) {
        self.unread.store(!inner.events.is_empty(), Ordering::Relaxed);
    }

    /// Takes the oldest event.
    pub fn take(&self) -> Option<T> {
        let mut inner = self.inner.lock();
        let event = inner.take(Duration::ZERO);
        self.note_unread(&inner);
        event
    }

    /// As [`EventQueue::take`], and gives the event to `f` before another thread can withdraw an event: the destruction of the
    /// event's object then waits for the event that `f` counts as got. A reader that has `waited` long gets a lapsed event.
    pub fn take_with<R>(&self, waited: Duration, f: impl FnOnce(&T) -> R) -> Option<R> {
        let mut inner = self.inner.lock();
        let event = inner.take(waited);
        self.note_unread(&inner);
        event.map(|event| f(&event))
    }

    /// For a reader that has found no event behind a readable descriptor: a fork's child and its parent share the descriptor, and
    /// each has a queue of its own until the child has an event. So one process may find the descriptor raised by the other, and
    /// its own queue empty.
    pub fn lower_if_empty(&self) {
        self.inner.lock().lower_surely_if_empty();
    }

    /// Unread events that `f` picks.
    pub fn count(&self, f: impl Fn(&T) -> bool) -> usize {
        self.inner.lock().events.iter().filter(|event| f(event)).count()
    }

    /// Withdraws the unread events that `f` picks.
    pub fn withdraw(&self, mut f: impl FnMut(&T) -> bool) {
        let mut inner = self.inner.lock();
        inner.lapsed.take_if(|(e, _)| f(e));
        let before = inner.events.len();
        inner.events.retain(|e| !f(e));
        if inner.events.len() < before {
            self.note_unread(&inner);
            inner.lower_if_empty();
        }
    }

    /// Takes back the last unread event that `f` picks, because the program already knows what it announces. False when there is
    /// none: a reader has it.
    pub fn lapse(&self, f: impl Fn(&T) -> bool) -> bool {
        let mut inner = self.inner.lock();
        let Some(event) = inner.events.iter().rposition(f).and_then(|at| inner.events.remove(at)) else {
            return false;
        };
        self.note_unread(&inner);
        inner.lapsed = Some((event, Instant::now()));
        inner.lower_if_empty();
        true
    }
}

/// Counts the events of one object that a program has got and not yet acknowledged; the object's destruction waits for them
/// (ibv_ack_cq_events(3), ibv_ack_async_event(3)). Events that the parent of a fork has got are left to the parent: in the child
/// they count as acknowledged.
#[derive(Debug, Default)]
pub struct Unacked {
    /// The number, and [`Self::WAITED_FOR`].
    count: AtomicU32,
    /// The process that has got them.
    generation: AtomicU32,
}

impl Unacked {
    /// Bit of the count: a thread waits, or has waited, for it to be 0.
    const WAITED_FOR: u32 = 1 << 31;

    /// The program got one. The lock of the queue of events is held.
    pub fn got(&self) {
        if !self.are_own() {
            self.count.store(0, Ordering::Relaxed);
            self.generation.store(ferroce_os::fork::generation(), Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn are_own(&self) -> bool {
        self.generation.load(Ordering::Relaxed) == ferroce_os::fork::generation()
    }

    /// How many the program has got and not acknowledged.
    #[must_use]
    pub fn count(&self) -> u32 {
        if self.are_own() { self.count.load(Ordering::Relaxed) & !Self::WAITED_FOR } else { 0 }
    }

    /// The program acknowledges `n`.
    pub fn ack(&self, n: u32) {
        if !self.are_own() {
            return;
        }
        // The object may be gone as soon as nothing is left.
        let count = &raw const self.count;
        let fewer =
            |count: u32| Some((count & !Self::WAITED_FOR).saturating_sub(n) | (count & Self::WAITED_FOR));
        let before = self.count.fetch_update(Ordering::Release, Ordering::Relaxed, fewer);
        // Mostly no thread waits for this, and no system call is needed.
        let ends_a_wait = |before| before & Self::WAITED_FOR != 0 && before & !Self::WAITED_FOR <= n;
        if before.is_ok_and(ends_a_wait) {
            wake(count, i32::MAX);
        }
    }

    /// Waits until all are acknowledged. If a program never acknowledges, this waits for ever, as the man pages require. `late` is
    /// called once, after a second, with their number.
    pub fn wait(&self, late: impl FnOnce(u32)) {
        const LATE_AFTER: Duration = Duration::from_secs(1);
        let mut since = None;
        let mut late = Some(late);
        loop {
            let count = self.count.fetch_or(Self::WAITED_FOR, Ordering::Acquire) & !Self::WAITED_FOR;
            if count == 0 || !self.are_own() {
                return;
            }
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            if waited >= LATE_AFTER
                && let Some(late) = late.take()
            {
                late(count);
            }
            let longest = late.is_some().then(|| LATE_AFTER.saturating_sub(waited));
            let asleep_at = count | Self::WAITED_FOR;
            ferroce_os::fork::outside_library(|| sleep(&self.count, asleep_at, longest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_long_is_told_once_and_who_waits_for_a_moment_is_not() {
        for is_long in [true, false] {
            let unacked = Unacked::default();
            unacked.got();
            unacked.got();
            let (acknowledged, (tell, told)) = (&unacked, std::sync::mpsc::channel());
            let heard = std::thread::scope(|threads| {
                let acknowledges = threads.spawn(move || {
                    let moment = Duration::from_millis(if is_long { 20_000 } else { 20 });
                    let heard = told.recv_timeout(moment).ok();
                    acknowledged.ack(1);
                    acknowledged.ack(1);
                    heard
                });
                unacked.wait(|count| tell.send(count).unwrap());
                acknowledges.join().unwrap()
            });
            assert_eq!(heard, is_long.then_some(2));
        }
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_an_event_is_unread() {
        let q = EventQueue::new().unwrap();
        let readable = || {
            assert_eq!(q.may_have_events(), q.has_events());
            ferroce_os::sys::wait_for(q.fd(), libc::POLLIN, Duration::ZERO)
        };
        assert!(!readable());
        q.push(1);
        q.push(2);
        assert_eq!(q.take(), Some(1));
        assert!(readable());
        q.push(3);
        q.withdraw(|&e| e == 2);
        assert!(readable());
        q.lower_if_empty();
        assert!(readable());
        assert_eq!(q.take_with(Duration::ZERO, |&e| e), Some(3));
        assert!(!readable());
        q.push(4);
        q.withdraw(|&e| e == 4);
        assert!(!readable());
        assert_eq!(q.take(), None);
        q.close();
        q.push(5);
        assert_eq!((q.fd(), q.take()), (-1, None));
    }

    #[test]
    fn the_descriptor_tells_of_what_an_attending_reader_leaves_only() {
        let q = EventQueue::new().unwrap();
        let readable = || ferroce_os::sys::wait_for(q.fd(), libc::POLLIN, Duration::ZERO);
        let attending = q.attend();
        q.push(1);
        assert_eq!((q.has_events(), readable(), q.take()), (true, false, Some(1)));
        drop(attending);
        assert!(!readable());
        for of_two in [false, true] {
            let attending = (q.attend(), of_two.then(|| q.attend()));
            q.push(1);
            q.push(2);
            assert_eq!(q.take(), Some(1));
            drop(attending.1);
            assert!(!readable());
            drop(attending.0);
            assert!(readable());
            assert_eq!((q.take(), readable()), (Some(2), false));
        }
        // A descriptor that was raised before stays so.
        q.push(3);
        drop(q.attend());
        assert!(readable());
        let attending = q.attend();
        assert_eq!((q.take(), readable()), (Some(3), false));
        q.push(4);
        q.withdraw(|_| true);
        drop(attending);
        assert!(!readable());
    }

    #[test]
    fn an_event_that_has_lapsed_is_gone_but_for_a_reader_who_waits_long_in_vain() {
        let q = EventQueue::new().unwrap();
        let readable = || ferroce_os::sys::wait_for(q.fd(), libc::POLLIN, Duration::ZERO);
        for event in [1, 2, 1] {
            q.push(event);
        }
        assert!(q.lapse(|&e| e == 1) && !q.lapse(|&e| e == 3));
        assert_eq!((q.take(), readable()), (Some(1), true));
        assert!(q.lapse(|&e| e == 2));
        assert_eq!((q.take_with(LAPSED_FOR, |&e| e), readable()), (None, false));
        q.inner.lock().lapsed = Some((2, Instant::now().checked_sub(LAPSED_FOR).unwrap()));
        assert_eq!(q.take(), None);
        assert_eq!((q.take_with(LAPSED_FOR, |&e| e), q.take_with(LAPSED_FOR, |&e| e)), (Some(2), None));
        // An event that is taken after it ends the wait just as well, and an object that goes takes its events along.
        q.push(4);
        assert!(q.lapse(|&e| e == 4));
        q.push(5);
        assert_eq!(q.take(), Some(5));
        assert!(q.inner.lock().lapsed.is_none());
        q.push(6);
        assert!(q.lapse(|&e| e == 6));
        q.withdraw(|&e| e == 6);
        assert!(q.inner.lock().lapsed.is_none());
    }
}
