//! Whether a range of the program's address space is mapped and with which rights, and what file another process has mapped.
//!
//! The kernel is asked through `/proc/thread-self`: once the main thread has ended, `/proc/self` has no memory any more.

use crate::late::{Coming, NotedRanges};
use crate::proc_file::ProcFile;
use crate::seen;
use ferroce_os::sys;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, BufRead};
use std::os::fd::{AsRawFd, RawFd};

/// PROCMAP_QUERY (Linux 6.11): one ioctl on /proc/thread-self/maps instead of parsing all of it.
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
const VMA_READABLE: u64 = 1;
const VMA_WRITABLE: u64 = 2;

const VMA_SHARED: u64 = 8;
/// If no mapping has the address, the next one is asked for.
const OR_NEXT: u64 = 0x10;

/// What a range of the address space is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedRange {
    /// All of it is mapped, readable, and writable if that was asked for.
    pub permitted: bool,
    /// All of it is of mappings that other processes can share.
    pub shared: bool,
}

impl MappedRange {
    const NO: Self = Self { permitted: false, shared: false };
}

/// What `len` bytes at `addr` are, for reading, and for writing where `write` asks for it. What is of a file is `noted`: it can come late.
///
/// # Errors
/// /proc/thread-self/maps can't be read.
pub fn mapped(addr: u64, len: u64, write: bool, noted: &mut NotedRanges) -> io::Result<MappedRange> {
    seen::note_registration(addr, len);
    let maps = std::fs::File::open("/proc/thread-self/maps")?;
    let end = addr + len;
    let (mut at, mut shared, mut name) = (addr, true, [0; 4096]);
    while at < end {
        let query = match query(&maps, at, &mut name) {
            Ok(query) => query,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENOENT) => Ok(MappedRange::NO),
                    _ => Ok(covered(&std::fs::read("/proc/thread-self/maps")?, addr, end, write, noted)),
                };
            }
        };
        let need = if write { VMA_READABLE | VMA_WRITABLE } else { VMA_READABLE };
        if query.vma_flags & need != need || query.vma_end <= at {
            return Ok(MappedRange::NO);
        }
        shared &= query.vma_flags & VMA_SHARED != 0;
        let is_written = query.vma_flags & VMA_SHARED != 0 && query.vma_flags & VMA_WRITABLE != 0;
        let coming = (query.vma_name_size > 0).then(|| coming(&name, is_written)).flatten();
        if let Some(coming) = coming {
            noted.add(query.vma_start.max(addr), query.vma_end.min(end), coming);
        }
        at = query.vma_end;
    }
    Ok(MappedRange { permitted: true, shared })
}

/// Whether a range may have mappings of files on a disk, by their names. It is called on data paths, so it calls nothing that can be
/// cancelled.
pub(crate) fn may_be_of_disk(from: u64, to: u64) -> bool {
    const MAPS: &CStr = c"/proc/thread-self/maps";
    let Some(maps) = ProcFile::open(MAPS) else { return false };
    let found = find_name_of_disk(maps.fd(), from, to);
    drop(maps);
    found.unwrap_or_else(|_| {
        // An older kernel: the names are in the text.
        let text = sys::read_file(MAPS, usize::MAX).unwrap_or_default();
        text.split(|&byte| byte == b'\n').any(|line| {
            parse_line(line).is_some_and(|(begin, end, _)| begin < to && from < end)
                && has_name_of_disk(name_in_line(line))
        })
    })
}

