//! Directory streams of ours: opendir(3) and what reads from them.
//!
//! A stream of ours is recognized by its address, which is in a table without locks; while the table is empty, a call on
//! another stream costs one load.

use std::ffi::{c_char, c_int, c_long};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use libc::{AT_FDCWD, DIR, DT_CHR, DT_DIR, DT_LNK, DT_REG, dirent};

use crate::path::by_path;
use crate::real::{FailureValue, errno, real, set_errno, sheltered};
use crate::stat::inode;
use crate::tree::{FoundNode, Last, Node, PathTarget};
use crate::{fds, snapshot};

// The names with and without 64 differ in nothing here.
const _: () = assert!(size_of::<dirent>() == size_of::<libc::dirent64>() && size_of::<libc::ino_t>() == 8);

/// A stream. Programs share one between threads only with a lock of their own (readdir(3)).
struct DirectoryStream {
    fd: c_int,
    entries: Vec<dirent>,
    next: usize,
}

/// As many as programs have open at once, and far more.
static STREAMS: [AtomicPtr<DirectoryStream>; 256] = [const { AtomicPtr::new(ptr::null_mut()) }; 256];
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The stream behind a program's pointer, if it is one of ours.
#[inline]
fn ours(stream: *mut DIR) -> Option<*mut DirectoryStream> {
    if OPEN.load(Ordering::Relaxed) == 0 {
        return None;
    }
    entered(stream)
}

#[cold]
fn entered(stream: *mut DIR) -> Option<*mut DirectoryStream> {
    let stream = stream.cast::<DirectoryStream>();
    let known = STREAMS.iter().any(|place| place.load(Ordering::Acquire) == stream);
    (known && !stream.is_null()).then_some(stream)
}

/// Whether the stream is one of ours.
pub fn is_ours(stream: *mut DIR) -> bool {
    ours(stream).is_some()
}

fn entry(path: &[u8], name: &str, node: Option<&Node>, offset: usize) -> dirent {
    // SAFETY: dirent consists of integers, for which all zeros is a value.
    let mut entry: dirent = unsafe { std::mem::zeroed() };
    entry.d_ino = inode(&[path, b"/", name.as_bytes()].concat());
    entry.d_off = offset as i64;
    entry.d_type = match node {
        None | Some(Node::Directory(_) | Node::Passage(_)) => DT_DIR,
        Some(Node::File(_) | Node::Counter { .. } | Node::NoValue) => DT_REG,
        Some(Node::Link(_)) => DT_LNK,
        Some(Node::Device { .. }) => DT_CHR,
    };
    let room = entry.d_name.len() - 1;
    for (to, from) in entry.d_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    let used = std::mem::offset_of!(dirent, d_name) + name.len() + 1;
    entry.d_reclen = used.next_multiple_of(8) as u16;
    entry
}

fn entries(path: &[u8], node: &Node) -> Result<Vec<dirent>, c_int> {
    let entries = node.entries().ok_or(libc::ENOTDIR)?;
    let dots = [(".", None), ("..", None)].into_iter();
    let all = dots.chain(entries.iter().map(|(name, node)| (name.as_str(), Some(node))));
    Ok(all.enumerate().map(|(index, (name, node))| entry(path, name, node, index + 1)).collect())
}

/// Makes a stream that owns `fd`.
fn start(fd: c_int, entries: Vec<dirent>) -> Result<*mut DIR, c_int> {
    let stream = Box::into_raw(Box::new(DirectoryStream { fd, entries, next: 0 }));
    OPEN.fetch_add(1, Ordering::Relaxed);
    for place in &STREAMS {
        if place.compare_exchange(ptr::null_mut(), stream, Ordering::Release, Ordering::Relaxed).is_ok() {
            return Ok(stream.cast());
        }
    }
    OPEN.fetch_sub(1, Ordering::Relaxed);
    // SAFETY: made above, and entered nowhere.
    drop(unsafe { Box::from_raw(stream) });
    Err(libc::EMFILE)
}

fn open(found: &FoundNode<'_>) -> Result<*mut DIR, c_int> {
    let entries = entries(found.path, found.node)?;
    let fd = fds::open(found, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC)?;
    start(fd, entries).inspect_err(|_| {
        // SAFETY: our own descriptor, which no other code has seen.
        unsafe { libc::close(fd) };
    })
}

#[unsafe(export_name = "ferroce_p_opendir")]
pub(crate) unsafe extern "C-unwind" fn opendir(path: *const c_char) -> *mut DIR {
    let real = |path| real!(c"opendir", fn(*const c_char) -> *mut DIR, (path));
    by_path(AT_FDCWD, path, Last::Follow, real, open)
}

