//! Queues of events behind a file descriptor that is readable exactly while an event is unread.

use ferroce_os::Readiness;
use ferroce_os::sync::{Mutex, Ordering, class, sleep, wake};
use ferroce_types::{Error, Result};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::time::{Duration, Instant};

/// A queue and the descriptor that says whether it is empty. The reader takes an event from the queue; the descriptor is
/// for those who wait, in whatever way they like to.
#[derive(Debug)]
pub struct EventQueue<T> {
    /// The program's descriptor; −1 once it is closed.
    fd: AtomicI32,
    inner: Mutex<class::EventQueue, Inner<T>>,
}

/// How long a reader waits in vain after an event has lapsed. It may have seen the descriptor readable before, and look
/// after other things in the same loop: it gets the event after all, which says nothing new then.
const LAPSED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Inner<T> {
    events: VecDeque<T>,
    /// The event that has lapsed since the last one was taken, and when.
    lapsed: Option<(T, Instant)>,
    /// Raised exactly while there are events, but for those that a reader is about to take; `None` once it is closed.
    readiness: Option<Readiness>,
    /// It is raised, for all that this process knows.
    raised: bool,
    /// Readers who are about to take what comes.
    attending: u32,
    /// Something has come meanwhile that the descriptor doesn't tell of.
    deferred: bool,
}

impl<T> Inner<T> {
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

/// While this lives its thread is about to take the events that come, and nobody else has to be told of them. Dropped, it has the
/// descriptor tell of those that are left.
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
            inner: Mutex::new(Inner {
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

    /// Closes the descriptor: nobody reads events any more.
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
        }
        if inner.attending > 0 {
            inner.deferred = true;
        } else {
            inner.raise();
        }
    }

    /// This thread takes the events that come from here on, which costs less than to have the descriptor tell of them. For a moment: who
    /// sleeps on the descriptor isn't woken meanwhile.
    pub fn attend(&self) -> Attending<'_, T> {
        self.inner.lock().attending += 1;
        Attending(self)
    }

    /// There are unread events.
    pub fn has_events(&self) -> bool {
        !self.inner.lock().events.is_empty()
    }

    /// Takes the oldest event.
    pub fn take(&self) -> Option<T> {
        self.inner.lock().take(Duration::ZERO)
    }

    /// As [`EventQueue::take`], and gives the event to `f` before anybody can withdraw another: what `f` counts as got,
    /// the destruction of the event's object waits for. A reader who has `waited` long gets an event that has lapsed.
    pub fn take_with<R>(&self, waited: Duration, f: impl FnOnce(&T) -> R) -> Option<R> {
        let mut inner = self.inner.lock();
        inner.take(waited).map(|event| f(&event))
    }

    /// For a reader that has found no event behind a readable descriptor: a fork's child and its parent have the
    /// descriptor in common and each a queue of its own until the child has an event, so what the one has raised the other finds
    /// empty.
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
            inner.lower_if_empty();
        }
    }

    /// Takes back the last unread event that `f` picks, since what it was to tell is known. False when there is none: a
    /// reader has it.
    pub fn lapse(&self, f: impl Fn(&T) -> bool) -> bool {
        let mut inner = self.inner.lock();
        let Some(event) = inner.events.iter().rposition(f).and_then(|at| inner.events.remove(at)) else {
            return false;
        };
        inner.lapsed = Some((event, Instant::now()));
        inner.lower_if_empty();
        true
    }
}

/// Counts the events of one object that a program has got and not yet acknowledged; its destruction waits for them
/// (ibv_ack_cq_events(3), ibv_ack_async_event(3)). What the parent of a fork has got is the parent's affair: in the child it
/// counts as acknowledged.
#[derive(Debug, Default)]
pub struct Unacked {
    /// How many, and whether somebody has waited for them.
    count: AtomicU32,
    /// The process that has got them.
    generation: AtomicU32,
}

impl Unacked {
    /// In the count: somebody waits, or has waited, for it to be 0.
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
        // Most acknowledge what nobody waits for.
        let ends_a_wait = |before| before & Self::WAITED_FOR != 0 && before & !Self::WAITED_FOR <= n;
        if before.is_ok_and(ends_a_wait) {
            wake(count, i32::MAX);
        }
    }

    /// Waits until all are acknowledged. A program that never acknowledges waits here for ever, as the man pages say. `late` is called
    /// once, after a second, with their number.
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
        let readable = || ferroce_os::sys::wait_for(q.fd(), libc::POLLIN, Duration::ZERO);
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
        // What was told of before stays so.
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
