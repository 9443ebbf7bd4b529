//! Whether a range of the program's address space is mapped and with which rights, and what file another process has mapped.
//!
//! The kernel is asked through `/proc/thread-self`: once the main thread has ended, `/proc/self` has no memory any more.

use crate::pages;
use ferroce_os::sys;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, BufRead};
use std::os::fd::AsRawFd;

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

/// What `len` bytes at `addr` are, for reading, and for writing where `write` asks for it.
///
/// # Errors
/// /proc/thread-self/maps can't be read.
pub fn mapped(addr: u64, len: u64, write: bool) -> io::Result<MappedRange> {
    pages::note_registration();
    let maps = std::fs::File::open("/proc/thread-self/maps")?;
    let end = addr + len;
    let (mut at, mut shared, mut name) = (addr, true, [0; 4096]);
    while at < end {
        let query = match query(&maps, at, &mut name) {
            Ok(query) => query,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENOENT) => Ok(MappedRange::NO),
                    _ => Ok(covered(&std::fs::read("/proc/thread-self/maps")?, addr, end, write)),
                };
            }
        };
        let need = if write { VMA_READABLE | VMA_WRITABLE } else { VMA_READABLE };
        if query.vma_flags & need != need || query.vma_end <= at {
            return Ok(MappedRange::NO);
        }
        shared &= query.vma_flags & VMA_SHARED != 0;
        if query.vma_name_size > 0 && is_of_disk(&name) {
            pages::note_file(query.vma_start, query.vma_end);
        }
        at = query.vma_end;
    }
    Ok(MappedRange { permitted: true, shared })
}

/// Asks for the mapping that `at` is in, and for its name.
fn query(maps: &File, at: u64, name: &mut [u8]) -> io::Result<ProcmapQuery> {
    let mut query = ProcmapQuery {
        size: size_of::<ProcmapQuery>() as u64,
        query_addr: at,
        vma_name_size: name.len() as u32,
        vma_name_addr: if name.is_empty() { 0 } else { name.as_mut_ptr() as u64 },
        ..Default::default()
    };
    // SAFETY: the structure that this ioctl reads and writes, with its size in its first field, and room for a name of the
    // length given.
    match unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } {
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

/// A mapping with this name may be of a file on a disk: it isn't of memory alone, nor of a device, whose memory is always there.
fn is_of_disk(name: &[u8]) -> bool {
    const MEMORY: [&[u8]; 6] =
        [b"/memfd:", b"/dev/shm/", b"/dev/zero", b"/SYSV", b"/dev/hugepages/", b"/anon_hugepage"];
    // Memory of devices is in regular files of /sys and /proc too.
    const OF_DEVICES: [&[u8]; 3] = [b"/dmabuf:", b"/sys/", b"/proc/"];
    let path = name.split(|&byte| byte == 0).next().unwrap_or_default();
    is_of_file(path)
        && !MEMORY.iter().chain(&OF_DEVICES).any(|prefix| path.starts_with(prefix))
        && may_be_regular_file(path)
}

/// The file with this path is a regular one, as far as can be known. What is known of a file elsewhere isn't asked for again.
fn may_be_regular_file(path: &[u8]) -> bool {
    let Ok(path) = CString::new(path) else { return true };
    // SAFETY: all-zero bytes are a valid statx.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, asked) = (libc::AT_STATX_DONT_SYNC, libc::STATX_TYPE);
    // SAFETY: a path with its end, and room for a statx.
    let done = unsafe {
        libc::syscall(libc::SYS_statx, libc::AT_FDCWD, path.as_ptr(), flags, asked, &raw mut found)
    };
    done != 0 || u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG
}

/// As [`mapped`], from the text of /proc/thread-self/maps, for older kernels.
fn covered(maps: &[u8], addr: u64, end: u64, write: bool) -> MappedRange {
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
        // Range, rights, offset, device and inode come before the name.
        let name = line.splitn(6, |&byte| byte == b' ').nth(5).unwrap_or_default();
        if is_of_disk(name.trim_ascii_start()) {
            pages::note_file(from, to);
        }
        at = to;
        if at >= end {
            return MappedRange { permitted: true, shared };
        }
    }
    MappedRange::NO
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

    #[test]
    fn the_text_of_maps_is_understood() {
        let maps = b"1000-3000 rw-s 0 00:00 0\n3000-4000 r--p 0 00:00 0 /x y\n6000-7000 ---p 0 00:00 0\n";
        let is = |from, to, write| covered(maps, from, to, write).permitted;
        assert!(is(0x1000, 0x3000, true));
        assert!(is(0x1800, 0x4000, false));
        assert!(!is(0x1800, 0x4000, true));
        assert!(!is(0x3800, 0x4001, false));
        assert!(!is(0x6000, 0x6001, false));
        assert!(!is(0x800, 0x1001, false));
        assert!(covered(maps, 0x1000, 0x3000, true).shared);
        assert!(!covered(maps, 0x1000, 0x3001, false).shared);
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
        let own = std::env::current_exe().unwrap().into_os_string().into_encoded_bytes();
        assert!(is_of_disk(&own) && is_of_disk(&[&own, &b"\0rest of an earlier name"[..]].concat()));
        assert!(is_of_disk(b"/gone (deleted)"));
        for of_device in
            [&b"/dev/null"[..], b"/dev/null\0/x", b"/dmabuf:x", b"/sys/bus/pci/devices/0/resource0"]
        {
            assert!(!is_of_disk(of_device), "{}", of_device.escape_ascii());
        }
        for of_memory in
            [&b"/memfd:x (deleted)"[..], b"/dev/shm/x", b"[heap]", b"anon_inode:[perf_event]", b""]
        {
            assert!(!is_of_disk(of_memory), "{}", of_memory.escape_ascii());
        }
    }

    #[test]
    fn both_ways_agree_on_this_process() {
        let page = vec![1u8; 100_000];
        let (at, len) = (page.as_ptr() as u64, page.len() as u64);
        let text = std::fs::read("/proc/self/maps").unwrap();
        let private = MappedRange { permitted: true, shared: false };
        assert_eq!(mapped(at, len, true).unwrap(), private);
        assert_eq!(covered(&text, at, at + len, true), private);
        assert_eq!(mapped(0, 16, false).unwrap(), MappedRange::NO);
        assert_eq!(covered(&text, 0, 16, false), MappedRange::NO);
    }
}
