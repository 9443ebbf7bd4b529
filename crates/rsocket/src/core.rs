//! What stream and datagram sockets have in common: the number, the state under its lock, and waiting until the state changes.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::front::FrontSocket;
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal};
use ferroce_rsocket_calls::waiting::{
    Looking, Set, Waiters, Waker, not_restarted, own_waker, readable, sleep,
};

/// The state of a socket, under the lock of its [`Core`].
pub(crate) trait SocketState: Send {
    /// Processes events. `set` has the descriptors that announce them. Waiting threads are woken also if a notification was taken whose
    /// event has been processed before: the descriptor doesn't announce the next event then.
    fn progress(&mut self, set: &Set);

    /// Makes the set announce events from now on. False: it can't. Earlier events must be processed afterwards.
    fn arm(&mut self) -> bool;

    /// Whether the set announces events.
    fn is_armed(&self) -> bool;

    /// The threads that wait for a change.
    fn waiters(&mut self) -> &mut Waiters;

    /// The events that poll(2) would return.
    fn ready_for(&self, events: libc::c_short) -> libc::c_short;

    /// POLLHUP and POLLERR, also while there is something to read.
    fn ended(&self) -> libc::c_short;
}

/// A socket of either kind.
#[derive(Debug)]
pub(crate) struct Core<S: ?Sized> {
    /// The socket's number, which the kernel can poll once it is shown.
    number: SocketNumber,
    /// The descriptors that announce the socket's events.
    pub(crate) set: Set,
    nonblocking: AtomicBool,
    locked: Mutex<Locked<S>>,
}

/// A descriptor that can be closed before the socket ends.
#[derive(Debug)]
struct SocketNumber {
    fd: RawFd,
    is_open: AtomicBool,
}

impl SocketNumber {
    fn close(&self) {
        if self.is_open.swap(false, Ordering::Relaxed) {
            // SAFETY: this socket's own descriptor, which nothing uses any more.
            drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
        }
    }
}

impl Drop for SocketNumber {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Debug)]
struct Locked<S: ?Sized> {
    front: FrontSocket,
    /// The number shows what the socket is ready for.
    shown: bool,
    state: S,
}

/// The locked state of a socket. What has become of it is shown when the lock is given back.
pub(crate) struct StateGuard<'a, S: SocketState + ?Sized> {
    core: &'a Core<S>,
    locked: MutexGuard<'a, Locked<S>>,
}

impl<S: SocketState + ?Sized> Deref for StateGuard<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.locked.state
    }
}

impl<S: SocketState + ?Sized> DerefMut for StateGuard<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.locked.state
    }
}

impl<S: SocketState + ?Sized> StateGuard<'_, S> {
    pub(crate) fn is_shown(&self) -> bool {
        self.locked.shown
    }
}

impl<S: SocketState + ?Sized> Drop for StateGuard<'_, S> {
    fn drop(&mut self) {
        if self.locked.shown && !std::thread::panicking() {
            self.core.show_state(&mut self.locked);
        }
    }
}

/// All that poll(2) may ask a socket.
const ALL: libc::c_short = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;

impl<S: SocketState> Core<S> {
    pub(crate) fn new(set: Set, nonblocking: bool, state: S) -> io::Result<Self> {
        let (number, front) = FrontSocket::new()?;
        let locked = Mutex::new(Locked { front, shown: false, state });
        let number = SocketNumber { fd: number.into_raw_fd(), is_open: AtomicBool::new(true) };
        Ok(Self { number, set, nonblocking: AtomicBool::new(nonblocking), locked })
    }
}

impl<S: SocketState + ?Sized> Core<S> {
    /// The socket's number.
    pub(crate) fn fd(&self) -> RawFd {
        self.number.fd
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn lock(&self) -> Outcome<StateGuard<'_, S>> {
        let locked = self.locked.lock().map_err(|_| {
            SocketRefusal::new(libc::EIO, "an earlier call has failed within; close the socket")
        })?;
        Ok(StateGuard { core: self, locked })
    }

