//! open(2) and fopen(3).
//!
//! `open` takes its mode as a variable argument. Rust can't define such functions, but where these libraries run
//! (x86-64, AArch64 Linux) an integer arrives there as it does in a fixed third parameter; if the program passed none,
//! what is found is handed on, as the C library itself does when the flags want no mode.

use std::ffi::{CStr, c_char, c_int};

use libc::{AT_FDCWD, FILE, mode_t};

use crate::fds;
use crate::path::{by_path, may_be_ours};
use crate::real::{FailureValue, real};
use crate::tree::{FoundNode, Last};

fn last(flags: c_int) -> Last {
    if flags & libc::O_NOFOLLOW != 0 { Last::Keep } else { Last::Follow }
}

macro_rules! opens {
    ($($symbol:literal $name:ident = $real:literal;)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            by_path(
                AT_FDCWD,
                path,
                last(flags),
                |path| real!($real, fn(*const c_char, c_int, mode_t) -> c_int, (path, flags, mode)),
                |found| fds::open(found, flags),
            )
        }
    )*};
}

opens! {
    "ferroce_p_open" open = c"open";
    "ferroce_p_open64" open64 = c"open64";
    "ferroce_p___open_2" open_2 = c"__open_2";
    "ferroce_p___open64_2" open64_2 = c"__open64_2";
}

macro_rules! opens_at {
    ($($symbol:literal $name:ident = $real:literal;)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(
            base: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            by_path(
                base,
                path,
                last(flags),
                |path| {
                    real!($real, fn(c_int, *const c_char, c_int, mode_t) -> c_int, (base, path, flags, mode))
                },
                |found| fds::open(found, flags),
            )
        }
    )*};
}

opens_at! {
    "ferroce_p_openat" openat = c"openat";
    "ferroce_p_openat64" openat64 = c"openat64";
    "ferroce_p___openat_2" openat_2 = c"__openat_2";
    "ferroce_p___openat64_2" openat64_2 = c"__openat64_2";
}

/// The flags of open(2) for a mode of fopen(3).
fn flags_of(mode: &CStr) -> c_int {
    let mode = mode.to_bytes();
    let access = match mode.first() {
        _ if mode.contains(&b'+') => libc::O_RDWR,
        Some(b'r') => libc::O_RDONLY,
        _ => libc::O_WRONLY,
    };
    let exclusive = if mode.contains(&b'x') { libc::O_CREAT | libc::O_EXCL } else { 0 };
    let close_on_exec = if mode.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    access | exclusive | close_on_exec
}

fn open_stream(found: &FoundNode<'_>, mode: *const c_char) -> Result<*mut FILE, c_int> {
    // SAFETY: by the man page a NUL-terminated string.
    let fd = fds::open(found, flags_of(unsafe { CStr::from_ptr(mode) }))?;
    // SAFETY: a descriptor of ours, which the stream takes over, and the caller's mode.
    let stream = unsafe { libc::fdopen(fd, mode) };
    if stream.failed() {
        let error = crate::real::errno();
        // SAFETY: the descriptor is still ours.
        unsafe { libc::close(fd) };
        return Err(error);
    }
    Ok(stream)
}

macro_rules! opens_stream {
    ($($symbol:literal $name:ident = $real:literal;)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            by_path(
                AT_FDCWD,
                path,
                Last::Follow,
                |path| real!($real, fn(*const c_char, *const c_char) -> *mut FILE, (path, mode)),
                |found| open_stream(found, mode),
            )
        }
    )*};
}

opens_stream! {
    "ferroce_p_fopen" fopen = c"fopen";
    "ferroce_p_fopen64" fopen64 = c"fopen64";
}

macro_rules! reopens_stream {
    ($($symbol:literal $name:ident = $real:literal;)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            mode: *const c_char,
            stream: *mut FILE,
        ) -> *mut FILE {
            let real = |path| {
                real!($real, fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE, (path, mode, stream))
            };
            if !may_be_ours(path) {
                return real(path);
            }
            // An attribute's memfd has a name that the real function can open.
            by_path(AT_FDCWD, path, Last::Follow, real, |found| {
                // SAFETY: by the man page a NUL-terminated string.
                let fd = fds::open(found, flags_of(unsafe { CStr::from_ptr(mode) }))?;
                let name = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).map_err(|_| libc::ENOENT)?;
                let stream = real(name.as_ptr());
                let error = crate::real::errno();
                // SAFETY: our own descriptor; the stream has another one.
                unsafe { libc::close(fd) };
                if stream.failed() { Err(error) } else { Ok(stream) }
            })
        }
    )*};
}

reopens_stream! {
    "ferroce_p_freopen" freopen = c"freopen";
    "ferroce_p_freopen64" freopen64 = c"freopen64";
}
