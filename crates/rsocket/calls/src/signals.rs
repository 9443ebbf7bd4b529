//! The signals of a thread while it is in a call.
//!
//! A handler may use sockets itself, leave by siglongjmp(3), throw an exception or end its thread. So the signals of a thread are held back
//! while it is in a call, and handlers run where nothing of the call is left on the stack. A call that waits when a signal comes ends, as a
//! system call does in the kernel, lets the signal in, and begins anew if the handler has SA_RESTART.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_long};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};
use std::{io, mem, ptr};

pub use ferroce_os::sys::without_signals;
use ferroce_os::sys::{CANCELS, NEVER_HELD, SignalSet, block, signal_set};
use libc::siginfo_t;

use crate::this_process::ThisProcess;

/// Signals that the kernel leaves out of the set of a signalfd.
const NEVER_IN_A_SIGNALFD: SignalSet = signal_set(&[libc::SIGKILL, libc::SIGSTOP]);

/// The first realtime signal of the kernel. Of these each one is kept in its queue.
const FIRST_QUEUED: c_int = 32;

/// Signals that change nothing where they have no handler.
const WITHOUT_EFFECT: SignalSet = signal_set(&[libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT]);

thread_local! {
    /// The signals that the program blocks in this thread, while the thread is in a call.
    static BLOCKED: Cell<Option<SignalSet>> = const { Cell::new(None) };
    /// A child of fork(2) has one of its own: the signals of its parent's are those for which the parent waits.
    static ARRIVALS: RefCell<Option<ThisProcess<SignalDescriptor>>> = const { RefCell::new(None) };
}

/// Makes the calling thread the library's (1) or the program's (0). Returns what it was before.
type Mark = extern "C" fn(c_int) -> c_int;

/// The [`Mark`] of libferroce_rsocket_preload.so, which distinguishes the library's sockets from the program's.
static MARK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Has each call mark its thread.
pub fn set_mark(mark: *mut ()) {
    MARK.store(mark, Ordering::Relaxed);
}

fn mark(value: c_int) -> Option<c_int> {
    let mark = MARK.load(Ordering::Relaxed);
    // SAFETY: the option that sets it takes nothing but a function of this type.
    (!mark.is_null()).then(|| unsafe { mem::transmute::<*mut (), Mark>(mark)(value) })
}

unsafe extern "C-unwind" {
    /// A thread that was cancelled ends in it where its cancellation is asynchronous.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(of: c_int, old: *mut c_int) -> c_int;
    fn pthread_testcancel();
}
const PTHREAD_CANCEL_DISABLE: c_int = 1;
const PTHREAD_CANCEL_DEFERRED: c_int = 0;

/// A thread is in a call, and isn't cancelled: the forced unwinding of the C library must not run through Rust code that has something to
/// drop. It has no destructor, since [`ThreadInCall::leave`] may not return.
#[derive(Clone, Copy)]
pub struct ThreadInCall {
    blocked: SignalSet,
    /// Of a call that the handler of a fault interrupts.
    outer: Option<SignalSet>,
    /// Whether the program lets the thread be cancelled.
    cancellation: c_int,
    /// `None` of the call that sets [`MARK`].
    mark: Option<c_int>,
}

impl ThreadInCall {
    /// Holds the signals of the calling thread back. A thread that `waits` ends here if it is cancelled, before they are held back: its cleanup handlers
    /// run with the program's mask. It ends with its signals held back if it is cancelled just then, since the signal by which it is cancelled is handled
    /// before. From here on that signal stays pending, and ends the wait.
    pub fn enter(waits: bool) -> Self {
        if waits {
            // SAFETY: POSIX. There is nothing to drop.
            unsafe { pthread_testcancel() };
        }
        let blocked = block(libc::SIG_BLOCK, !NEVER_HELD);
        if waits {
            // SAFETY: POSIX. There is nothing to drop.
            unsafe { pthread_testcancel() };
        }
        let mut cancellation = 0;
        // SAFETY: a place for the state that the thread had.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancellation) };
        Self { blocked, outer: BLOCKED.replace(Some(blocked)), cancellation, mark: mark(1) }
    }

