//! Sleeping until a socket changes, and waking who sleeps.
//!
//! Each thread that sleeps has a waker of its own, which it leaves with the sockets that it waits for. A thread that changes a
//! socket makes the wakers readable that were left with it. So no change is missed, whichever thread takes the completion that
//! brought it.

use std::cell::RefCell;
use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::call::{Outcome, SocketRefusal};
use crate::settings::settings;
use crate::signals;
use crate::this_process::ThisProcess;

/// What wakes one thread: a set with a descriptor that is always readable, and that counts while the thread is to be awake. Nothing is read from it or
/// written to it. A program that closes all descriptors may have opened other files with its numbers, and `epoll_ctl(2)` finds no such pair of a set and
/// a descriptor among these.
#[derive(Debug)]
pub struct Waker {
    set: ManuallyDrop<Set>,
    readable: ManuallyDrop<OwnedFd>,
}

impl Waker {
    /// A new one.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor.
        let readable = unsafe { OwnedFd::from_raw_fd(fd) };
        let set = Set::new()?;
        set.control(libc::EPOLL_CTL_ADD, fd, 0, 0)?;
        Ok(Self { set: ManuallyDrop::new(set), readable: ManuallyDrop::new(readable) })
    }

    /// The descriptor to sleep on.
    pub fn fd(&self) -> RawFd {
        self.set.fd()
    }

    /// Wakes the thread, now or when it sleeps next. False: the program has closed the waker.
    pub fn wake(&self) -> bool {
        self.count(libc::EPOLLIN)
    }

    /// Forgets what has woken the thread. False: the program has closed the waker.
    pub fn clear(&self) -> bool {
        self.count(0)
    }

    fn count(&self, events: c_int) -> bool {
        self.set.control(libc::EPOLL_CTL_MOD, self.readable.as_raw_fd(), events as u32, 0).is_ok()
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        // Not cleared: a child of fork(2) may drop the waker of a thread of its parent.
        if self.wake() {
            // SAFETY: both are the waker's still, and nothing uses them from here on.
            unsafe {
                ManuallyDrop::drop(&mut self.set);
                ManuallyDrop::drop(&mut self.readable);
            }
        }
    }
}

/// The calling thread's, cleared. A child of fork(2) makes one of its own: it shares the sets of its parent, and each of the two would clear what wakes the
/// other.
pub fn own_waker() -> Outcome<Arc<Waker>> {
    thread_local! {
        static OWN: RefCell<Option<ThisProcess<Arc<Waker>>>> = const { RefCell::new(None) };
    }
    OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        if let Some(waker) = own.as_mut().and_then(ThisProcess::get_mut)
            && waker.clear()
        {
            return Ok(waker.clone());
        }
        let waker = Arc::new(Waker::new()?);
        *own = Some(ThisProcess::new(waker.clone()));
        Ok(waker)
    })
    .unwrap_or_else(|_| Err(SocketRefusal::new(libc::EIO, "the thread has ended")))
}

/// The threads that wait for a socket to change.
#[derive(Default, Debug)]
pub struct Waiters {
    wakers: Vec<Arc<Waker>>,
    arrivals: u64,
}

impl Waiters {
    /// One more thread waits.
    pub fn add(&mut self, waker: &Arc<Waker>) {
        self.wakers.push(waker.clone());
    }

    /// The thread doesn't wait any more.
    pub fn remove(&mut self, waker: &Arc<Waker>) {
        if let Some(at) = self.wakers.iter().position(|w| Arc::ptr_eq(w, waker)) {
            self.wakers.swap_remove(at);
        }
    }

    /// Wakes who waits, who is to look again.
    pub fn wake(&self) {
        for waker in &self.wakers {
            waker.wake();
        }
    }

    /// There is more to read or to accept.
    pub fn arrived(&mut self) {
        self.arrivals += 1;
    }

    /// How often there was.
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }
}

/// A descriptor to poll.
pub fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// The instant after `milliseconds`, or none if that is negative.
pub fn deadline(milliseconds: c_int) -> Option<Instant> {
    u64::try_from(milliseconds).ok().map(|ms| Instant::now() + Duration::from_millis(ms))
}

