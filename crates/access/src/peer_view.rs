//! Another process's memory, mapped here too: memory that processes can share (memfds, tmpfs, huge pages, SysV segments).
//!
//! The other process isn't asked. `/proc/PID/maps` contains the file that it has mapped, and a process that may copy from and to
//! another may open its files. The memory is accessed under the guard: it may be truncated at any time.
//!
//! Only files of the kernel's own memory file systems are opened, and no directory on the path to them: a FUSE or network
//! file system can take any time to look a name up, to report a file's type, or to open it.

use crate::mappings::{FileMapping, shared_mapping};
use crate::{PeerMemory, copy, guard};
use ferroce_os::{fork, sys};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;

/// How the kernel ends the name of a file that is gone, and begins those of SysV segments.
const DELETED: &[u8] = b" (deleted)";
const SEGMENT: &[u8] = b"/SYSV";
/// File systems of memory, as mountinfo names them.
const OF_MEMORY: [&[u8]; 2] = [b"tmpfs", b"hugetlbfs"];
/// Tries to find a file by its name in the kernel's cache: something else may change names meanwhile.
const LOOKS: usize = 3;

/// A range of a process's memory, mapped in this one.
#[derive(Debug)]
pub struct PeerView {
    /// The range's address in the other process.
    addr: u64,
    /// Its bytes.
    len: u64,
    /// Its address in this process.
    at: u64,
    writable: bool,
    /// `None`: of this process.
    mapping: Option<Mapping>,
}

/// What was mapped, given back when it is dropped: not in the child of a fork, which doesn't have it.
#[derive(Debug)]
struct Mapping {
    base: NonNull<libc::c_void>,
    /// Bytes of a file; `None`: a segment.
    of_file: Option<usize>,
    generation: u32,
}

// SAFETY: an address range, which is touched by guarded copies only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        // SAFETY: mapped by the functions below, and the view, which alone uses the mapping, is dropped.
        unsafe {
            match self.of_file {
                Some(len) => libc::munmap(self.base.as_ptr(), len),
                None => libc::shmdt(self.base.as_ptr()),
            };
        }
    }
}

impl Mapping {
    fn new(base: *mut libc::c_void, of_file: Option<usize>) -> io::Result<Self> {
        let base = NonNull::new(base).filter(|base| base.as_ptr() != libc::MAP_FAILED);
        let base = base.ok_or_else(io::Error::last_os_error)?;
        Ok(Self { base, of_file, generation: fork::generation() })
    }

    fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    fn at(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// A child of a fork has no use for it.
    fn keep_from_children(&self, len: u64) {
        // SAFETY: the mapping, at least so long.
        unsafe { libc::madvise(self.base.as_ptr(), len as usize, libc::MADV_DONTFORK) };
    }
}

impl PeerView {
    /// All memory of this process, where each address is itself. The caller of a copy sees to it that what it names is the program's
    /// registered memory.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self { addr: 0, len: u64::MAX, at: 0, writable: true, mapping: None }
    }

    /// Maps `len` bytes at `addr` of a process. `None`: they aren't all of one mapping that can be shared, or this process
    /// may not open what is mapped.
    #[must_use]
    pub fn of(memory: &PeerMemory, addr: u64, len: u64, writable: bool) -> Option<Self> {
        let find = || shared_mapping(memory.pid(), addr).ok().flatten();
        let file = find()?;
        if addr.checked_add(len)? > file.to || writable && !file.writable {
            return None;
        }
        let offset = file.offset.checked_add(addr - file.from)?;
        let (at, mapping) = if file.path.starts_with(SEGMENT) {
            attach(&file, offset, writable)
        } else {
            open(memory.pid(), &file, writable)
                .and_then(|(opened, page)| map(&opened, page, (offset, len), writable))
        }
        .inspect_err(
            |error| tracing::debug!(%error, pid = memory.pid(), "shared memory of a process can't be mapped"),
        )
        .ok()?;
        // It may have been another file, or another process, when it was opened.
        let is_still = find().as_ref() == Some(&file) && memory.is_there();
        is_still.then_some(Self { addr, len, at, writable, mapping: Some(mapping) })
    }

