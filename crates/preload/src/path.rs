//! Whether a call is about our tree, and what happens if it is.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;

use crate::real::{FailureValue, errno, set_errno, sheltered};
use crate::tree::{FoundNode, Last, PathTarget, Tree};
use crate::{cwd, fds, snapshot};

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

/// Whether the path is relative and the working directory one of ours.
#[inline]
pub fn begins_at_ours(path: *const c_char) -> bool {
    // SAFETY: not null, so by the man pages a NUL-terminated string.
    !path.is_null() && unsafe { *path.cast::<u8>() } != b'/' && cwd::ours().is_some()
}

fn names_ours(path: &[u8]) -> bool {
    let slashes = path.iter().take_while(|&&byte| byte == b'/').count();
    let path = &path[slashes - 1..];
    (path.starts_with(b"/sys/") || path.starts_with(b"/dev/")) && names_directory(path)
}

/// Whether the path's text has the name of one of our directories in it.
fn names_directory(path: &[u8]) -> bool {
    let has = |name: &[u8]| path.windows(name.len()).any(|part| part == name);
    has(b"infiniband") || has(b"ferroce")
}

/// Whether a relative path that the system has refused may lead into the tree: our directories aren't directories to
/// the kernel, and those in which they lie don't have them.
#[cold]
fn may_be_below(base: c_int, path: *const c_char) -> bool {
    // SAFETY: not null, so the string that the kernel has just read.
    let path = || unsafe { CStr::from_ptr(path) }.to_bytes();
    match errno() {
        libc::ENOTDIR => base >= 0 && !path().starts_with(b"/"),
        libc::ENOENT => !path().starts_with(b"/") && names_directory(path()),
        _ => false,
    }
}

/// Carries out a call that takes a path, relative to the directory `base` (or AT_FDCWD): `ours` for an entry of the
/// tree, else `real` with the path to take.
///
/// The closures must have nothing to drop: a thread may be cancelled in `real`.
#[inline]
pub fn by_path<R: FailureValue>(
    base: c_int,
    path: *const c_char,
    last: Last,
    real: impl Fn(*const c_char) -> R,
    ours: impl FnOnce(&FoundNode<'_>) -> Result<R, c_int>,
) -> R {
    if !may_be_ours(path) {
        if base == libc::AT_FDCWD && begins_at_ours(path) {
            return below(base, path, last, &real, ours).unwrap_or_else(|| real(path));
        }
        let result = real(path);
        if !result.failed() || path.is_null() || !may_be_below(base, path) {
            return result;
        }
        let error = errno();
        return below(base, path, last, &real, ours).unwrap_or_else(|| {
            set_errno(error);
            R::FAILED
        });
    }
    match at(path, last, &real, ours) {
        Some(result) => result,
        None => real(path),
    }
}

/// An absolute path; `None`: leave it to the C library.
#[cold]
#[inline(never)]
fn at<R: FailureValue>(
    path: *const c_char,
    last: Last,
    real: &dyn Fn(*const c_char) -> R,
    ours: impl FnOnce(&FoundNode<'_>) -> Result<R, c_int>,
) -> Option<R> {
    // SAFETY: `may_be_ours` has seen that it is a string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    finish(sheltered(|| walk(path, last, real, ours)))
}

/// A relative path; `None`: it isn't ours.
#[cold]
#[inline(never)]
fn below<R: FailureValue>(
    base: c_int,
    path: *const c_char,
    last: Last,
    real: &dyn Fn(*const c_char) -> R,
    ours: impl FnOnce(&FoundNode<'_>) -> Result<R, c_int>,
) -> Option<R> {
    // SAFETY: not null, and the kernel has just read the string.
    let relative = unsafe { CStr::from_ptr(path) }.to_bytes();
    let mut is_ours = true;
    let outcome = sheltered(|| {
        let path = self::base(base).map(|base| [&base[..], b"/", relative].concat());
        match path.filter(|path| path.starts_with(b"/") && names_ours(path)) {
            Some(path) => walk(&path, last, real, ours),
            None => {
                is_ours = false;
                Ok(R::FAILED)
            }
        }
    });
    finish(outcome).filter(|_| is_ours)
}

/// The path of the directory that relative paths begin at: one of ours, or one of the system's.
fn base(fd: c_int) -> Option<Vec<u8>> {
    if fd == libc::AT_FDCWD {
        if let Some(path) = cwd::ours() {
            return Some(path);
        }
        return Some(std::env::current_dir().ok()?.into_os_string().into_encoded_bytes());
    }
    match fds::entry(fd) {
        Some(entry) => entry.is_directory.then_some(entry.path),
        None => fds::path_of(fd),
    }
}

fn finish<R: FailureValue>(outcome: Option<Result<R, c_int>>) -> Option<R> {
    outcome.map(|result| result.unwrap_or(R::FAILED))
}

fn walk<R: FailureValue>(
    path: &[u8],
    last: Last,
    real: &dyn Fn(*const c_char) -> R,
    ours: impl FnOnce(&FoundNode<'_>) -> Result<R, c_int>,
) -> Result<R, c_int> {
    let tree: Arc<Tree> = snapshot::now();
    match tree.walk(path, last)? {
        PathTarget::Ours(path, node) => ours(&FoundNode { path: &path, node }),
        PathTarget::Elsewhere(path) => {
            let path = CString::new(path).map_err(|_| libc::ENOENT)?;
            let result = real(path.as_ptr());
            if result.failed() { Err(errno()) } else { Ok(result) }
        }
    }
}