    /// Lets the signals in: their handlers run. A thread that was cancelled during the call ends here if its cancellation is asynchronous,
    /// else at its next cancellation point.
    pub fn leave(self) {
        BLOCKED.set(self.outer);
        self.mark.and_then(mark);
        // Before the handlers run, which may not return. The thread doesn't end in pthread_setcancelstate: some versions of the C library
        // give pthread_join(3) no result then.
        // SAFETY: a place for the type that the thread has, and the state that it had.
        unsafe {
            let mut of = PTHREAD_CANCEL_DEFERRED;
            pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &raw mut of);
            pthread_setcancelstate(self.cancellation, ptr::null_mut());
            if of != PTHREAD_CANCEL_DEFERRED {
                pthread_testcancel();
                pthread_setcanceltype(of, ptr::null_mut());
            }
        }
        block(libc::SIG_SETMASK, self.blocked);
    }
}

/// The signals that end a wait of the calling thread.
fn awaited() -> SignalSet {
    !(BLOCKED.get().unwrap_or(!0) | NEVER_HELD | CANCELS)
}

/// Polls descriptors until one is ready, or for this time; how many are ready. EINTR: the thread is cancelled.
pub fn poll(fds: &mut [libc::pollfd], mut timeout: Option<libc::timespec>) -> io::Result<usize> {
    let held = (BLOCKED.get().unwrap_or(0) | !NEVER_HELD) & !CANCELS;
    let timeout = timeout.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: an array of this length, NULL or a valid time, and a set of this length.
    let ready = unsafe {
        let (first, held) = (fds.as_mut_ptr(), &raw const held);
        libc::syscall(libc::SYS_ppoll, first, fds.len(), timeout, held, size_of::<SignalSet>())
    };
    usize::try_from(ready).map_err(|_| io::Error::last_os_error())
}

/// The descriptor that is readable while a signal of a thread is pending. A program that closes all descriptors closes it too, and may have opened
/// another file with its number.
struct SignalDescriptor {
    fd: RawFd,
    signals: SignalSet,
}

impl SignalDescriptor {
    fn new(signals: SignalSet) -> io::Result<Self> {
        Ok(Self { fd: signal_fd(-1, signals)?, signals })
    }

    /// Makes it one for `signals`. Fails if it isn't the thread's any more.
    fn expect(&mut self, signals: SignalSet) -> io::Result<()> {
        if !self.has_its_signals() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        signal_fd(self.fd, signals)?;
        self.signals = signals;
        Ok(())
    }

    /// Whether a signalfd for the same signals has the number: one of the program is for others as a rule. Where that can't be read (no `/proc`, or no
    /// descriptor is left), any counts as the thread's.
    fn has_its_signals(&self) -> bool {
        let Ok(about) = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", self.fd)) else {
            return true;
        };
        let set = about.lines().find_map(|line| line.strip_prefix("sigmask:"));
        let set = set.and_then(|set| SignalSet::from_str_radix(set.trim(), 16).ok());
        set == Some(self.signals & !NEVER_IN_A_SIGNALFD)
    }
}

impl Drop for SignalDescriptor {
    fn drop(&mut self) {
        if self.expect(self.signals).is_ok() {
            // SAFETY: the thread's.
            unsafe { libc::close(self.fd) };
        }
    }
}

/// A new descriptor (−1), or an old one, that is readable while one of `signals` is pending. Fails if the old one isn't such a descriptor.
fn signal_fd(fd: RawFd, signals: SignalSet) -> io::Result<RawFd> {
    let flags = c_long::from(libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
    // SAFETY: a set of this length.
    let fd = unsafe {
        let set = &raw const signals;
        libc::syscall(libc::SYS_signalfd4, c_long::from(fd), set, size_of::<SignalSet>(), flags)
    };
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd as RawFd) }
}

