//! Environment variables that steer the library.

use std::ffi::OsString;

/// The value of a variable. A program that [has gained privileges](has_gained_privileges) ignores them all: the user who
/// started it chose the environment (secure_getenv(3)).
#[must_use]
pub fn setting(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|_| !has_gained_privileges())
}

/// All variables with their values; none of a program that has gained privileges.
pub fn settings() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|_| !has_gained_privileges())
}

/// This program has rights that the user who started it has not (setuid, setgid, file capabilities).
#[must_use]
pub fn has_gained_privileges() -> bool {
    // SAFETY: takes no pointer.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
