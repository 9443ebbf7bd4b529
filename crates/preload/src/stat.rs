//! stat(2) and its family, with the entries that programs built for a C library before 2.33 use, and statx(2).

use std::ffi::{c_char, c_int, c_uint};

use libc::{AT_FDCWD, S_IFCHR, S_IFDIR, S_IFLNK, S_IFREG, mode_t, stat, statx};

use crate::path::by_path;
use crate::real::{real, sheltered};
use crate::tree::{FoundNode, Last, Node, PathTarget};
use crate::{fds, snapshot};

// The names with and without 64 differ in nothing here.
const _: () = assert!(size_of::<stat>() == size_of::<libc::stat64>() && size_of::<libc::off_t>() == 8);

/// The attributes of an entry.
pub struct FileAttributes {
    mode: mode_t,
    size: i64,
    device: (u32, u32),
    links: u32,
    inode: u64,
}

/// The number of an anonymous device, as sysfs has one; no real one counts so high.
const ANONYMOUS_DEVICE: (u32, u32) = (0, 0xff0ce);

/// A number for a path: FNV-1a.
pub fn inode(path: &[u8]) -> u64 {
    path.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl FileAttributes {
    fn of(found: &FoundNode<'_>) -> Self {
        let (mode, size, device) = match found.node {
            Node::Directory(_) | Node::Passage(_) => (S_IFDIR | 0o755, 0, (0, 0)),
            Node::File(text) => (S_IFREG | 0o444, text.len() as i64, (0, 0)),
            // As for all attributes of the kernel: the length of the text isn't known before it is read.
            Node::Counter { .. } => (S_IFREG | 0o444, 4096, (0, 0)),
            Node::NoValue => (S_IFREG | 0o444, 0, (0, 0)),
            Node::Link(target) => (S_IFLNK | 0o777, target.len() as i64, (0, 0)),
            Node::Device { major, minor, .. } => (S_IFCHR | 0o666, 0, (*major, *minor)),
        };
        let links = if mode & libc::S_IFMT == S_IFDIR { 2 } else { 1 };
        Self { mode, size, device, links, inode: inode(found.path) }
    }

    /// # Safety
    /// `to` is the caller's structure.
    unsafe fn write(&self, to: *mut stat) {
        let (major, minor) = ANONYMOUS_DEVICE;
        // SAFETY: the caller's promise; stat consists of integers, for which all zeros is a value.
        let to = unsafe {
            to.write(std::mem::zeroed());
            &mut *to
        };
        to.st_dev = libc::makedev(major, minor);
        to.st_ino = self.inode;
        to.st_nlink = self.links.into();
        to.st_mode = self.mode;
        to.st_rdev = libc::makedev(self.device.0, self.device.1);
        to.st_size = self.size;
        to.st_blksize = 4096;
    }

    /// # Safety
    /// `to` is the caller's structure.
    unsafe fn write_extended(&self, to: *mut statx) {
        // SAFETY: the caller's promise; statx consists of integers, for which all zeros is a value.
        let to = unsafe {
            to.write(std::mem::zeroed());
            &mut *to
        };
        to.stx_mask = libc::STATX_BASIC_STATS;
        to.stx_blksize = 4096;
        to.stx_nlink = self.links;
        to.stx_mode = self.mode as u16;
        to.stx_ino = self.inode;
        to.stx_size = self.size as u64;
        (to.stx_rdev_major, to.stx_rdev_minor) = self.device;
        (to.stx_dev_major, to.stx_dev_minor) = ANONYMOUS_DEVICE;
    }
}

fn fill(found: &FoundNode<'_>, to: *mut stat) -> Result<c_int, c_int> {
    // SAFETY: by the man pages the caller's structure; the C library only looks at it after the path, so do we.
    unsafe { FileAttributes::of(found).write(to) };
    Ok(0)
}

/// The attributes of a descriptor that looks like one of ours; `None` if it isn't.
#[cold]
#[inline(never)]
fn described(fd: c_int) -> Option<FileAttributes> {
    let found = sheltered(|| {
        let Some(entry) = fds::entry(fd) else { return Ok(None) };
        let tree = snapshot::now();
        // Where its device has gone, it stays what it was.
        let gone = if entry.is_directory { Node::Directory(Vec::new()) } else { Node::NoValue };
        let (path, node) = match tree.walk(&entry.path, Last::Keep) {
            Ok(PathTarget::Ours(path, node)) => (path, node),
            _ => (entry.path, &gone),
        };
        Ok(Some(FileAttributes { size: entry.size, ..FileAttributes::of(&FoundNode { path: &path, node }) }))
    });
    found?.ok()?
}

/// Replaces the kernel's attributes of a descriptor if it is one of ours.
#[inline]
fn after(result: c_int, fd: c_int, to: *mut stat) -> c_int {
    // SAFETY: asked only after success, when the call has filled the structure.
    let suspect = || unsafe { fds::may_be_ours((*to).st_mode, (*to).st_nlink != 0) };
    if result == 0
        && suspect()
        && let Some(attributes) = described(fd)
    {
        // SAFETY: the caller's structure.
        unsafe { attributes.write(to) };
    }
    result
}

/// The descriptor that a path of no length stands for, if it does; else −1, which is none.
fn meant(base: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: not null, so the string that the kernel has just read.
    let empty = flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0);
    if empty { base } else { -1 }
}