/// What is left until an instant.
fn time_left(until: Option<Instant>) -> Option<libc::timespec> {
    let left = until?.saturating_duration_since(Instant::now());
    let (seconds, nanoseconds) = (left.as_secs().min(i32::MAX as u64), left.subsec_nanos());
    Some(libc::timespec { tv_sec: seconds as libc::time_t, tv_nsec: nanoseconds.into() })
}

/// Sleeps until a descriptor is ready, or the deadline (false). ERESTART or EINTR: a signal has come, and is let in at the end of the call.
pub fn sleep(mut fds: Vec<libc::pollfd>, until: Option<Instant>) -> Outcome<bool> {
    let others = fds.len();
    fds.push(readable(signals::arrivals(true)?));
    loop {
        match signals::poll(&mut fds, time_left(until)) {
            // The thread is cancelled, or a signal that isn't held back has come.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return Err(SocketRefusal::plain(libc::ERESTART));
            }
            Err(error) => return Err(error.into()),
            Ok(0) => return Ok(false),
            Ok(_) if fds[others].revents == 0 => return Ok(true),
            Ok(ready) => match signals::interruption() {
                Some(error) => return Err(error.into()),
                None if ready > 1 => return Ok(true),
                // It had no handler, or another thread has taken it, or the program has closed the descriptor.
                None => fds[others] = readable(signals::arrivals(false)?),
            },
        }
    }
}

/// How often a call that looks without sleeping looks for signals too.
const SIGNALS_EVERY: Duration = Duration::from_millis(1);

/// A call looks for what it waits for, before it sleeps and between sleeps.
#[derive(Default)]
pub struct Looking {
    end: Option<Instant>,
    signals: Option<Instant>,
}

impl Looking {
    /// Whether to look once more instead of sleeping. ERESTART or EINTR: as of [`sleep`].
    pub fn goes_on(&mut self) -> Outcome<bool> {
        let now = Instant::now();
        if now >= *self.signals.get_or_insert(now + SIGNALS_EVERY) {
            self.signals = Some(now + SIGNALS_EVERY);
            if let Some(error) = signals::interruption() {
                return Err(error.into());
            }
        }
        std::hint::spin_loop();
        Ok(now < *self.end.get_or_insert_with(|| now + settings().polling))
    }

    /// The call has slept, and looks for as long as at first.
    pub fn has_slept(&mut self) {
        self.end = None;
    }
}

/// What a call waits for.
pub trait WaitCondition {
    /// Writes what is ready now to the caller's memory, and returns how much is. `waker` is left with the sockets.
    fn look(&mut self, waker: Option<&Arc<Waker>>) -> Outcome<usize>;
    /// Sleeps until something may be ready, or the deadline.
    fn sleep(&self, waker: &Waker, until: Option<Instant>) -> Outcome<bool>;
    /// Takes the waker back from the sockets.
    fn dont_wake(&self, waker: &Arc<Waker>);
}

/// Looks for the time of the settings, then sleeps once. Returns how much is ready, 0 at the deadline; `None`: look again. EINTR: a signal
/// has come.
pub fn look_or_sleep(awaited: &mut impl WaitCondition, until: Option<Instant>) -> Outcome<Option<c_int>> {
    let count = |ready: usize| Some(c_int::try_from(ready).unwrap_or(c_int::MAX));
    let mut looking = Looking::default();
    loop {
        let ready = awaited.look(None)?;
        if ready > 0 || until.is_some_and(|until| Instant::now() >= until) {
            return Ok(count(ready));
        }
        if !looking.goes_on().map_err(not_restarted)? {
            break;
        }
    }
    let waker = own_waker()?;
    let ready = awaited.look(Some(&waker));
    let slept = match &ready {
        Ok(0) => awaited.sleep(&waker, until),
        _ => Ok(true),
    };
    awaited.dont_wake(&waker);
    let ready = ready?;
    if ready > 0 {
        return Ok(count(ready));
    }
    match slept {
        Ok(_) => Ok(None),
        // What became ready meanwhile comes first, and poll(2) isn't restarted.
        Err(refusal) if is_interruption(&refusal) => match awaited.look(None)? {
            0 => Err(not_restarted(refusal)),
            ready => Ok(count(ready)),
        },
        Err(refusal) => Err(refusal),
    }
}

