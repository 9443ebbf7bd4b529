//! What stream and datagram sockets have in common: the number, the state under its lock, and waiting until the state changes.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::call::{Outcome, Refusal};
use crate::settings::settings;
use crate::waiting::{Set, Waiters, Waker, own_waker, readable, sleep};

/// The state of a socket, under the lock of its [`Core`].
pub(crate) trait State: Send {
    /// Deals with what has happened. `set` has the descriptors that tell of it. Who waits is woken also when nothing has happened but
    /// a descriptor was told of something that has been dealt with before: it doesn't tell of the next thing then.
    fn progress(&mut self, set: &Set);

    /// Has what happens from now on told by the set; whether that is possible. What has happened before must be dealt with
    /// afterwards.
    fn arm(&mut self) -> bool;

    /// Whether what happens is told by the set.
    fn is_armed(&self) -> bool;

    /// Who waits for a change.
    fn waiters(&mut self) -> &mut Waiters;

    /// What poll(2) would say.
    fn ready_for(&self, events: libc::c_short) -> libc::c_short;
}

/// What rpoll tells of a socket, and a number that grows with each change.
pub(crate) type Readiness = (libc::c_short, u64);

/// A socket of either kind.
#[derive(Debug)]
pub(crate) struct Core<S: ?Sized> {
    /// Its descriptor is the socket's number.
    pub(crate) set: Set,
    nonblocking: AtomicBool,
    state: Mutex<S>,
}

impl<S: State> Core<S> {
    pub(crate) fn new(set: Set, nonblocking: bool, state: S) -> Self {
        Self { set, nonblocking: AtomicBool::new(nonblocking), state: Mutex::new(state) }
    }
}

impl<S: State + ?Sized> Core<S> {
    /// The socket's number.
    pub(crate) fn fd(&self) -> RawFd {
        self.set.fd()
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn lock(&self) -> Outcome<MutexGuard<'_, S>> {
        self.state
            .lock()
            .map_err(|_| Refusal::new(libc::EIO, "an earlier call has failed within; close the socket"))
    }

    /// The same, also after a call that has failed within: for the end of the socket.
    pub(crate) fn lock_to_end(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Locks the state after dealing with what has happened.
    pub(crate) fn progress(&self) -> Outcome<MutexGuard<'_, S>> {
        let mut state = self.lock()?;
        state.progress(&self.set);
        Ok(state)
    }

    /// Deals with what has happened; what happens from now on is told by the set.
    fn progress_armed(&self, state: &mut S) {
        loop {
            let told = state.arm();
            state.progress(&self.set);
            // Else dealing with it has taken the notification.
            if !told || state.is_armed() {
                return;
            }
        }
    }

    /// Waits until `ready` has an answer. EAGAIN: it has none, and the caller doesn't wait (`nonblocking`) or has waited for
    /// long enough; EINTR: a signal has come.
    pub(crate) fn wait<T>(
        &self,
        nonblocking: bool,
        until: Option<Instant>,
        mut ready: impl FnMut(&mut S) -> Option<Outcome<T>>,
    ) -> Outcome<T> {
        let mut state = self.lock()?;
        loop {
            let mut polling = None;
            loop {
                state.progress(&self.set);
                if let Some(answer) = ready(&mut state) {
                    return answer;
                }
                if nonblocking {
                    return Err(Refusal::would_block());
                }
                let now = Instant::now();
                if now >= *polling.get_or_insert_with(|| now + settings().polling) {
                    break;
                }
                std::hint::spin_loop();
            }
            self.progress_armed(&mut state);
            if let Some(answer) = ready(&mut state) {
                return answer;
            }
            let waker = own_waker()?;
            waker.clear();
            state.waiters().add(&waker);
            drop(state);
            let slept = sleep(&mut [readable(waker.fd()), readable(self.fd())], until);
            state = self.lock()?;
            state.waiters().remove(&waker);
            match slept {
                Ok(0) => return Err(Refusal::would_block()),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// What the socket is ready for, of `events`. A `waker` is woken when that may change, until [`Core::dont_wake`].
    pub(crate) fn readiness(&self, events: libc::c_short, waker: Option<&Arc<Waker>>) -> Readiness {
        let Ok(mut state) = self.lock() else { return (libc::POLLERR, 0) };
        match waker {
            None => state.progress(&self.set),
            Some(waker) => {
                self.progress_armed(&mut state);
                state.waiters().add(waker);
            }
        }
        (state.ready_for(events), state.waiters().changes())
    }

    /// It isn't to be woken any more.
    pub(crate) fn dont_wake(&self, waker: &Arc<Waker>) {
        if let Ok(mut state) = self.lock() {
            state.waiters().remove(waker);
        }
    }
}
