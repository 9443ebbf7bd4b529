//! Sleeping until a socket changes, and waking who sleeps.
//!
//! Each thread that sleeps has an event descriptor of its own, which it leaves with the sockets that it waits for. A thread that
//! changes a socket writes to the descriptors that were left with it. So no change is missed, whichever thread takes the
//! completion that brought it.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, mem, ptr};

use crate::call::{Outcome, SocketRefusal};
use crate::settings::settings;

/// What wakes one thread.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight readable bytes. It fails only if the thread is awake already.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
    }

    /// Forgets what has woken the thread.
    pub(crate) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: eight writable bytes. It fails if nothing has woken the thread.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
    }
}

/// The calling thread's. A child of fork(2) makes one of its own: it shares the event descriptors of its parent, and each of the two
/// would clear what wakes the other.
pub(crate) fn own_waker() -> Outcome<Arc<Waker>> {
    thread_local! {
        static OWN: RefCell<Option<(u32, Arc<Waker>)>> = const { RefCell::new(None) };
    }
    OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        let process = std::process::id();
        match &*own {
            Some((owner, waker)) if *owner == process => Ok(waker.clone()),
            _ => Ok(own.insert((process, Arc::new(Waker::new()?))).1.clone()),
        }
    })
    .unwrap_or_else(|_| Err(SocketRefusal::new(libc::EIO, "the thread has ended")))
}

/// The threads that wait for a socket to change.
#[derive(Default, Debug)]
pub(crate) struct Waiters {
    wakers: Vec<Arc<Waker>>,
    arrivals: u64,
}

impl Waiters {
    pub(crate) fn add(&mut self, waker: &Arc<Waker>) {
        self.wakers.push(waker.clone());
    }

    pub(crate) fn remove(&mut self, waker: &Arc<Waker>) {
        if let Some(at) = self.wakers.iter().position(|w| Arc::ptr_eq(w, waker)) {
            self.wakers.swap_remove(at);
        }
    }

    /// Wakes who waits, who is to look again.
    pub(crate) fn wake(&self) {
        self.wakers.iter().for_each(|waker| waker.wake());
    }

    /// There is more to read or to accept.
    pub(crate) fn arrived(&mut self) {
        self.arrivals += 1;
    }

    /// How often there was.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals
    }
}

/// A descriptor to poll.
pub(crate) fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// The instant after `milliseconds`, or none if that is negative.
pub(crate) fn deadline(milliseconds: c_int) -> Option<Instant> {
    u64::try_from(milliseconds).ok().map(|ms| Instant::now() + Duration::from_millis(ms))
}

/// Signals of faults, which a thread causes itself.
const FAULTS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// The signals of a thread, held back until this is dropped. While it waits they come during [`sleep`] alone. So a signal that comes between
/// two sleeps of one call isn't missed, and the call fails with EINTR, as the kernel's calls do.
pub(crate) struct HeldSignals {
    before: libc::sigset_t,
    has_slept: Cell<bool>,
}

impl HeldSignals {
    /// Holds all signals back but those of faults.
    pub(crate) fn new() -> Self {
        Self::all_but(&FAULTS)
    }

    /// Holds all signals back, for a thread that is started meanwhile: it inherits that.
    pub(crate) fn all() -> Self {
        Self::all_but(&[])
    }