    /// The same, also after a call that has failed within: for the end of the socket.
    pub(crate) fn lock_to_end(&self) -> StateGuard<'_, S> {
        StateGuard { core: self, locked: self.locked.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// The number shows from now on what the socket is ready for, since the service thread makes progress for it.
    pub(crate) fn show(&self) -> Outcome<()> {
        let mut state = self.lock()?;
        state.progress(&self.set);
        state.locked.shown = true;
        Ok(())
    }

    /// Makes the number show the state, and the set announce the next event.
    fn show_state(&self, locked: &mut Locked<S>) {
        // As the call has left it: room that a send has missed is an edge when it comes, also if that is at once.
        self.show_ready(locked);
        if !locked.state.is_armed() {
            self.progress_armed(&mut locked.state);
            self.show_ready(locked);
        }
    }

    fn show_ready(&self, locked: &mut Locked<S>) {
        let ready = locked.state.ready_for(ALL) | locked.state.ended();
        locked.front.show(self.fd(), ready, locked.state.waiters().arrivals());
    }

    /// The number shows a new socket: one that has failed is to connect again. Sets of epoll don't have it any more.
    pub(crate) fn show_anew(&self, state: &mut StateGuard<'_, S>) -> Outcome<()> {
        let (number, front) = FrontSocket::new()?;
        self.put_at_number(number.as_raw_fd())?;
        state.locked.front = front;
        Ok(())
    }

    /// The number shows nothing any more, and leaves all sets of epoll, as if it were closed. It stays taken.
    pub(crate) fn hide(&self) {
        let mut state = self.lock_to_end();
        state.locked.shown = false;
        // First, so that no set of epoll reports the end. If it fails, the number is closed later.
        let _ = self.put_at_number(self.set.fd());
        state.locked.front.end();
    }

    /// Closes the number of a hidden socket that goes on without one.
    pub(crate) fn release_number(&self) {
        self.number.close();
    }

    fn put_at_number(&self, fd: RawFd) -> Outcome<()> {
        // SAFETY: no memory is passed; the number stays this socket's.
        match unsafe { libc::dup3(fd, self.fd(), libc::O_CLOEXEC) } {
            -1 => Err(SocketRefusal::last("dup3")),
            _ => Ok(()),
        }
    }

    /// Locks the state after dealing with what has happened.
    pub(crate) fn progress(&self) -> Outcome<StateGuard<'_, S>> {
        let mut state = self.lock()?;
        state.progress(&self.set);
        Ok(state)
    }

    /// Processes events; the set announces later ones.
    pub(crate) fn progress_armed(&self, state: &mut S) {
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
    /// long enough; EINTR and ERESTART: a signal has come. A call that waits until an instant isn't restarted, as in signal(7).
    pub(crate) fn wait<T>(
        &self,
        nonblocking: bool,
        until: Option<Instant>,
        mut ready: impl FnMut(&mut S) -> Option<Outcome<T>>,
    ) -> Outcome<T> {
        let interrupted = |refusal| if until.is_some() { not_restarted(refusal) } else { refusal };
        let mut state = self.lock()?;
        let mut looking = Looking::default();
        loop {
            loop {
                state.progress(&self.set);
                if let Some(answer) = ready(&mut state) {
                    return answer;
                }
                if nonblocking {
                    return Err(SocketRefusal::would_block());
                }
                if !looking.goes_on().map_err(interrupted)? {
                    break;
                }
            }
            self.progress_armed(&mut state);
            if let Some(answer) = ready(&mut state) {
                return answer;
            }
            let waker = own_waker()?;
            state.waiters().add(&waker);
            drop(state);
            let slept = sleep(vec![readable(waker.fd()), readable(self.set.fd())], until);
            state = self.lock()?;
            state.waiters().remove(&waker);
            looking.has_slept();
            match slept {
                Ok(true) => {}
                Ok(false) => return Err(SocketRefusal::would_block()),
                Err(refusal) => {
                    // What has happened meanwhile comes before a signal.
                    state.progress(&self.set);
                    if let Some(answer) = ready(&mut state) {
                        return answer;
                    }
                    return Err(interrupted(refusal));
                }
            }
        }
    }

    /// What the socket is ready for, of `events`. A `waker` is woken when that may change, until [`Core::dont_wake`].
    pub(crate) fn readiness(&self, events: libc::c_short, waker: Option<&Arc<Waker>>) -> libc::c_short {
        let Ok(mut state) = self.lock() else { return libc::POLLERR };
        match waker {
            None => state.progress(&self.set),
            Some(waker) => {
                self.progress_armed(&mut state);
                state.waiters().add(waker);
            }
        }
        state.ready_for(events)
    }

    /// It isn't to be woken any more.
    pub(crate) fn dont_wake(&self, waker: &Arc<Waker>) {
        if let Ok(mut state) = self.lock() {
            state.waiters().remove(waker);
        }
    }
}