/// Whether a signal is the reason.
pub fn is_interruption(refusal: &SocketRefusal) -> bool {
    matches!(refusal.errno, libc::ERESTART | libc::EINTR)
}

/// What ends a call that isn't restarted after a signal, whatever its handler's flags are.
pub fn not_restarted(mut refusal: SocketRefusal) -> SocketRefusal {
    if is_interruption(&refusal) {
        refusal.errno = libc::EINTR;
    }
    refusal
}

/// A set of descriptors that is a descriptor itself, readable while one of them is.
#[derive(Debug)]
pub struct Set(OwnedFd);

impl Set {
    /// An empty one.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The descriptor of the set.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Adds, changes or removes a descriptor, as `epoll_ctl(2)`.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`.
    pub fn control(&self, operation: c_int, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: a valid event.
        match unsafe { libc::epoll_ctl(self.fd(), operation, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Adds a descriptor whose readability counts.
    pub fn add(&self, fd: RawFd, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, data)
    }

    /// Removes it, before it is closed: a child of a fork may have it open for longer.
    pub fn remove(&self, fd: RawFd) {
        // An error means that it isn't in the set.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// What is ready, at once or until `milliseconds` have passed (−1: without end).
    pub fn wait<'a>(
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
pub fn make_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let done = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::ThreadInCall;

    /// A file of the program that a read and a write would change, and that a sleep would find ready.
    fn counter() -> OwnedFd {
        // SAFETY: no memory is passed, and a new descriptor.
        unsafe { OwnedFd::from_raw_fd(libc::eventfd(5, libc::EFD_NONBLOCK)) }
    }

    fn count_of(counter: &OwnedFd) -> u64 {
        let mut count = 0u64;
        // SAFETY: eight writable bytes.
        assert_eq!(unsafe { libc::read(counter.as_raw_fd(), (&raw mut count).cast(), 8) }, 8);
        count
    }

    /// The program has closed what the thread has, and its own file has the number.
    fn give_number(number: RawFd, file: &OwnedFd) {
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
    }

    fn sleeps_until_the_deadline(waker: &Waker) -> bool {
        let thread = ThreadInCall::enter(true);
        let slept = sleep(vec![readable(waker.fd())], Some(Instant::now() + Duration::from_millis(20)));
        thread.leave();
        matches!(slept, Ok(false))
    }

    #[test]
    fn a_waker_wakes_until_it_is_cleared() {
        let waker = own_waker().unwrap();
        assert!(sleeps_until_the_deadline(&waker));
        for _ in 0..2 {
            assert!(waker.wake());
            assert!(!sleeps_until_the_deadline(&waker));
        }
        assert!(sleeps_until_the_deadline(&own_waker().unwrap()), "the thread's is cleared");
    }

    #[test]
    fn files_of_the_program_with_a_wakers_numbers_are_left_alone() {
        let of_waker: [fn(&Waker) -> Vec<RawFd>; 3] = [
            |waker| vec![waker.set.fd()],
            |waker| vec![waker.readable.as_raw_fd()],
            |waker| vec![waker.set.fd(), waker.readable.as_raw_fd()],
        ];
        for numbers in of_waker {
            let file = counter();
            let numbers = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let lost = own_waker().unwrap();
                    let numbers = numbers(&lost);
                    numbers.iter().for_each(|&number| give_number(number, &file));
                    let others = std::thread::scope(|scope| scope.spawn(|| lost.wake()).join().unwrap());
                    assert!(!others, "another thread's wake finds no waker");
                    let waker = own_waker().unwrap();
                    assert!(!Arc::ptr_eq(&waker, &lost));
                    assert!(sleeps_until_the_deadline(&waker));
                    numbers
                });
                thread.join().unwrap()
            });
            for number in numbers {
                // SAFETY: no memory is passed, and a number that this test has given a file.
                let still = unsafe {
                    assert!(libc::fcntl(number, libc::F_GETFD) >= 0, "it's open when the thread has ended");
                    OwnedFd::from_raw_fd(number)
                };
                drop(still);
            }
            assert_eq!(count_of(&file), 5, "it's neither read nor written");
        }
    }
}
