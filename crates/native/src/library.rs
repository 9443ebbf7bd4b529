//! What surrounds each call of the adapter: forks wait for it, and its errors become those of the API.

use ferroce_buffers::{Error, Kind};
use std::time::Duration;

/// Until this is dropped, a fork of the process waits.
///
/// # Errors
/// The process was made in a way in which the adapter doesn't work (a raw `clone`).
#[inline]
pub(crate) fn enter(verb: &'static str) -> Result<ferroce_os::fork::InLibrary, Error> {
    ferroce_os::fork::enter_library()
        .map_err(|ferroce_os::fork::Unusable(why)| Error::new(Kind::Dead, verb, why))
}

/// An error of the adapter.
#[cold]
pub(crate) fn error(verb: &'static str, error: &ferroce_types::Error) -> Error {
    let kind = match error {
        ferroce_types::Error::Invalid(_) | ferroce_types::Error::Fault(_) => Kind::Invalid,
        ferroce_types::Error::NoMemory(_) => Kind::NoMemory,
        ferroce_types::Error::Busy(_) => Kind::Busy,
        ferroce_types::Error::NotSupported(_) => Kind::Unsupported,
        ferroce_types::Error::NotFound(_) => Kind::NotFound,
        ferroce_types::Error::Permission(_) => Kind::Denied,
        ferroce_types::Error::Dead(_) => Kind::Dead,
        ferroce_types::Error::Host { .. }
        | ferroce_types::Error::Refused { .. }
        | ferroce_types::Error::Os { .. } => of_errno(error.errno()),
    };
    Error::new(kind, verb, error.to_string())
}

const fn of_errno(errno: i32) -> Kind {
    match errno {
        libc::EACCES | libc::EPERM => Kind::Denied,
        libc::EADDRINUSE | libc::EBUSY => Kind::InUse,
        libc::ENOMEM | libc::EMFILE | libc::ENFILE => Kind::NoMemory,
        libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::EADDRNOTAVAIL => Kind::NotFound,
        libc::ETIMEDOUT => Kind::TimedOut,
        libc::EHOSTUNREACH | libc::ENETUNREACH => Kind::Unreachable,
        libc::EOPNOTSUPP => Kind::Unsupported,
        libc::EINVAL => Kind::Invalid,
        _ => Kind::Os,
    }
}

/// Repeats what a thread or a process in the middle of an access holds up, until it isn't held up any more: memory is the program's
/// again only after that.
pub(crate) fn until_done(verb: &'static str, mut end: impl FnMut() -> ferroce_types::Result<()>) {
    /// Between two attempts that fail at once. An attempt waits for a second by itself.
    const PAUSE: Duration = Duration::from_millis(10);
    loop {
        // Past a raw `clone`, the process uses no memory of the adapter's, and nothing of it uses the process's.
        let Ok(_inside) = enter(verb) else { return };
        match end() {
            Err(ferroce_types::Error::Busy(_)) => {
                ferroce_os::fork::outside_library(|| std::thread::sleep(PAUSE))
            }
            Ok(()) | Err(_) => return,
        }
    }
}