    /// Where `len` bytes at `addr` of the other process are here.
    fn place(&self, addr: u64, len: usize) -> Option<u64> {
        let offset = addr.checked_sub(self.addr)?;
        let is_here = !self.mapping.as_ref().is_some_and(Mapping::is_inherited) && !copy::by_kernel();
        (is_here && offset.checked_add(len as u64)? <= self.len).then(|| self.at + offset)
    }

    /// Copies `len` bytes at `from` in this process to `to` in the other. False unless all were: the caller then takes another
    /// way, which also finds out what is wrong.
    #[must_use]
    pub fn write(&self, to: u64, from: u64, len: usize) -> bool {
        // SAFETY: there are no references to the mapping, nor to the program's registered memory.
        self.writable && self.place(to, len).is_some_and(|to| unsafe { guard::copy(to, from, len) }.is_ok())
    }

    /// Copies `len` bytes at `from` in the other process to `to` in this one. False unless all were.
    #[must_use]
    pub fn read(&self, from: u64, to: u64, len: usize) -> bool {
        // SAFETY: as above.
        self.place(from, len).is_some_and(|from| unsafe { guard::copy(to, from, len) }.is_ok())
    }
}

fn refused(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Opens the file that a process has mapped, if it is one of memory. Returns the size of its pages too.
fn open(pid: i32, file: &FileMapping, writable: bool) -> io::Result<(File, u64)> {
    if !is_memory(pid, file.device) {
        return Err(refused(libc::ENXIO));
    }
    let found = by_name(pid, file).or_else(|_| by_descriptor(pid, file))?;
    let opened = OpenOptions::new()
        .read(true)
        .write(writable)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(format!("/proc/thread-self/fd/{}", found.as_raw_fd()))?;
    let stat = opened.metadata()?;
    if stat.is_file() { Ok((opened, stat.blksize())) } else { Err(refused(libc::ENXIO)) }
}

/// Whether the files of a device, which a process has mounted or the kernel has to itself, are memory.
fn is_memory(pid: i32, device: u64) -> bool {
    let of_mount = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let number = |text: &str| text.parse().ok();
        let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
        let kind = fields.iter().position(|field| field == b"-").and_then(|dash| fields.get(dash + 1))?;
        (libc::makedev(number(major)?, number(minor)?) == device).then(|| OF_MEMORY.contains(kind))
    };
    let mounted = || {
        let mounts = sys::proc_entry(pid, "mountinfo").and_then(fs::read).unwrap_or_default();
        mounts.split(|&byte| byte == b'\n').find_map(of_mount).unwrap_or(false)
    };
    kernels_own().contains(&device) || mounted()
}

/// The devices of memfds, which no process has mounted: one, and one for each size of huge pages.
fn kernels_own() -> &'static [u64] {
    static OWN: OnceLock<Vec<u64>> = OnceLock::new();
    OWN.get_or_init(|| {
        let huge = (16..=34).map(|bits| libc::MFD_HUGETLB | bits << libc::MFD_HUGE_SHIFT);
        let device = |flags: libc::c_uint| {
            // SAFETY: a C string.
            let fd =
                unsafe { libc::syscall(libc::SYS_memfd_create, c"".as_ptr(), flags | libc::MFD_CLOEXEC) };
            // SAFETY: just made, and not owned.
            let file = (fd >= 0).then(|| unsafe { File::from_raw_fd(fd as RawFd) })?;
            file.metadata().ok().map(|stat| stat.dev())
        };
        [0].into_iter().chain(huge).filter_map(device).collect()
    })
}

/// The file, found by its name in the kernel's cache of names, as a descriptor that stands for it without being open (O_PATH).
fn by_name(pid: i32, file: &FileMapping) -> io::Result<File> {
    let Some(name) = file.path.strip_prefix(b"/").filter(|name| !name.ends_with(DELETED)) else {
        return Err(refused(libc::ENOENT));
    };
    let name = CString::new(name)?;
    let root = unopened(sys::proc_entry(pid, "root")?)?;
    // SAFETY: plain data.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_CACHED;
    let mut looks = 0;
    loop {
        let size = size_of::<libc::open_how>();
        // SAFETY: a descriptor, a C string, and a structure of this size.
        let fd = unsafe {
            libc::syscall(libc::SYS_openat2, root.as_raw_fd(), name.as_ptr(), &raw const how, size)
        };
        if fd >= 0 {
            // SAFETY: just made, and not owned.
            return same(unsafe { File::from_raw_fd(fd as RawFd) }, file);
        }
        looks += 1;
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock || looks == LOOKS {
            return Err(error);
        }
    }
}

