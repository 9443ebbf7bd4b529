//! scandir(3) and glob(3): the C library's own would open directories without asking us.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use libc::{DIR, dirent, stat};

use crate::directory::{closedir, is_ours, opendir, readdir};
use crate::path::{begins_at_ours, may_be_ours};
use crate::real::{FailureValue, errno, real, set_errno};

type Filter = Option<unsafe extern "C-unwind" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C-unwind" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

unsafe extern "C-unwind" {
    fn qsort(base: *mut c_void, count: usize, size: usize, compare: Compare);
}

/// The entries of an open stream of ours, filtered and sorted, in memory of malloc(3). Has nothing to drop: the
/// program's functions may leave it by an exception or be cancelled.
///
/// # Safety
/// As scandir(3) asks.
unsafe fn collect(stream: *mut DIR, list: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int {
    let mut found: *mut *mut dirent = ptr::null_mut();
    let mut count = 0;
    // SAFETY: the stream is open and ours alone; every allocation is checked, and has room for what is written.
    unsafe {
        loop {
            let entry = readdir(stream);
            if entry.is_null() {
                break;
            }
            if filter.is_some_and(|filter| filter(entry) == 0) {
                continue;
            }
            let length = usize::from((*entry).d_reclen);
            let copy = libc::malloc(length).cast::<dirent>();
            let more = libc::realloc(found.cast(), (count + 1) * size_of::<*mut dirent>());
            if copy.is_null() || more.is_null() {
                libc::free(copy.cast());
                found = if more.is_null() { found } else { more.cast() };
                (0..count).for_each(|index| libc::free((*found.add(index)).cast()));
                libc::free(found.cast());
                set_errno(libc::ENOMEM);
                return c_int::FAILED;
            }
            found = more.cast();
            ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast::<u8>(), length);
            *found.add(count) = copy;
            count += 1;
        }
        if compare.is_some() && count > 1 {
            qsort(found.cast(), count, size_of::<*mut dirent>(), compare);
        }
        *list = found;
    }
    count as c_int
}

macro_rules! scans {
    ($($symbol:literal $name:ident = $real:literal;)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            list: *mut *mut *mut dirent,
            filter: Filter,
            compare: Compare,
        ) -> c_int {
            if may_be_ours(path) || begins_at_ours(path) {
                // SAFETY: the program's arguments, and a stream of our own.
                unsafe {
                    let stream = opendir(path);
                    if stream.is_null() {
                        return c_int::FAILED;
                    }
                    let collected = is_ours(stream).then(|| collect(stream, list, filter, compare));
                    let error = errno();
                    closedir(stream);
                    set_errno(error);
                    if let Some(count) = collected {
                        return count;
                    }
                }
            }
            let real = real!(
                $real,
                fn(*const c_char, *mut *mut *mut dirent, Filter, Compare) -> c_int,
                (path, list, filter, compare)
            );
            real
        }
    )*};
}

scans! {
    "ferroce_p_scandir" scandir = c"scandir";
    "ferroce_p_scandir64" scandir64 = c"scandir64";
}

/// `glob_t` of the C library, with the functions that GLOB_ALTDIRFUNC makes it use.
#[repr(C)]
struct Glob {
    paths: usize,
    path: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    close: unsafe extern "C-unwind" fn(*mut DIR) -> c_int,
    read: unsafe extern "C-unwind" fn(*mut DIR) -> *mut dirent,
    open: unsafe extern "C-unwind" fn(*const c_char) -> *mut DIR,
    lstat: unsafe extern "C-unwind" fn(*const c_char, *mut stat) -> c_int,
    stat: unsafe extern "C-unwind" fn(*const c_char, *mut stat) -> c_int,
}

const GLOB_ALTDIRFUNC: c_int = 1 << 9;

type OnError = Option<unsafe extern "C-unwind" fn(*const c_char, c_int) -> c_int>;

macro_rules! globs {
    ($($symbol:literal $name:ident = $real:literal;)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(
            pattern: *const c_char,
            flags: c_int,
            on_error: OnError,
            glob: *mut Glob,
        ) -> c_int {
            let mut flags = flags;
            if (may_be_ours(pattern) || begins_at_ours(pattern)) && flags & GLOB_ALTDIRFUNC == 0 && !glob.is_null() {
                flags |= GLOB_ALTDIRFUNC;
                // SAFETY: by the man page the program's structure; glob(3) sets the other fields.
                unsafe {
                    (*glob).close = closedir;
                    (*glob).read = readdir;
                    (*glob).open = opendir;
                    (*glob).lstat = crate::stat::lstat;
                    (*glob).stat = crate::stat::stat_plain;
                }
            }
            let real = real!(
                $real,
                fn(*const c_char, c_int, OnError, *mut Glob) -> c_int,
                (pattern, flags, on_error, glob)
            );
            real
        }
    )*};
}

globs! {
    "ferroce_p_glob" glob = c"glob";
    "ferroce_p_glob64" glob64 = c"glob64";
}
