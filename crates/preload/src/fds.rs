//! Descriptors for entries of the tree.

use std::ffi::{CStr, CString, c_int};

use crate::counted;
use crate::tree::{FoundNode, Node};

/// What the name of a memfd of ours begins with; the entry's path follows.
const MARK: &[u8] = b"ferroce:";
/// The modes of our memfds: sticky regular files, which have no other use. Mode and name identify them.
const DIRECTORY_MODE: libc::mode_t = 0o1444;
const ATTRIBUTE_MODE: libc::mode_t = 0o1440;
/// `MFD_NOEXEC_SEAL` (Linux 6.3).
const NOEXEC_SEAL: libc::c_uint = 8;

/// Opens an entry as open(2) would.
pub fn open(found: &FoundNode<'_>, flags: c_int) -> Result<c_int, c_int> {
    if flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0 {
        return Err(libc::EEXIST);
    }
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0;
    let directory = found.node.entries().is_some();
    if flags & libc::O_DIRECTORY != 0 && !directory {
        return Err(libc::ENOTDIR);
    }
    match found.node {
        Node::Directory(_) | Node::Passage(_) if writes => Err(libc::EISDIR),
        Node::Directory(_) | Node::Passage(_) => memfd(found.path, b"", DIRECTORY_MODE, flags),
        Node::File(_) | Node::Counter { .. } | Node::NoValue if writes => Err(libc::EACCES),
        Node::File(text) => memfd(found.path, text.as_bytes(), ATTRIBUTE_MODE, flags),
        Node::Counter { device, set, name } => match counted::text(device, *set, name) {
            Some(text) => memfd(found.path, text.as_bytes(), ATTRIBUTE_MODE, flags),
            None => unreadable(flags),
        },
        Node::NoValue => unreadable(flags),
        Node::Device { opens: true, .. } => open_null(flags),
        Node::Device { opens: false, .. } => Err(libc::ENODEV),
        Node::Link(_) => Err(libc::ELOOP),
    }
}

fn check(result: libc::c_long) -> Result<c_int, c_int> {
    if result < 0 { Err(crate::real::errno()) } else { Ok(result as c_int) }
}

/// A descriptor whose reading is EINVAL, as that of an attribute without a value: an epoll has nothing to read. Its fstat(2)
/// differs from the stat(2) of the entry.
fn unreadable(flags: c_int) -> Result<c_int, c_int> {
    let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::EPOLL_CLOEXEC } else { 0 };
    // SAFETY: takes no pointer.
    check(unsafe { libc::syscall(libc::SYS_epoll_create1, close_on_exec) })
}

fn open_null(flags: c_int) -> Result<c_int, c_int> {
    let kept = libc::O_ACCMODE | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_PATH;
    let path = c"/dev/null".as_ptr();
    // SAFETY: a NUL-terminated path; no mode is needed.
    check(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags & kept) })
}

fn memfd(path: &[u8], text: &[u8], mode: libc::mode_t, flags: c_int) -> Result<c_int, c_int> {
    let name = CString::new([MARK, path].concat()).map_err(|_| libc::ENOENT)?;
    let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    let wanted = libc::MFD_ALLOW_SEALING | close_on_exec;
    // SAFETY: a NUL-terminated name.
    let make =
        |flags: libc::c_uint| check(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) });
    let fd = make(wanted | NOEXEC_SEAL).or_else(|_| make(wanted))?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: `text` is valid for its length; the offset stays 0 with pwrite.
    let filled = check(unsafe { libc::syscall(libc::SYS_pwrite64, fd, text.as_ptr(), text.len(), 0) })
        // SAFETY: our own descriptor, no pointer.
        .and_then(|_| check(unsafe { libc::syscall(libc::SYS_fchmod, fd, mode) }))
        // SAFETY: the same.
        .and_then(|_| check(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_ADD_SEALS, seals) }));
    if let Err(error) = filled {
        // SAFETY: a new descriptor of our own.
        unsafe { libc::syscall(libc::SYS_close, fd) };
        return Err(error);
    }
    Ok(fd)
}

/// Whether a descriptor may be one of ours, by its fstat(2).
#[inline]
pub fn may_be_ours(mode: libc::mode_t, is_linked: bool) -> bool {
    matches!(mode ^ libc::S_IFREG, DIRECTORY_MODE | ATTRIBUTE_MODE) && !is_linked
}

/// What a descriptor of ours stands for.
pub struct FdEntry {
    /// Its path in the tree.
    pub path: Vec<u8>,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Bytes that can be read.
    pub size: i64,
}

/// `None` for every descriptor that isn't ours.
pub fn entry(fd: c_int) -> Option<FdEntry> {
    let name = path_of(fd)?;
    let path = name.strip_prefix(b"/memfd:")?.strip_prefix(MARK)?.strip_suffix(b" (deleted)")?;
    // SAFETY: stat consists of integers, for which all zeros is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the address of a local variable of the call's type.
    let known = unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut stat) } == 0;
    (known && may_be_ours(stat.st_mode, stat.st_nlink != 0)).then(|| FdEntry {
        path: path.to_owned(),
        is_directory: stat.st_mode == libc::S_IFREG | DIRECTORY_MODE,
        size: stat.st_size,
    })
}

/// What /proc calls the file behind a descriptor.
pub fn path_of(fd: c_int) -> Option<Vec<u8>> {
    link_text(&CString::new(format!("/proc/self/fd/{fd}")).ok()?)
}

/// Where a link of the kernel's leads.
pub fn link_text(link: &CStr) -> Option<Vec<u8>> {
    let mut name = [0u8; 512];
    // SAFETY: a NUL-terminated path, and a buffer with its length.
    let length = unsafe {
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), name.as_mut_ptr(), name.len())
    };
    Some(name.get(..usize::try_from(length).ok()?)?.to_owned())
}