/// The calling thread's descriptor that is readable while a signal is pending that ends its wait. `is_certain`: it's the thread's, as far as the caller
/// knows.
pub fn arrivals(is_certain: bool) -> io::Result<RawFd> {
    let awaited = awaited();
    let fd = ARRIVALS.try_with(|arrivals| {
        let mut place = arrivals.borrow_mut();
        if let Some(own) = place.as_mut().and_then(ThisProcess::get_mut)
            && (is_certain && own.signals == awaited || own.expect(awaited).is_ok())
        {
            return Ok(own.fd);
        }
        let new = SignalDescriptor::new(awaited)?;
        let fd = new.fd;
        *place = Some(ThisProcess::new(new));
        Ok(fd)
    });
    fd.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// If a signal is pending that has a handler and ends the calling thread's wait: ERESTART if the handler has SA_RESTART, else EINTR.
/// The signal is the calling thread's from then on. Others are dealt with. ERESTART also if the thread is cancelled.
pub fn interruption() -> Option<io::Error> {
    loop {
        let Some((signal, info)) = take(awaited()) else {
            return is_cancelled().then(|| io::Error::from_raw_os_error(libc::ERESTART));
        };
        // SAFETY: zeros are valid, and a place for the answer.
        let action = unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            libc::sigaction(signal, ptr::null(), &raw mut action);
            action
        };
        match action.sa_sigaction {
            libc::SIG_IGN => {}
            libc::SIG_DFL if WITHOUT_EFFECT & signal_set(&[signal]) != 0 => {}
            libc::SIG_DFL => {
                // It ends or stops the process. Handlers of signals that come while it is stopped run after the call.
                give_back(signal, &[info], PATIENCE);
                let held = block(libc::SIG_UNBLOCK, signal_set(&[signal]));
                block(libc::SIG_SETMASK, held);
            }
            _ => {
                // A signal that is given back is the last of its number: realtime signals keep their order only if all of them are taken.
                let mut taken = vec![info];
                while let Some((_, next)) =
                    (signal >= FIRST_QUEUED).then(|| take(signal_set(&[signal]))).flatten()
                {
                    taken.push(next);
                }
                give_back(signal, &taken, PATIENCE);
                let restarts = action.sa_flags & libc::SA_RESTART != 0;
                let errno = if restarts { libc::ERESTART } else { libc::EINTR };
                return Some(io::Error::from_raw_os_error(errno));
            }
        }
    }
}

/// Whether the signal is pending by which the calling thread is cancelled.
fn is_cancelled() -> bool {
    let mut pending: SignalSet = 0;
    // SAFETY: a set of this length.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, size_of::<SignalSet>()) };
    pending & CANCELS & !BLOCKED.get().unwrap_or(!0) != 0
}

/// Takes a pending signal of a set. By the system call, since the C library changes what a signal comes with.
fn take(set: SignalSet) -> Option<(c_int, siginfo_t)> {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: zeros are valid; a set of this length, room for the answer, and a time.
    let (signal, info) = unsafe {
        let mut info: siginfo_t = mem::zeroed();
        let (set, at_once, place) = (&raw const set, &raw const at_once, &raw mut info);
        (libc::syscall(libc::SYS_rt_sigtimedwait, set, place, at_once, size_of::<SignalSet>()), info)
    };
    (signal > 0).then_some((signal as c_int, info))
}

/// How long signals that are given back wait for room.
const PATIENCE: Duration = Duration::from_secs(1);

/// Makes signals of one number that were taken pending again, for the calling thread. The user's other processes may have filled the room for queued
/// signals (RLIMIT_SIGPENDING). Then it waits for room for this time. What finds none comes once, without what it came with.
fn give_back(signal: c_int, taken: &[siginfo_t], patience: Duration) {
    const BETWEEN: Duration = Duration::from_millis(1);
    let begun = Instant::now();
    for info in taken {
        while queue(signal, info).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            if begun.elapsed() >= patience {
                // Zeros mean SI_USER: such a signal becomes pending without room too.
                // SAFETY: zeros are valid.
                let _ = queue(signal, &unsafe { mem::zeroed() });
                break;
            }
            std::thread::sleep(BETWEEN);
        }
    }
}

