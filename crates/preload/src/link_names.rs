//! readlink(2) and realpath(3).

use std::ffi::{CString, c_char, c_int};
use std::ptr;

use libc::AT_FDCWD;

use crate::path::by_path;
use crate::real::real;
use crate::tree::{FoundNode, Last, Node};

fn copy_target(found: &FoundNode<'_>, to: *mut c_char, room: usize) -> Result<isize, c_int> {
    let Node::Link(target) = found.node else { return Err(libc::EINVAL) };
    if room == 0 {
        return Err(libc::EINVAL);
    }
    let length = target.len().min(room);
    // SAFETY: by the man page the caller's buffer has `room` bytes.
    unsafe { ptr::copy_nonoverlapping(target.as_ptr(), to.cast(), length) };
    Ok(length as isize)
}

#[unsafe(export_name = "ferroce_p_readlink")]
unsafe extern "C-unwind" fn readlink(path: *const c_char, to: *mut c_char, room: usize) -> isize {
    by_path(
        AT_FDCWD,
        path,
        Last::Keep,
        |path| real!(c"readlink", fn(*const c_char, *mut c_char, usize) -> isize, (path, to, room)),
        |found| copy_target(found, to, room),
    )
}

#[unsafe(export_name = "ferroce_p___readlink_chk")]
unsafe extern "C-unwind" fn readlink_chk(
    path: *const c_char,
    to: *mut c_char,
    room: usize,
    size: usize,
) -> isize {
    by_path(
        AT_FDCWD,
        path,
        Last::Keep,
        |path| {
            real!(
                c"__readlink_chk",
                fn(*const c_char, *mut c_char, usize, usize) -> isize,
                (path, to, room, size)
            )
        },
        |found| copy_target(found, to, room.min(size)),
    )
}

#[unsafe(export_name = "ferroce_p_readlinkat")]
unsafe extern "C-unwind" fn readlinkat(
    base: c_int,
    path: *const c_char,
    to: *mut c_char,
    room: usize,
) -> isize {
    by_path(
        base,
        path,
        Last::Keep,
        |path| {
            real!(
                c"readlinkat",
                fn(c_int, *const c_char, *mut c_char, usize) -> isize,
                (base, path, to, room)
            )
        },
        |found| copy_target(found, to, room),
    )
}

#[unsafe(export_name = "ferroce_p___readlinkat_chk")]
unsafe extern "C-unwind" fn readlinkat_chk(
    base: c_int,
    path: *const c_char,
    to: *mut c_char,
    room: usize,
    size: usize,
) -> isize {
    by_path(
        base,
        path,
        Last::Keep,
        |path| {
            real!(
                c"__readlinkat_chk",
                fn(c_int, *const c_char, *mut c_char, usize, usize) -> isize,
                (base, path, to, room, size)
            )
        },
        |found| copy_target(found, to, room.min(size)),
    )
}

/// The path, in the caller's buffer or, if that is NULL, in one of malloc(3). `too_long`: the error where it has no room.
pub fn give_path(path: &[u8], to: *mut c_char, room: usize, too_long: c_int) -> Result<*mut c_char, c_int> {
    let path = CString::new(path).map_err(|_| libc::ENOENT)?;
    let length = path.as_bytes_with_nul().len();
    if to.is_null() {
        // SAFETY: a NUL-terminated string.
        let copy = unsafe { libc::strdup(path.as_ptr()) };
        return if copy.is_null() { Err(libc::ENOMEM) } else { Ok(copy) };
    }
    if length > room {
        return Err(too_long);
    }
    // SAFETY: by the man page the buffer has PATH_MAX bytes, or as many as the compiler passes.
    unsafe { ptr::copy_nonoverlapping(path.as_ptr(), to, length) };
    Ok(to)
}

#[unsafe(export_name = "ferroce_p_realpath")]
unsafe extern "C-unwind" fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
    by_path(
        AT_FDCWD,
        path,
        Last::Follow,
        |path| real!(c"realpath", fn(*const c_char, *mut c_char) -> *mut c_char, (path, to)),
        |found| give_path(found.path, to, libc::PATH_MAX as usize, libc::ENAMETOOLONG),
    )
}

#[unsafe(export_name = "ferroce_p___realpath_chk")]
unsafe extern "C-unwind" fn realpath_chk(path: *const c_char, to: *mut c_char, room: usize) -> *mut c_char {
    by_path(
        AT_FDCWD,
        path,
        Last::Follow,
        |path| {
            real!(c"__realpath_chk", fn(*const c_char, *mut c_char, usize) -> *mut c_char, (path, to, room))
        },
        |found| give_path(found.path, to, room, libc::ENAMETOOLONG),
    )
}

#[unsafe(export_name = "ferroce_p_canonicalize_file_name")]
unsafe extern "C-unwind" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    by_path(
        AT_FDCWD,
        path,
        Last::Follow,
        |path| real!(c"canonicalize_file_name", fn(*const c_char) -> *mut c_char, (path)),
        |found| give_path(found.path, ptr::null_mut(), 0, libc::ENAMETOOLONG),
    )
}
