//! What every C function has around it: a panic boundary, errno, and one place where a refusal is reported.

use std::borrow::Cow;
use std::ffi::c_int;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::log;
use crate::signals::ThreadInCall;

/// Why a call is refused.
#[derive(Clone, Debug)]
pub struct SocketRefusal {
    /// The errno that its man page documents.
    pub errno: c_int,
    /// One readable sentence, with the fix where there is one; empty where errno suffices.
    pub why: Cow<'static, str>,
}

/// What a call comes to.
pub type Outcome<T> = Result<T, SocketRefusal>;

impl SocketRefusal {
    /// With an errno and a sentence.
    pub fn new(errno: c_int, why: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, why: why.into() }
    }

    /// A refusal that a TCP socket makes too.
    pub fn plain(errno: c_int) -> Self {
        Self::new(errno, "")
    }

    /// EAGAIN.
    pub fn would_block() -> Self {
        Self::plain(libc::EAGAIN)
    }

    /// The errno that a C function has just set.
    pub fn last(what: &'static str) -> Self {
        let errno = errno();
        Self::new(errno, format!("{what}: {}", io::Error::from_raw_os_error(errno)))
    }
}

impl From<io::Error> for SocketRefusal {
    fn from(error: io::Error) -> Self {
        Self::plain(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Success for 0, otherwise the errno of the C function.
pub fn zero(result: c_int, what: &'static str) -> Outcome<()> {
    if result == 0 { Ok(()) } else { Err(SocketRefusal::last(what)) }
}

/// The calling thread's errno.
pub fn errno() -> c_int {
    // SAFETY: the address is the calling thread's own errno, valid for its lifetime.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = errno };
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// A number that C functions return.
pub trait Number {
    /// What a call that fails returns.
    const MINUS_ONE: Self;
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Number for $number {
            const MINUS_ONE: Self = -1;
        }
    )*};
}
numbers!(c_int isize i64);

/// Runs `body`: its number, or −1 and errno. A panic is EIO, and nothing unwinds into C. Signals are held back meanwhile; one that comes
/// while `body` waits ends it, and its handler runs when nothing of `body` is left. A call that `waits` is a cancellation point.
pub fn minus_one<T: Number>(call: &'static str, waits: bool, body: impl Fn() -> Outcome<T>) -> T {
    let cancellation_point = || {
        if waits {
            // SAFETY: POSIX. There is nothing to drop.
            unsafe { pthread_testcancel() };
        }
    };
    cancellation_point();
    let before = errno();
    loop {
        let thread = ThreadInCall::enter(waits);
        let result = attempt(call, &body);
        // From here on there is nothing to drop: a handler may not return.
        thread.leave();
        match result {
            // A success leaves errno alone, also after attempts that a signal has ended.
            Ok(number) => {
                set_errno(before);
                return number;
            }
            Err(errno) => {
                if matches!(errno, libc::ERESTART | libc::EINTR) {
                    cancellation_point();
                }
                if errno != libc::ERESTART {
                    set_errno(errno);
                    return T::MINUS_ONE;
                }
            }
        }
    }
}

/// What `body` returns, or the errno of its refusal.
fn attempt<T: Number>(call: &'static str, body: &impl Fn() -> Outcome<T>) -> Result<T, c_int> {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(SocketRefusal::new(libc::EIO, "an internal error; the socket can't be used any more"))
    });
    outcome.map_err(|refusal| {
        log::refused(call, &refusal.why);
        refusal.errno
    })
}