#[unsafe(export_name = "ferroce_p_fdopendir")]
unsafe extern "C-unwind" fn fdopendir(fd: c_int) -> *mut DIR {
    let stream = real!(c"fdopendir", fn(c_int) -> *mut DIR, (fd));
    if !stream.is_null() || errno() != libc::ENOTDIR {
        return stream;
    }
    let opened = sheltered(|| {
        let entry = fds::entry(fd).ok_or(libc::ENOTDIR)?;
        let tree = snapshot::now();
        match tree.walk(&entry.path, Last::Follow)? {
            PathTarget::Ours(path, node) => start(fd, entries(&path, node)?),
            PathTarget::Elsewhere(_) => Err(libc::ENOTDIR),
        }
    });
    match opened {
        Some(Ok(stream)) => stream,
        _ => ptr::null_mut(),
    }
}

/// The next entry of a stream of ours.
///
/// # Safety
/// The stream is open, and no other thread uses it.
unsafe fn next(stream: *mut DirectoryStream) -> *mut dirent {
    // SAFETY: the caller's promise.
    let stream = unsafe { &mut *stream };
    let Some(entry) = stream.entries.get_mut(stream.next) else { return ptr::null_mut() };
    stream.next += 1;
    entry
}

macro_rules! reads {
    ($($symbol:literal $name:ident = $real:literal;)*) => {$(
        #[unsafe(export_name = $symbol)]
        pub(crate) unsafe extern "C-unwind" fn $name(stream: *mut DIR) -> *mut dirent {
            match ours(stream) {
                // SAFETY: by the man page, as `next` asks.
                Some(stream) => unsafe { next(stream) },
                None => real!($real, fn(*mut DIR) -> *mut dirent, (stream)),
            }
        }
    )*};
}

reads! {
    "ferroce_p_readdir" readdir = c"readdir";
    "ferroce_p_readdir64" readdir64 = c"readdir64";
}

macro_rules! reads_to {
    ($($symbol:literal $name:ident = $real:literal;)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(
            stream: *mut DIR,
            to: *mut dirent,
            result: *mut *mut dirent,
        ) -> c_int {
            let Some(stream) = ours(stream) else {
                let real = real!(
                    $real,
                    fn(*mut DIR, *mut dirent, *mut *mut dirent) -> c_int,
                    (stream, to, result)
                );
                return real;
            };
            // SAFETY: by the man page, as `next` asks; `to` has room for the entry with its name, `result` is the
            // caller's variable.
            unsafe {
                let entry = next(stream);
                if !entry.is_null() {
                    let length = usize::from((*entry).d_reclen);
                    ptr::copy_nonoverlapping(entry.cast::<u8>(), to.cast::<u8>(), length);
                }
                *result = if entry.is_null() { ptr::null_mut() } else { to };
            }
            0
        }
    )*};
}

reads_to! {
    "ferroce_p_readdir_r" readdir_r = c"readdir_r";
    "ferroce_p_readdir64_r" readdir64_r = c"readdir64_r";
}

#[unsafe(export_name = "ferroce_p_closedir")]
pub(crate) unsafe extern "C-unwind" fn closedir(stream: *mut DIR) -> c_int {
    let Some(known) = ours(stream) else {
        return real!(c"closedir", fn(*mut DIR) -> c_int, (stream));
    };
    for place in &STREAMS {
        if place.compare_exchange(known, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            OPEN.fetch_sub(1, Ordering::Relaxed);
            // SAFETY: made by `start`. Only the thread whose exchange succeeds takes it out of the table.
            let stream = unsafe { Box::from_raw(known) };
            let fd = stream.fd;
            drop(stream);
            // SAFETY: the stream's own descriptor.
            return unsafe { libc::syscall(libc::SYS_close, fd) } as c_int;
        }
    }
    set_errno(libc::EBADF);
    c_int::FAILED
}

#[unsafe(export_name = "ferroce_p_dirfd")]
unsafe extern "C-unwind" fn dirfd(stream: *mut DIR) -> c_int {
    match ours(stream) {
        // SAFETY: an open stream.
        Some(stream) => unsafe { (*stream).fd },
        None => real!(c"dirfd", fn(*mut DIR) -> c_int, (stream)),
    }
}

#[unsafe(export_name = "ferroce_p_telldir")]
unsafe extern "C-unwind" fn telldir(stream: *mut DIR) -> c_long {
    match ours(stream) {
        // SAFETY: an open stream.
        Some(stream) => unsafe { (*stream).next as c_long },
        None => real!(c"telldir", fn(*mut DIR) -> isize, (stream)) as c_long,
    }
}

#[unsafe(export_name = "ferroce_p_seekdir")]
unsafe extern "C-unwind" fn seekdir(stream: *mut DIR, position: c_long) {
    match ours(stream) {
        // SAFETY: an open stream, which no other thread uses.
        Some(stream) => unsafe { (*stream).next = usize::try_from(position).unwrap_or(0) },
        None => real!(c"seekdir", fn(*mut DIR, c_long) -> (), (stream, position)),
    }
}

#[unsafe(export_name = "ferroce_p_rewinddir")]
unsafe extern "C-unwind" fn rewinddir(stream: *mut DIR) {
    match ours(stream) {
        // SAFETY: an open stream, which no other thread uses.
        Some(stream) => unsafe { (*stream).next = 0 },
        None => real!(c"rewinddir", fn(*mut DIR) -> (), (stream)),
    }
}