/// The file, found among the descriptors of the process, as [`by_name`].
fn by_descriptor(pid: i32, file: &FileMapping) -> io::Result<File> {
    for entry in fs::read_dir(sys::proc_entry(pid, "fd")?)?.flatten() {
        let path = entry.path();
        if fs::read_link(&path).is_ok_and(|name| name.as_os_str().as_bytes() == file.path)
            && let Ok(found) = unopened(path).and_then(|found| same(found, file))
        {
            return Ok(found);
        }
    }
    Err(refused(libc::ENOENT))
}

/// What an entry of /proc leads to, as [`by_name`].
fn unopened(path: impl AsRef<Path>) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)
}

/// `found` if it is `file`, as far as the kernel knows without a question to the file system.
fn same(found: File, file: &FileMapping) -> io::Result<File> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: plain data.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let mask = libc::STATX_INO;
    // SAFETY: a descriptor, an empty C string, and a structure that the kernel fills in.
    let done = unsafe {
        libc::syscall(libc::SYS_statx, found.as_raw_fd(), c"".as_ptr(), flags, mask, &raw mut stat)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let is_same =
        (libc::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino) == (file.device, file.inode);
    if is_same { Ok(found) } else { Err(refused(libc::ENXIO)) }
}

/// Maps `len` bytes from `offset` on. Returns where the first of them is.
fn map(file: &File, page: u64, (offset, len): (u64, u64), writable: bool) -> io::Result<(u64, Mapping)> {
    let end = offset.checked_add(len).ok_or_else(|| refused(libc::EOVERFLOW))?;
    if !page.is_power_of_two() || file.metadata()?.len() < end {
        return Err(refused(libc::ENXIO));
    }
    let first = offset & !(page - 1);
    let bytes = (end - first).next_multiple_of(page) as usize;
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    // SAFETY: a new mapping at a place of the kernel's choice.
    let base = unsafe {
        libc::mmap(null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), first as libc::off_t)
    };
    let mapping = Mapping::new(base, Some(bytes))?;
    mapping.keep_from_children(bytes as u64);
    Ok((mapping.at() + (offset - first), mapping))
}