    fn all_but(others: &[c_int]) -> Self {
        // SAFETY: both sets are filled before they are read.
        let before = unsafe {
            let (mut held, mut before): (libc::sigset_t, libc::sigset_t) = (mem::zeroed(), mem::zeroed());
            libc::sigfillset(&raw mut held);
            for &signal in others {
                libc::sigdelset(&raw mut held, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, &raw mut before);
            before
        };
        Self { before, has_slept: Cell::new(false) }
    }

    /// Lets the signals in that came since the last sleep. A sleep itself lets none in if a descriptor is ready already.
    fn let_in_between(&self) -> io::Result<()> {
        if !self.has_slept.replace(true) {
            return Ok(());
        }
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: no descriptors, a valid time and a valid set.
        match unsafe { libc::ppoll(ptr::null_mut(), 0, &raw const at_once, &raw const self.before) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: the set that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

/// Sleeps until a descriptor is ready, a signal comes (EINTR), or the deadline; how many are ready. Signals that are held back come
/// meanwhile.
pub(crate) fn sleep(
    fds: &mut [libc::pollfd],
    until: Option<Instant>,
    held: Option<&HeldSignals>,
) -> io::Result<usize> {
    held.map_or(Ok(()), HeldSignals::let_in_between)?;
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = left.map(|left| libc::timespec {
        tv_sec: left.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: left.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let signals = held.map_or(ptr::null(), |held| &raw const held.before);
    // SAFETY: an array of this length, NULL or a valid time, and NULL or a valid set.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout, signals) };
    usize::try_from(ready).map_err(|_| io::Error::last_os_error())
}

/// What a call waits for.
pub(crate) trait WaitCondition {
    /// Writes what is ready now to the caller's memory, and returns how much is. `waker` is left with the sockets.
    fn look(&mut self, waker: Option<&Arc<Waker>>) -> Outcome<usize>;
    /// Sleeps until something may be ready, or the deadline.
    fn sleep(&self, waker: &Waker, until: Option<Instant>, held: &HeldSignals) -> Outcome<()>;
    /// Takes the waker back from the sockets.
    fn dont_wake(&self, waker: &Arc<Waker>);
}

/// Looks for the time of the settings, then sleeps once. Returns how much is ready, 0 at the deadline; `None`: look again. `held` is
/// what the call holds back from its first sleep on.
pub(crate) fn look_or_sleep(
    awaited: &mut impl WaitCondition,
    until: Option<Instant>,
    held: &mut Option<HeldSignals>,
) -> Outcome<Option<c_int>> {
    let count = |ready: usize| Some(c_int::try_from(ready).unwrap_or(c_int::MAX));
    let polling = Instant::now() + settings().polling;
    loop {
        let ready = awaited.look(None)?;
        let now = Instant::now();
        if ready > 0 || until.is_some_and(|until| now >= until) {
            return Ok(count(ready));
        }
        if now >= polling {
            break;
        }
        std::hint::spin_loop();
    }
    let waker = own_waker()?;
    waker.clear();
    let held = held.get_or_insert_with(HeldSignals::new);
    let ready = awaited.look(Some(&waker));
    let slept = match &ready {
        Ok(0) => awaited.sleep(&waker, until, held),
        _ => Ok(()),
    };
    awaited.dont_wake(&waker);
    let ready = ready?;
    if ready > 0 {
        return Ok(count(ready));
    }
    slept.map(|()| None)
}

/// A set of descriptors that is a descriptor itself, readable while one of them is.
#[derive(Debug)]
pub(crate) struct Set(OwnedFd);

impl Set {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn control(&self, operation: c_int, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: a valid event.
        match unsafe { libc::epoll_ctl(self.fd(), operation, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Adds a descriptor whose readability counts.
    pub(crate) fn add(&self, fd: RawFd, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, data)
    }

    /// Removes it, before it is closed: a child of a fork may have it open for longer.
    pub(crate) fn remove(&self, fd: RawFd) {
        // An error means that it isn't in the set.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// What is ready, at once or until `milliseconds` have passed (−1: without end).
    pub(crate) fn wait<'a>(
        &self,
        room: &'a mut [libc::epoll_event],
        milliseconds: c_int,
    ) -> io::Result<&'a [libc::epoll_event]> {
        // SAFETY: an array of this length.
        let ready = unsafe {
            libc::epoll_wait(
                self.fd(),
                room.as_mut_ptr(),
                room.len().min(i32::MAX as usize) as c_int,
                milliseconds,
            )
        };
        match usize::try_from(ready) {
            Ok(ready) => Ok(&room[..ready]),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// Lets reads of a descriptor fail instead of waiting.
pub(crate) fn make_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static COME: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: c_int) {
        COME.fetch_add(1, Ordering::Relaxed);
    }

    fn handle(signal: c_int) {
        // SAFETY: an action that is filled, whose handler adds to an atomic number only.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = count as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }

    fn raise(signal: c_int) {
        // SAFETY: this thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }

    #[test]
    fn a_signal_between_two_sleeps_ends_the_next_one() {
        handle(libc::SIGUSR2);
        let waker = Waker::new().unwrap();
        let soon = || Some(Instant::now() + Duration::from_secs(60));
        let held = HeldSignals::new();
        raise(libc::SIGUSR2);
        assert_eq!(COME.load(Ordering::Relaxed), 0, "it's held back");
        let slept = sleep(&mut [readable(waker.fd())], soon(), Some(&held));
        assert_eq!(slept.unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(COME.load(Ordering::Relaxed), 1, "it has come in the sleep");
        raise(libc::SIGUSR2);
        waker.wake();
        let slept = sleep(&mut [readable(waker.fd())], soon(), Some(&held));
        assert_eq!(slept.unwrap_err().kind(), io::ErrorKind::Interrupted, "also where a descriptor is ready");
        raise(libc::SIGUSR2);
        drop(held);
        assert_eq!(COME.load(Ordering::Relaxed), 3, "it comes when the call ends");
    }
}