/// Sends the calling thread a signal with this information. WouldBlock: there is no room.
fn queue(signal: c_int, info: &siginfo_t) -> io::Result<()> {
    // SAFETY: this thread, a signal, and what it comes with.
    let given = unsafe {
        let (process, thread) = (c_long::from(libc::getpid()), libc::syscall(libc::SYS_gettid));
        let number = c_long::from(signal);
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, number, &raw const *info)
    };
    if given == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::os::fd::AsRawFd;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, AtomicU64};

    use super::*;
    use crate::waiting::{Looking, Waker, own_waker, readable, sleep};

    static COME: AtomicU32 = AtomicU32::new(0);

    fn come() -> u32 {
        COME.load(Ordering::Relaxed)
    }

    extern "C" fn count(_: c_int) {
        COME.fetch_add(1, Ordering::Relaxed);
    }

    fn handle(signal: c_int, handler: usize, flags: c_int) {
        // SAFETY: an action that is filled, whose handler adds to an atomic number only.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = flags;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }

    fn raise(signal: c_int) {
        // SAFETY: this thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }

    #[test]
    fn a_signal_ends_a_sleep_and_is_handled_after_the_call() {
        let handler = count as *const () as usize;
        let waker = Waker::new().unwrap();
        let slept = |seconds| {
            let until = Instant::now() + Duration::from_secs(seconds);
            sleep(vec![readable(waker.fd())], Some(until)).map_err(|refusal| refusal.errno)
        };
        let signals = [libc::SIGUSR2, libc::SIGABRT];
        let kinds = [(0, libc::EINTR), (libc::SA_RESTART, libc::ERESTART)];
        for (signal, (flags, errno)) in
            signals.into_iter().flat_map(|signal| kinds.map(|kind| (signal, kind)))
        {
            handle(signal, handler, flags);
            let (before, thread) = (come(), ThreadInCall::enter(true));
            raise(signal);
            assert_eq!(slept(60), Err(errno));
            assert_eq!(come(), before, "it's held back");
            waker.wake();
            assert_eq!(slept(60), Err(errno), "also where a descriptor is ready");
            waker.clear();
            thread.leave();
            assert_eq!(come(), before + 1, "it comes when the call ends, once");
        }
        for ignored in [libc::SIG_DFL, libc::SIG_IGN] {
            handle(libc::SIGWINCH, ignored, 0);
            let thread = ThreadInCall::enter(true);
            raise(libc::SIGWINCH);
            assert_eq!(slept(0), Ok(false), "a signal without a handler ends no sleep");
            thread.leave();
        }
        let blocked = block(libc::SIG_BLOCK, signal_set(&[libc::SIGUSR2]));
        let thread = ThreadInCall::enter(true);
        raise(libc::SIGUSR2);
        assert_eq!(slept(0), Ok(false), "the program has blocked it");
        thread.leave();
        let before = come();
        block(libc::SIG_SETMASK, blocked);
        assert_eq!(come(), before + 1, "it comes when the program lets it in");
    }

    /// A realtime signal with a value, to this thread, as of pthread_sigqueue(3).
    fn queued(value: usize) -> siginfo_t {
        #[repr(C)]
        struct Queued {
            head: [c_int; 4],
            pid: c_int,
            uid: u32,
            value: usize,
        }
        // SAFETY: zeros are valid, and the kernel's layout of a queued signal.
        unsafe {
            let mut info: siginfo_t = mem::zeroed();
            info.si_code = libc::SI_QUEUE;
            (&raw mut info).cast::<Queued>().as_mut().unwrap().value = value;
            info
        }
    }

    #[test]
    fn realtime_signals_keep_their_order() {
        static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        extern "C" fn note(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
            // SAFETY: the kernel's information. The signal comes while this thread has no lock.
            SEEN.lock().unwrap().push(unsafe { (*info).si_value().sival_ptr.addr() });
        }
        let signal = libc::SIGRTMIN();
        handle(signal, note as *const () as usize, libc::SA_SIGINFO);
        let thread = ThreadInCall::enter(true);
        give_back(signal, &[1, 2, 3].map(queued), Duration::from_secs(60));
        let until = Some(Instant::now() + Duration::from_secs(60));
        assert_eq!(sleep(Vec::new(), until).map_err(|refusal| refusal.errno), Err(libc::EINTR));
        thread.leave();
        assert_eq!(*SEEN.lock().unwrap(), [1, 2, 3]);
    }

    /// Runs `with` where no signal can be queued, with this signal blocked. `with` is passed what ends the lack of room.
    fn without_room(signal: c_int, with: impl FnOnce(&(dyn Fn() + Sync))) {
        // The limit is the process's, and tests run beside each other.
        static LIMIT: Mutex<()> = Mutex::new(());
        let _alone = LIMIT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: a limit.
        let set_limit = |limit: &libc::rlimit| unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_SIGPENDING, &raw const *limit), 0);
        };
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: room for the answer.
        unsafe { libc::getrlimit(libc::RLIMIT_SIGPENDING, &raw mut limit) };
        let blocked = block(libc::SIG_BLOCK, signal_set(&[signal]));
        set_limit(&libc::rlimit { rlim_cur: 0, ..limit });
        with(&|| set_limit(&limit));
        set_limit(&limit);
        block(libc::SIG_SETMASK, blocked);
    }

    #[test]
    fn a_signal_for_which_there_is_no_room_is_given_back_later() {
        let signal = libc::SIGRTMIN() + 1;
        without_room(signal, |make_room| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(50));
                    make_room();
                });
                give_back(signal, &[queued(7)], Duration::from_secs(60));
            });
            let (taken, info) = take(signal_set(&[signal])).expect("it's pending");
            // SAFETY: a queued signal.
            assert_eq!((taken, unsafe { info.si_value().sival_ptr.addr() }), (signal, 7));
        });
    }

    #[test]
    fn a_signal_for_which_there_is_never_room_comes_without_its_value() {
        for signal in [libc::SIGRTMIN() + 2, libc::SIGUSR2] {
            without_room(signal, |_| {
                give_back(signal, &[7, 8].map(queued), Duration::from_millis(5));
                let (taken, info) = take(signal_set(&[signal])).expect("it's pending");
                assert_eq!((taken, info.si_code), (signal, libc::SI_USER));
                assert!(take(signal_set(&[signal])).is_none(), "signals without a value are one");
            });
        }
    }

    #[test]
    fn a_thread_that_is_cancelled_before_its_signals_are_held_back_ends() {
        unsafe extern "C-unwind" {
            fn pthread_cancel(thread: libc::pthread_t) -> c_int;
            fn pthread_create(
                thread: *mut libc::pthread_t,
                attributes: *const libc::pthread_attr_t,
                start: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
                argument: *mut c_void,
            ) -> c_int;
        }
        /// Between the cancellation point at the beginning of a call and the call.
        extern "C-unwind" fn call(waits: *mut c_void) -> *mut c_void {
            // SAFETY: this thread, which has nothing to drop, and a value that isn't used.
            unsafe {
                libc::pthread_setspecific(*KEY.get().unwrap(), (&raw const KEY).cast());
                pthread_cancel(libc::pthread_self());
            }
            ThreadInCall::enter(!waits.is_null()).leave();
            ptr::null_mut()
        }
        /// Runs when a thread ends, and keeps its mask.
        extern "C" fn at_end(_: *mut c_void) {
            HELD_AT_END.store(block(libc::SIG_BLOCK, 0), Ordering::Relaxed);
        }
        static HELD_AT_END: AtomicU64 = AtomicU64::new(0);
        static KEY: std::sync::OnceLock<libc::pthread_key_t> = std::sync::OnceLock::new();
        KEY.get_or_init(|| {
            let mut key = 0;
            // SAFETY: a place for the key, and a function that doesn't use its argument.
            assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(at_end)) }, 0);
            key
        });
        let ended = |waits: usize| {
            let (mut thread, mut result) = (0, ptr::null_mut());
            // SAFETY: places for the answers, and a function that uses its argument as a number.
            unsafe {
                assert_eq!(pthread_create(&raw mut thread, ptr::null(), call, waits as *mut c_void), 0);
                assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
            }
            result as isize
        };
        const PTHREAD_CANCELED: isize = -1;
        let own = block(libc::SIG_BLOCK, 0);
        assert_eq!(ended(1), PTHREAD_CANCELED, "a call that waits is a cancellation point");
        assert_eq!(HELD_AT_END.load(Ordering::Relaxed), own, "no signal is held back at the end");
        assert_eq!(ended(0), 0, "a call that doesn't wait isn't one");
    }

    /// The program has closed what the thread has made to wait, and a file of the program has the number: readable, so a sleep ends that looks at it.
    fn take_number(number: RawFd) -> std::fs::File {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        file
    }

    fn is_open(number: RawFd, file: &std::fs::File) -> bool {
        let link = |number| std::fs::read_link(format!("/proc/self/fd/{number}")).ok();
        link(number).is_some() && link(number) == link(file.as_raw_fd())
    }

    fn sleeps_until_the_deadline() -> bool {
        let thread = ThreadInCall::enter(true);
        let slept = sleep(Vec::new(), Some(Instant::now() + Duration::from_millis(20)));
        thread.leave();
        matches!(slept, Ok(false))
    }

    #[test]
    fn a_number_that_the_program_has_given_another_file_is_left_alone() {
        let slept = std::thread::spawn(|| {
            assert!(sleeps_until_the_deadline());
            let number = arrivals(true).unwrap();
            let file = take_number(number);
            assert!(sleeps_until_the_deadline(), "also where nothing of the thread's has the number");
            assert!(is_open(number, &file));
            let number = arrivals(true).unwrap();
            (number, take_number(number))
        });
        let (number, file) = slept.join().unwrap();
        assert!(is_open(number, &file), "also when the thread has ended");
    }

    #[test]
    fn a_signalfd_of_the_program_with_the_number_keeps_its_signals() {
        let own = signal_fd(-1, signal_set(&[libc::SIGHUP])).unwrap();
        let set_at = |fd: RawFd| {
            let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("it's open");
            about.lines().find(|line| line.starts_with("sigmask:")).map(str::to_owned)
        };
        let expected = set_at(own);
        let take = move |number: RawFd| {
            // SAFETY: no memory is passed.
            assert_eq!(unsafe { libc::dup2(own, number) }, number);
            number
        };
        let thread = std::thread::spawn(move || {
            assert!(sleeps_until_the_deadline());
            let first = take(arrivals(true).unwrap());
            // The thread waits for others than before.
            let before = block(libc::SIG_BLOCK, signal_set(&[libc::SIGWINCH]));
            assert!(sleeps_until_the_deadline());
            block(libc::SIG_SETMASK, before);
            assert!(sleeps_until_the_deadline());
            [first, take(arrivals(true).unwrap())]
        });
        for number in thread.join().unwrap() {
            assert_eq!(set_at(number), expected);
        }
    }

    #[test]
    fn a_childs_file_with_the_number_of_its_parents_descriptor_is_left_alone() {
        assert!(sleeps_until_the_deadline());
        let numbers = [arrivals(true).unwrap(), own_waker().unwrap().fd()];
        // SAFETY: the child uses what this thread has, and ends without cleaning up.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let files = numbers.map(take_number);
            let is_right = sleeps_until_the_deadline()
                && own_waker().is_ok()
                && numbers.iter().zip(&files).all(|(number, file)| is_open(*number, file));
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = 0;
        // SAFETY: the child, and room for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(sleeps_until_the_deadline());
    }

    #[test]
    fn a_signal_ends_a_long_look() {
        // Not `count`: tests run beside each other.
        extern "C" fn nothing(_: c_int) {}
        handle(libc::SIGUSR1, nothing as *const () as usize, 0);
        let thread = ThreadInCall::enter(true);
        raise(libc::SIGUSR1);
        let (mut looking, end) = (Looking::default(), Instant::now() + Duration::from_secs(60));
        let mut ended = None;
        while ended.is_none() && Instant::now() < end {
            ended = looking.goes_on().map_err(|refusal| refusal.errno).err();
            looking.has_slept();
        }
        assert_eq!(ended, Some(libc::EINTR));
        thread.leave();
    }
}
