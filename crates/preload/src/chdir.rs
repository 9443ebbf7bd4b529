//! chdir(2) into our directories, and getcwd(3) there.

use std::ffi::{c_char, c_int};
use std::ptr;

use libc::AT_FDCWD;

use crate::link_names::give_path;
use crate::path::by_path;
use crate::real::{real, sheltered};
use crate::tree::Last;
use crate::{cwd, fds};

#[unsafe(export_name = "ferroce_p_chdir")]
unsafe extern "C-unwind" fn chdir(path: *const c_char) -> c_int {
    let result = by_path(
        AT_FDCWD,
        path,
        Last::Follow,
        |path| real!(c"chdir", fn(*const c_char) -> c_int, (path)),
        |found| found.node.entries().ok_or(libc::ENOTDIR).and_then(|_| cwd::enter(found.path)),
    );
    cwd::forget();
    result
}

#[unsafe(export_name = "ferroce_p_fchdir")]
unsafe extern "C-unwind" fn fchdir(fd: c_int) -> c_int {
    let ours = sheltered(|| match fds::entry(fd).filter(|entry| entry.is_directory) {
        Some(entry) => cwd::enter(&entry.path).map(Some),
        None => Ok(None),
    });
    let result = match ours {
        Some(Ok(Some(done))) => done,
        Some(Err(_)) => -1,
        _ => real!(c"fchdir", fn(c_int) -> c_int, (fd)),
    };
    cwd::forget();
    result
}

/// What getcwd(3) gives in one of our directories; `None`: the process works elsewhere.
fn give(to: *mut c_char, room: usize) -> Option<*mut c_char> {
    let path = cwd::ours()?;
    let given = sheltered(|| {
        if room == 0 && !to.is_null() {
            return Err(libc::EINVAL);
        }
        give_path(&path, to, room, libc::ERANGE)
    });
    Some(given.and_then(Result::ok).unwrap_or(ptr::null_mut()))
}

#[unsafe(export_name = "ferroce_p_getcwd")]
unsafe extern "C-unwind" fn getcwd(to: *mut c_char, room: usize) -> *mut c_char {
    match give(to, room) {
        Some(given) => given,
        None => real!(c"getcwd", fn(*mut c_char, usize) -> *mut c_char, (to, room)),
    }
}

#[unsafe(export_name = "ferroce_p___getcwd_chk")]
unsafe extern "C-unwind" fn getcwd_chk(to: *mut c_char, room: usize, size: usize) -> *mut c_char {
    match give(to, room.min(size)) {
        Some(given) => given,
        None => real!(c"__getcwd_chk", fn(*mut c_char, usize, usize) -> *mut c_char, (to, room, size)),
    }
}

#[unsafe(export_name = "ferroce_p_get_current_dir_name")]
unsafe extern "C-unwind" fn get_current_dir_name() -> *mut c_char {
    match give(ptr::null_mut(), 0) {
        Some(given) => given,
        None => real!(c"get_current_dir_name", fn() -> *mut c_char, ()),
    }
}
