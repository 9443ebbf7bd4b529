//! Threads of the adapter's own, independent of the attributes of the thread that starts them.
//!
//! A new thread inherits the scheduling policy, the processors, the timer slack and the signal mask of its parent. The parent is
//! the thread that calls: perhaps a real-time thread that is bound to a processor and never gives it up.

use super::ending::Ours;
use super::signals::without_signals;
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Enough for 8,192 processors.
const CPU_WORDS: usize = 128;

/// By how much the kernel may prolong a sleep of a thread, in nanoseconds: the system's default.
const TIMER_SLACK: libc::c_ulong = 50_000;

/// A set of processors.
type Cpus = [u64; CPU_WORDS];

/// The processors of the process: those of its first thread when this was called for the first time.
static CPUS: OnceLock<Option<Cpus>> = OnceLock::new();

/// Notes the processors of the process, which [`start_thread`] gives to threads. To be called early, before the program's
/// threads bind themselves.
pub fn note_processors() {
    CPUS.get_or_init(|| {
        let mut cpus: Cpus = [0; CPU_WORDS];
        // SAFETY: the kernel writes at most that many bytes into `cpus`; getpid can't fail.
        let written = unsafe {
            let process = libc::getpid();
            libc::syscall(libc::SYS_sched_getaffinity, process, size_of_val(&cpus), cpus.as_mut_ptr())
        };
        (written > 0).then_some(cpus)
    });
}

type Body = Box<dyn FnOnce() + Send>;

extern "C" fn main_of_thread(body: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `create` made it of a box, and hands it to one thread.
    let body = unsafe { Box::from_raw(body.cast::<Body>()) };
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(*body)).is_err() {
        tracing::error!("a thread has panicked: this is a bug in Ferroce");
    }
    std::ptr::null_mut()
}

/// Attributes of a thread, given back when dropped.
struct ThreadAttributes(Box<MaybeUninit<libc::pthread_attr_t>>);

impl ThreadAttributes {
    fn new(stack: usize) -> io::Result<Self> {
        let mut new = Self(Box::new(MaybeUninit::uninit()));
        // SAFETY: the first call initialises what the others change.
        unsafe {
            check(libc::pthread_attr_init(new.pointer()))?;
            let stack = stack + stack_of_c_library(new.pointer());
            check(libc::pthread_attr_setstacksize(new.pointer(), stack))?;
            check(libc::pthread_attr_setdetachstate(new.pointer(), libc::PTHREAD_CREATE_DETACHED))?;
        }
        Ok(new)
    }

    fn pointer(&mut self) -> *mut libc::pthread_attr_t {
        self.0.as_mut_ptr()
    }

    /// No real-time thread, if this one is.
    fn leave_real_time(&mut self) -> io::Result<()> {
        // SAFETY: takes no pointer.
        let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
        if ![libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&policy) {
            return Ok(());
        }
        let priority = libc::sched_param { sched_priority: 0 };
        // SAFETY: initialised attributes, and a parameter that is read.
        unsafe {
            check(libc::pthread_attr_setinheritsched(self.pointer(), libc::PTHREAD_EXPLICIT_SCHED))?;
            check(libc::pthread_attr_setschedpolicy(self.pointer(), libc::SCHED_OTHER))?;
            check(libc::pthread_attr_setschedparam(self.pointer(), &raw const priority))
        }
    }

    /// The processors that the process has, whichever this thread is bound to.
    fn use_all_processors(&mut self) -> io::Result<()> {
        let Some(cpus) = CPUS.get().and_then(Option::as_ref) else { return Ok(()) };
        // SAFETY: initialised attributes; the set is read for the length given.
        check(unsafe {
            libc::pthread_attr_setaffinity_np(self.pointer(), size_of_val(cpus), cpus.as_ptr().cast())
        })
    }
}

/// What a thread's stack has in it that isn't the thread's to use: the thread-local variables of the program and of its libraries, however
/// large they are, and what the C library needs itself.
///
/// # Safety
/// The attributes are initialised.
unsafe fn stack_of_c_library(attributes: *const libc::pthread_attr_t) -> usize {
    type MinStack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    // SAFETY: looks up a name, which has this type wherever the C library has it.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr());
        let min_stack = std::mem::transmute::<*mut libc::c_void, Option<MinStack>>(found);
        min_stack.map_or(0, |min_stack| min_stack(attributes))
    }
}

impl Drop for ThreadAttributes {
    fn drop(&mut self) {
        // SAFETY: initialised by `new`, also where that has failed later.
        unsafe { libc::pthread_attr_destroy(self.pointer()) };
    }
}

fn check(errno: libc::c_int) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

fn create(attributes: &mut ThreadAttributes, body: Body) -> Result<libc::pthread_t, (io::Error, Body)> {
    let body: *mut Body = Box::into_raw(Box::new(body));
    let mut thread: libc::pthread_t = 0;
    // SAFETY: initialised attributes; the new thread owns `body`.
    let result = check(unsafe {
        libc::pthread_create(&raw mut thread, attributes.pointer(), main_of_thread, body.cast())
    });
    match result {
        Ok(()) => Ok(thread),
        // SAFETY: no thread was made that could own it.
        Err(error) => Err((error, *unsafe { Box::from_raw(body) })),
    }
}

/// Starts a detached thread, with all signals blocked (they are the program's; a guarded instruction, see `guard` of `ferroce-access`,
/// unblocks those of its faults), outside of real-time scheduling, on all processors of the process. `stack` is what `run` may use.
///
/// # Errors
/// No thread can be made.
pub fn start_thread(name: &str, stack: usize, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    note_processors();
    without_signals(|| start(name, stack, Box::new(run)))
}

fn start(name: &str, stack: usize, run: Body) -> io::Result<()> {
    let name = CString::new(name)?;
    let body = Box::new(move || {
        // SAFETY: this thread, and a string of at most 15 bytes.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
        // SAFETY: this thread, and a number.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK) };
        let _ours = Ours::begin();
        run();
    });
    let mut attributes = ThreadAttributes::new(stack)?;
    let body = match attributes.leave_real_time().and_then(|()| attributes.use_all_processors()) {
        Ok(()) => match create(&mut attributes, body) {
            Ok(_) => return Ok(()),
            Err((error, _)) if error.raw_os_error() == Some(libc::EAGAIN) => return Err(error),
            // The process may have none of these processors any more.
            Err((error, body)) => {
                tracing::info!(%error, "a thread is scheduled as the one that starts it");
                body
            }
        },
        Err(_) => body,
    };
    create(&mut ThreadAttributes::new(stack)?, body).map(drop).map_err(|(error, _)| error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_has_the_usual_timer_slack_whatever_its_starter_has() {
        // SAFETY: this thread, and a number.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_000_000_u64) }, 0);
        let (says, hears) = mpsc::channel();
        start_thread("test", 64 << 10, move || {
            // SAFETY: takes no pointer.
            says.send(unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }).unwrap();
        })
        .unwrap();
        assert_eq!(hears.recv().unwrap(), 50_000);
    }
}
