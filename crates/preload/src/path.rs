//! Whether a call is about our tree, and what happens if it is.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;

use crate::real::{Failure, errno, set_errno, sheltered};
use crate::tree::{Last, Node, Place, Tree};
use crate::{fds, snapshot};

/// An entry of the tree that a call is about.
pub struct Found<'a> {
    /// Its path without links.
    pub path: &'a [u8],
    /// The entry.
    pub node: &'a Node,
}

/// Whether the path may lead into the tree: it begins with `/sys/` or `/dev/` and names one of our directories.
#[inline]
pub fn may_be_ours(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: not null, so by the man pages a NUL-terminated string; no byte is read behind its NUL.
    unsafe {
        let path = path.cast::<u8>();
        if *path != b'/' {
            return false;
        }
        let second = *path.add(1);
        (second == b's' || second == b'd' || second == b'/')
            && names_ours(CStr::from_ptr(path.cast()).to_bytes())
    }
}

fn names_ours(path: &[u8]) -> bool {
    let slashes = path.iter().take_while(|&&byte| byte == b'/').count();
    let path = &path[slashes - 1..];
    let has = |name: &[u8]| path.windows(name.len()).any(|part| part == name);
    (path.starts_with(b"/sys/") && (has(b"/infiniband") || has(b"/ferroce")))
        || (path.starts_with(b"/dev/") && has(b"/infiniband"))
}

/// Carries out a call that takes a path, relative to the directory `base` (or AT_FDCWD): `ours` for an entry of the
/// tree, else `real` with the path to take.
///
/// The closures must have nothing to drop: a thread may be cancelled in `real`.
#[inline]
pub fn by_path<R: Failure>(
    base: c_int,
    path: *const c_char,
    last: Last,
    real: impl Fn(*const c_char) -> R,
    ours: impl FnOnce(&Found<'_>) -> Result<R, c_int>,
) -> R {
    if !may_be_ours(path) {
        let result = real(path);
        // Our directories are no directories to the kernel.
        let relative_to_ours = || {
            // SAFETY: not null, so the string that the kernel has just read.
            base >= 0 && !path.is_null() && errno() == libc::ENOTDIR && unsafe { *path } != b'/' as c_char
        };
        if !result.failed() || !relative_to_ours() {
            return result;
        }
        return match below(base, path, last, &real, ours) {
            Some(result) => result,
            None => {
                set_errno(libc::ENOTDIR);
                R::FAILED
            }
        };
    }
    match at(path, last, &real, ours) {
        Some(result) => result,
        None => real(path),
    }
}

/// An absolute path; `None`: leave it to the C library.
#[cold]
#[inline(never)]
fn at<R: Failure>(
    path: *const c_char,
    last: Last,
    real: &dyn Fn(*const c_char) -> R,
    ours: impl FnOnce(&Found<'_>) -> Result<R, c_int>,
) -> Option<R> {
    // SAFETY: `may_be_ours` has seen that it is a string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    finish(sheltered(|| walk(path, last, real, ours)))
}

/// A path relative to a descriptor; `None` if that is no directory of ours.
#[cold]
#[inline(never)]
fn below<R: Failure>(
    base: c_int,
    path: *const c_char,
    last: Last,
    real: &dyn Fn(*const c_char) -> R,
    ours: impl FnOnce(&Found<'_>) -> Result<R, c_int>,
) -> Option<R> {
    // SAFETY: not null, and the kernel has just read the string.
    let relative = unsafe { CStr::from_ptr(path) }.to_bytes();
    let outcome = sheltered(|| {
        let Some(mut path) = fds::directory(base) else { return Ok(None) };
        path.push(b'/');
        path.extend_from_slice(relative);
        walk(&path, last, real, ours).map(Some)
    });
    match outcome? {
        Ok(None) => None,
        Ok(Some(result)) => Some(result),
        Err(_) => Some(R::FAILED),
    }
}

fn finish<R: Failure>(outcome: Option<Result<R, c_int>>) -> Option<R> {
    outcome.map(|result| result.unwrap_or(R::FAILED))
}

fn walk<R: Failure>(
    path: &[u8],
    last: Last,
    real: &dyn Fn(*const c_char) -> R,
    ours: impl FnOnce(&Found<'_>) -> Result<R, c_int>,
) -> Result<R, c_int> {
    let tree: Arc<Tree> = snapshot::now();
    match tree.walk(path, last)? {
        Place::Ours(path, node) => ours(&Found { path: &path, node }),
        Place::Elsewhere(path) => {
            let path = CString::new(path).map_err(|_| libc::ENOENT)?;
            let result = real(path.as_ptr());
            if result.failed() { Err(errno()) } else { Ok(result) }
        }
    }
}