fn last(flags: c_int) -> Last {
    if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { Last::Keep } else { Last::Follow }
}

macro_rules! stats {
    ($($symbol:literal $name:ident = $real:literal, $last:ident;)*) => {$(
        #[unsafe(export_name = $symbol)]
        pub(crate) unsafe extern "C-unwind" fn $name(path: *const c_char, to: *mut stat) -> c_int {
            by_path(
                AT_FDCWD,
                path,
                Last::$last,
                |path| real!($real, fn(*const c_char, *mut stat) -> c_int, (path, to)),
                |found| fill(found, to),
            )
        }
    )*};
}

stats! {
    "ferroce_p_stat" stat_plain = c"stat", Follow;
    "ferroce_p_stat64" stat64 = c"stat64", Follow;
    "ferroce_p_lstat" lstat = c"lstat", Keep;
    "ferroce_p_lstat64" lstat64 = c"lstat64", Keep;
}

macro_rules! versioned_stats {
    ($($symbol:literal $name:ident = $real:literal, $last:ident;)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(version: c_int, path: *const c_char, to: *mut stat) -> c_int {
            by_path(
                AT_FDCWD,
                path,
                Last::$last,
                |path| real!($real, fn(c_int, *const c_char, *mut stat) -> c_int, (version, path, to)),
                |found| fill(found, to),
            )
        }
    )*};
}

versioned_stats! {
    "ferroce_p___xstat" xstat = c"__xstat", Follow;
    "ferroce_p___xstat64" xstat64 = c"__xstat64", Follow;
    "ferroce_p___lxstat" lxstat = c"__lxstat", Keep;
    "ferroce_p___lxstat64" lxstat64 = c"__lxstat64", Keep;
}

macro_rules! descriptor_stats {
    ($($symbol:literal $name:ident = $real:literal, ($($version:ident)?);)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name($($version: c_int,)? fd: c_int, to: *mut stat) -> c_int {
            after(descriptor_stats!(@call $real, fd, to $(, $version)?), fd, to)
        }
    )*};
    (@call $real:literal, $fd:ident, $to:ident) => {
        real!($real, fn(c_int, *mut stat) -> c_int, ($fd, $to))
    };
    (@call $real:literal, $fd:ident, $to:ident, $version:ident) => {
        real!($real, fn(c_int, c_int, *mut stat) -> c_int, ($version, $fd, $to))
    };
}

descriptor_stats! {
    "ferroce_p_fstat" fstat = c"fstat", ();
    "ferroce_p_fstat64" fstat64 = c"fstat64", ();
    "ferroce_p___fxstat" fxstat = c"__fxstat", (version);
    "ferroce_p___fxstat64" fxstat64 = c"__fxstat64", (version);
}

macro_rules! stats_at {
    ($($symbol:literal $name:ident = $real:literal, ($($version:ident)?);)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(
            $($version: c_int,)?
            base: c_int,
            path: *const c_char,
            to: *mut stat,
            flags: c_int,
        ) -> c_int {
            let result = by_path(
                base,
                path,
                last(flags),
                |path| stats_at!(@call $real, base, path, to, flags $(, $version)?),
                |found| fill(found, to),
            );
            after(result, meant(base, path, flags), to)
        }
    )*};
    (@call $real:literal, $base:ident, $path:ident, $to:ident, $flags:ident) => {
        real!($real, fn(c_int, *const c_char, *mut stat, c_int) -> c_int, ($base, $path, $to, $flags))
    };
    (@call $real:literal, $base:ident, $path:ident, $to:ident, $flags:ident, $version:ident) => {
        real!(
            $real,
            fn(c_int, c_int, *const c_char, *mut stat, c_int) -> c_int,
            ($version, $base, $path, $to, $flags)
        )
    };
}

stats_at! {
    "ferroce_p_fstatat" fstatat = c"fstatat", ();
    "ferroce_p_fstatat64" fstatat64 = c"fstatat64", ();
    "ferroce_p___fxstatat" fxstatat = c"__fxstatat", (version);
    "ferroce_p___fxstatat64" fxstatat64 = c"__fxstatat64", (version);
}

#[unsafe(export_name = "ferroce_p_statx")]
unsafe extern "C-unwind" fn statx_at(
    base: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    to: *mut statx,
) -> c_int {
    let result = by_path(
        base,
        path,
        last(flags),
        |path| {
            real!(
                c"statx",
                fn(c_int, *const c_char, c_int, c_uint, *mut statx) -> c_int,
                (base, path, flags, mask, to)
            )
        },
        |found| {
            // SAFETY: by the man page the caller's structure.
            unsafe { FileAttributes::of(found).write_extended(to) };
            Ok(0)
        },
    );
    // SAFETY: the call was successful and has filled the structure.
    let suspect = || unsafe { fds::may_be_ours(mode_t::from((*to).stx_mode), (*to).stx_nlink != 0) };
    if result == 0
        && suspect()
        && let Some(attributes) = described(meant(base, path, flags))
    {
        // SAFETY: the caller's structure.
        unsafe { attributes.write_extended(to) };
    }
    result
}
