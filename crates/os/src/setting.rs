//! Environment variables that steer the library.

use std::ffi::OsString;

/// The value of a variable. A program that has gained privileges (setuid, setgid, file capabilities) has none: the user who
/// started it chose the environment, and has fewer rights (secure_getenv(3)).
#[must_use]
pub fn setting(name: &str) -> Option<OsString> {
    // SAFETY: takes no pointer.
    let has_gained_privileges = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    std::env::var_os(name).filter(|_| !has_gained_privileges)
}