fn find_name_of_disk(maps: RawFd, from: u64, to: u64) -> io::Result<bool> {
    // Not on the stack: threads that post may have little of it.
    let (mut at, mut name) = (from, vec![0; 4096]);
    while at < to {
        match query_with(maps, at, OR_NEXT, &mut name) {
            Ok(found) if found.vma_start >= to => break,
            Ok(found) if found.vma_name_size > 0 && has_name_of_disk(&name) => return Ok(true),
            Ok(found) => at = found.vma_end.max(at + 1),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Asks for the mapping that `at` is in, and for its name.
fn query(maps: &File, at: u64, name: &mut [u8]) -> io::Result<ProcmapQuery> {
    query_with(maps.as_raw_fd(), at, 0, name)
}

fn query_with(maps: RawFd, at: u64, query_flags: u64, name: &mut [u8]) -> io::Result<ProcmapQuery> {
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        query_flags,
        query_addr: at,
        vma_name_size: name.len() as u32,
        vma_name_addr: if name.is_empty() { 0 } else { name.as_mut_ptr() as u64 },
        ..Default::default()
    };
    // SAFETY: the structure that this ioctl reads and writes, with its size in its first field, and room for a name of the
    // length given.
    match unsafe { libc::ioctl(maps, PROCMAP_QUERY, &raw mut query) } {
        0 => Ok(query),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A mapping of a file in some process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileMapping {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) writable: bool,
    /// Where `from` is in the file.
    pub(crate) offset: u64,
    /// The file, as `stat(2)` names it.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Its name, as in `/proc/PID/maps`.
    pub(crate) path: Vec<u8>,
}

/// The mapping of process `pid` that has `at` in it, if it is one of a file that processes can share.
///
/// # Errors
/// The process's mappings can't be read.
pub(crate) fn shared_mapping(pid: i32, at: u64) -> io::Result<Option<FileMapping>> {
    let maps = File::open(sys::proc_entry(pid, "maps")?)?;
    let mut name = [0; 4096];
    if let Ok(found) = query(&maps, at, &mut name) {
        let path = name.split(|&byte| byte == 0).next().unwrap_or_default().to_vec();
        let is_shared = found.vma_flags & VMA_SHARED != 0;
        return Ok((is_shared && is_of_file(&path)).then(|| FileMapping {
            from: found.vma_start,
            to: found.vma_end,
            writable: found.vma_flags & VMA_WRITABLE != 0,
            offset: found.vma_offset,
            device: libc::makedev(found.dev_major, found.dev_minor),
            inode: found.inode,
            path,
        }));
    }
    for line in io::BufReader::new(maps).split(b'\n') {
        let line = line?;
        match parse_line(&line) {
            Some((_, to, _)) if to <= at => {}
            Some((from, ..)) if from <= at => return Ok(parse_file(&line)),
            _ => return Ok(None),
        }
    }
    Ok(None)
}

/// A line of a mapping that is shared and of a file.
fn parse_file(line: &[u8]) -> Option<FileMapping> {
    let (from, to, permissions) = parse_line(line)?;
    let mut words = line.splitn(6, |&byte| byte == b' ').skip(2);
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let offset = u64::from_str_radix(word()?, 16).ok()?;
    let (major, minor) = word()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let device = libc::makedev(number(major)?, number(minor)?);
    let inode = word()?.parse().ok()?;
    let path = words.next().unwrap_or_default().trim_ascii_start().to_vec();
    let writable = permissions.get(1) == Some(&b'w');
    let is_shared = permissions.get(3) == Some(&b's');
    let found = FileMapping { from, to, writable, offset, device, inode, path };
    (is_shared && is_of_file(&found.path)).then_some(found)
}

/// A mapping with this name is of a file. The inode doesn't show that: that of the first SysV segment of a machine is 0.
fn is_of_file(path: &[u8]) -> bool {
    path.starts_with(b"/")
}

/// How the pages of a mapping with this name come, if it may be of a file on a disk: it isn't of memory alone, nor of a device, whose memory is
/// always there. The file was opened for writing if the mapping `is_written`.
fn coming(name: &[u8], is_written: bool) -> Option<Coming> {
    if !has_name_of_disk(name) {
        return None;
    }
    let path = CString::new(path_of(name)).ok();
    let found = path.as_deref().and_then(|path| Some((path, stat(path)?)));
    if found.is_some_and(|(_, stat)| u32::from(stat.stx_mode) & libc::S_IFMT != libc::S_IFREG) {
        return None;
    }
    let shown = is_written || found.is_some_and(|(path, stat)| is_own_or_writable(path, &stat));
    Some(if shown { Coming::Late } else { Coming::Unshown })
}

/// What is known of a file. What is known of a file elsewhere isn't asked for again.
fn stat(path: &CStr) -> Option<libc::statx> {
    // SAFETY: all-zero bytes are a valid statx.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, asked) = (libc::AT_STATX_DONT_SYNC, libc::STATX_TYPE | libc::STATX_UID);
    // SAFETY: a path with its end, and room for a statx.
    let done = unsafe {
        libc::syscall(libc::SYS_statx, libc::AT_FDCWD, path.as_ptr(), flags, asked, &raw mut found)
    };
    (done == 0).then_some(found)
}

/// mincore(2) shows the pages of a file to its owner, and to those who may write to it.
fn is_own_or_writable(path: &CStr, stat: &libc::statx) -> bool {
    // SAFETY: takes no pointer.
    let is_own = || stat.stx_uid == unsafe { libc::geteuid() };
    // SAFETY: a path with its end.
    let is_writable = || unsafe {
        libc::syscall(libc::SYS_faccessat2, libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) == 0
    };
    is_own() || is_writable()
}

/// Whether a mapping with this name may be of a file on a disk, by the name alone: no file is looked for.
fn has_name_of_disk(name: &[u8]) -> bool {
    const MEMORY: [&[u8]; 3] = [b"/memfd:", b"/SYSV", b"/anon_hugepage"];
    // The files of /dev are of memory too. Memory of devices is in regular files of /sys and /proc.
    const OF_DEVICES: [&[u8]; 4] = [b"/dev/", b"/dmabuf:", b"/sys/", b"/proc/"];
    let path = path_of(name);
    is_of_file(path) && !MEMORY.iter().chain(&OF_DEVICES).any(|prefix| path.starts_with(prefix))
}

/// A name up to its end.
fn path_of(name: &[u8]) -> &[u8] {
    name.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// As [`mapped`], from the text of /proc/thread-self/maps, for older kernels.
fn covered(maps: &[u8], addr: u64, end: u64, write: bool, noted: &mut NotedRanges) -> MappedRange {
    let (mut at, mut shared) = (addr, true);
    for line in maps.split(|&b| b == b'\n') {
        let Some((from, to, perms)) = parse_line(line) else { continue };
        if to <= at {
            continue;
        }
        if from > at || !perms.starts_with(b"r") || (write && perms.get(1) != Some(&b'w')) {
            return MappedRange::NO;
        }
        shared &= perms.get(3) == Some(&b's');
        let is_written = perms.get(1) == Some(&b'w') && perms.get(3) == Some(&b's');
        if let Some(coming) = coming(name_in_line(line), is_written) {
            noted.add(from.max(addr), to.min(end), coming);
        }
        at = to;
        if at >= end {
            return MappedRange { permitted: true, shared };
        }
    }
    MappedRange::NO
}

/// Range, rights, offset, device and inode come before the name.
fn name_in_line(line: &[u8]) -> &[u8] {
    line.splitn(6, |&byte| byte == b' ').nth(5).unwrap_or_default().trim_ascii_start()
}

fn parse_line(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut words = line.split(|&b| b == b' ');
    let range = std::str::from_utf8(words.next()?).ok()?;
    let (from, to) = range.split_once('-')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::late::noted;

    #[test]
    fn the_text_of_maps_is_understood() {
        let maps = b"1000-3000 rw-s 0 00:00 0\n3000-4000 r--p 0 00:00 0 /x y\n6000-7000 ---p 0 00:00 0\n";
        let is = |from, to, write| covered(maps, from, to, write, &mut NotedRanges::default()).permitted;
        assert!(is(0x1000, 0x3000, true));
        assert!(is(0x1800, 0x4000, false));
        assert!(!is(0x1800, 0x4000, true));
        assert!(!is(0x3800, 0x4001, false));
        assert!(!is(0x6000, 0x6001, false));
        assert!(!is(0x800, 0x1001, false));
        let shared = |to| covered(maps, 0x1000, to, false, &mut NotedRanges::default()).shared;
        assert!(shared(0x3000) && !shared(0x3001));
    }

    #[test]
    fn lines_of_shared_files_are_understood() {
        let line = b"7f00-8f00 rw-s 00003000 00:1f 77                     /dev/shm/a b (deleted)";
        let file = parse_file(line).unwrap();
        assert_eq!((file.from, file.to, file.offset, file.inode), (0x7f00, 0x8f00, 0x3000, 77));
        assert_eq!((file.device, file.writable), (libc::makedev(0, 0x1f), true));
        assert_eq!(file.path, b"/dev/shm/a b (deleted)");
        assert_eq!(parse_file(b"7f00-8f00 rw-p 00003000 00:1f 77 /x"), None);
        assert_eq!(parse_file(b"7f00-8f00 rw-s 00003000 00:1f 0"), None);
        assert_eq!(parse_file(b"7f00-8f00 rw-s"), None);
        let first_segment = b"7f00-8f00 rw-s 00000000 00:01 0                      /SYSV00000000 (deleted)";
        assert_eq!(parse_file(first_segment).unwrap().inode, 0);
    }

    #[test]
    fn regular_files_alone_are_of_a_disk() {
        let is_of_disk = |name: &[u8]| coming(name, true) == Some(Coming::Late);
        let own = std::env::current_exe().unwrap().into_os_string().into_encoded_bytes();
        assert!(is_of_disk(&own) && is_of_disk(&[&own, &b"\0rest of an earlier name"[..]].concat()));
        assert!(is_of_disk(b"/gone (deleted)"));
        for of_device in
            [&b"/dev/null"[..], b"/dev/null\0/x", b"/dmabuf:x", b"/sys/bus/pci/devices/0/resource0"]
        {
            assert_eq!(coming(of_device, true), None, "{}", of_device.escape_ascii());
        }
        for of_memory in
            [&b"/memfd:x (deleted)"[..], b"/dev/shm/x", b"[heap]", b"anon_inode:[perf_event]", b""]
        {
            assert_eq!(coming(of_memory, true), None, "{}", of_memory.escape_ascii());
        }
        // A directory isn't a file.
        assert_eq!(coming(b"/", true), None);
    }

    #[test]
    fn pages_of_files_of_others_are_not_shown() {
        let own = std::env::current_exe().unwrap().into_os_string().into_encoded_bytes();
        assert_eq!(coming(&own, false), Some(Coming::Late));
        assert_eq!(coming(b"/gone (deleted)", false), Some(Coming::Unshown));
        let others = b"/etc/passwd";
        // SAFETY: takes no pointer.
        let is_root = unsafe { libc::geteuid() } == 0;
        let expected = if is_root { Coming::Late } else { Coming::Unshown };
        assert_eq!(coming(others, false), Some(expected));
    }

    #[test]
    fn both_ways_agree_on_this_process() {
        let page = vec![1u8; 100_000];
        let (at, len) = (page.as_ptr() as u64, page.len() as u64);
        let text = std::fs::read("/proc/self/maps").unwrap();
        let private = MappedRange { permitted: true, shared: false };
        let noted = &mut NotedRanges::default();
        assert_eq!(mapped(at, len, true, noted).unwrap(), private);
        assert_eq!(covered(&text, at, at + len, true, noted), private);
        assert_eq!(mapped(0, 16, false, noted).unwrap(), MappedRange::NO);
        assert_eq!(covered(&text, 0, 16, false, noted), MappedRange::NO);
    }

    #[test]
    fn a_file_is_noted_as_far_as_it_is_registered() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let (page, flags) = (sys::page_size(), libc::MAP_PRIVATE);
        let len = 4 * page as usize;
        // SAFETY: a new mapping.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let at = at as u64;
        let text = std::fs::read("/proc/thread-self/maps").unwrap();
        let is_late = || [0, 1, 2, 3].map(|number| noted(at + number * page, at + (number + 1) * page).late);
        for way in ["query", "text"] {
            let mut noted = NotedRanges::default();
            let found = match way {
                "query" => mapped(at + page, 2 * page, false, &mut noted).unwrap(),
                _ => covered(&text, at + page, at + 3 * page, false, &mut noted),
            };
            assert!(found.permitted, "{way}");
            assert_eq!(is_late(), [false, true, true, false], "{way}");
            drop(noted);
            assert_eq!(is_late(), [false; 4], "{way}");
        }
        let before = at - 10 * page;
        assert!(may_be_of_disk(at + page, at + 2 * page) && may_be_of_disk(before, at + page));
        // SAFETY: the test's mapping.
        unsafe { libc::munmap(at as *mut _, len) };
        let memory = vec![0u8; 1 << 20];
        let at = memory.as_ptr() as u64;
        assert!(!may_be_of_disk(at, at + (1 << 20)));
    }
}