/// Attaches a SysV segment. Returns where byte `offset` of it is.
fn attach(file: &FileMapping, offset: u64, writable: bool) -> io::Result<(u64, Mapping)> {
    // The inode's number is the segment's identifier.
    let segment = libc::c_int::try_from(file.inode).map_err(|_| refused(libc::EINVAL))?;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let base = unsafe { libc::shmat(segment, null(), if writable { 0 } else { libc::SHM_RDONLY }) };
    let mapping = Mapping::new(base, None)?;
    let at = mapping.at();
    // In another IPC namespace the number is another segment's.
    let own = shared_mapping(std::process::id() as i32, at)?.ok_or_else(|| refused(libc::ENXIO))?;
    if (own.device, own.inode) != (file.device, file.inode)
        || own.to - at < file.offset + (file.to - file.from)
    {
        return Err(refused(libc::ENXIO));
    }
    mapping.keep_from_children(own.to - at);
    Ok((at + offset, mapping))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cookie;
    use ferroce_os::sys;

    fn own() -> (Cookie, PeerMemory) {
        let cookie = Cookie::new().unwrap();
        let own = PeerMemory::probe(std::process::id() as i32, cookie.at(), cookie.value()).unwrap();
        (cookie, own)
    }

    /// Writes through a view of this process's own memory, and checks both the memory and what the view reads back.
    fn use_view(view: &PeerView, addr: u64, len: usize) {
        let from: Vec<u8> = (0..len).map(|i| i as u8).collect();
        assert!(view.write(addr, from.as_ptr() as u64, len));
        // SAFETY: the test's mapping.
        let seen = unsafe { std::slice::from_raw_parts(addr as *const u8, len) };
        assert_eq!(seen, from);
        let mut to = vec![0; len];
        assert!(view.read(addr, to.as_mut_ptr() as u64, len));
        assert_eq!(to, from);
        assert!(!view.read(addr - 1, to.as_mut_ptr() as u64, len));
        assert!(!view.read(addr + 1, to.as_mut_ptr() as u64, len));
        assert!(!view.read(u64::MAX, to.as_mut_ptr() as u64, len));
    }

    #[test]
    fn a_memfd_is_mapped_a_second_time_and_may_go_away() {
        let (_cookie, own) = own();
        let fd = sys::memfd(c"view", 16 << 12).unwrap();
        let base = sys::map_shared(fd.raw(), 16 << 12, true).unwrap().as_ptr() as u64;
        let view = PeerView::of(&own, base + 100, 10_000, true).unwrap();
        assert_ne!(view.at, base + 100);
        use_view(&view, base + 100, 10_000);
        let reader = PeerView::of(&own, base, 8, false).unwrap();
        assert!(!reader.write(base, &raw const view.addr as u64, 8));
        assert!(PeerView::of(&own, base, (16 << 12) + 1, true).is_none());
        // SAFETY: the test's descriptor.
        assert_eq!(unsafe { libc::ftruncate(fd.raw(), 0) }, 0);
        let mut word = 0u64;
        assert!(!view.read(base + 100, &raw mut word as u64, 8));
        assert!(PeerView::of(&own, base, 8, true).is_none());
    }

    #[test]
    fn a_segment_is_attached_a_second_time() {
        let (_cookie, own) = own();
        // SAFETY: a segment of the test's own, which ends with its last mapping.
        let base = unsafe {
            let segment = libc::shmget(libc::IPC_PRIVATE, 8 << 12, libc::IPC_CREAT | 0o600);
            let base = libc::shmat(segment, null(), 0) as u64;
            libc::shmctl(segment, libc::IPC_RMID, null_mut());
            base
        };
        let view = PeerView::of(&own, base + 4096, 5000, true).unwrap();
        use_view(&view, base + 4096, 5000);
    }

    /// A file system that isn't memory may be a program's, and take any time to open a file.
    #[test]
    fn a_file_that_is_not_memory_is_not_opened() {
        let (_cookie, own) = own();
        let path = std::env::current_exe().unwrap().with_extension(format!("view-{}", std::process::id()));
        fs::write(&path, [7; 4096]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let base = sys::map_shared(file.as_raw_fd(), 4096, true).unwrap().as_ptr() as u64;
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string; the descriptor is new.
        let watch = unsafe {
            let watch = libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK);
            assert!(libc::inotify_add_watch(watch, name.as_ptr(), libc::IN_OPEN) >= 0);
            File::from_raw_fd(watch)
        };
        assert!(PeerView::of(&own, base, 4096, true).is_none());
        let event = io::Read::read(&mut &watch, &mut [0; 256]);
        fs::remove_file(&path).unwrap();
        assert_eq!(event.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_closed_file_of_a_mounted_file_system_of_memory_is_mapped() {
        let (_cookie, own) = own();
        let path = format!("/dev/shm/ferroce-view-{}", std::process::id());
        let Ok(file) = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)
        else {
            return;
        };
        file.set_len(8192).unwrap();
        let base = sys::map_shared(file.as_raw_fd(), 8192, true).unwrap().as_ptr() as u64;
        drop(file);
        let view = PeerView::of(&own, base, 8192, true);
        fs::remove_file(&path).unwrap();
        use_view(&view.unwrap(), base, 8192);
    }

    #[test]
    fn private_memory_and_files_on_a_disk_are_not_mapped() {
        let (_cookie, own) = own();
        let private = vec![0u8; 8192];
        assert!(PeerView::of(&own, private.as_ptr() as u64, 8192, true).is_none());
        assert!(PeerView::of(&own, 0x10, 8, false).is_none());
        assert!(PeerView::of(&own, u64::MAX, 8, false).is_none());
        let path = std::env::current_exe().unwrap();
        let disk = File::open(path).unwrap();
        let base = sys::map_shared(disk.as_raw_fd(), 4096, false).unwrap().as_ptr() as u64;
        assert!(PeerView::of(&own, base, 8, false).is_none());
    }
}
