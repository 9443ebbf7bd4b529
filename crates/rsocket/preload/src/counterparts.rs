//! Functions of sockets that have a counterpart in librdmacm.

use std::ffi::c_int;

use crate::real::{errno, set_errno};

/// Defines functions that have a counterpart in librdmacm with the same arguments; `find` finds the rsocket of a number. Those with
/// `signals` raise SIGPIPE, unless their flags forbid it.
macro_rules! counterparts {
    ($find:path; $(
        $name:literal $function:ident $counterpart:ident($($arg:ident: $ty:ty),*) -> $ret:ty $(, signals($flags:expr))?;
    )*) => {$(
        #[unsafe(export_name = concat!("ferroce_s_", stringify!($function)))]
        pub(crate) unsafe extern "C-unwind" fn $function(fd: c_int, $($arg: $ty),*) -> $ret {
            match $find(fd) {
                Some(rs) => {
                    // SAFETY: the program's own arguments.
                    let result = unsafe { $crate::rsocket::$counterpart(rs, $($arg),*) };
                    $(let result = $crate::counterparts::signalled(result, $flags);)?
                    result
                }
                None => $crate::real::real!($name, fn(c_int, $($ty),*) -> $ret, (fd, $($arg),*)),
            }
        }
    )*};
}
pub(crate) use counterparts;

/// Raises SIGPIPE for a call that sends on a closed socket, unless the program has set MSG_NOSIGNAL.
pub(crate) fn signalled(result: isize, flags: c_int) -> isize {
    if result < 0 && errno() == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: this thread, and a signal.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
        set_errno(libc::EPIPE);
    }
    result
}
