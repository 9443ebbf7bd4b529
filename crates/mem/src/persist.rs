//! Memory that outlives a loss of power: shared mappings of files on a disk.

use ferroce_access::Fault;
use ferroce_os::sys;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// File systems that live in memory (`linux/magic.h`).
const IN_MEMORY: [i64; 4] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6, 0x6465_6d61];

/// Is every byte of the range part of a shared mapping of a file whose file system isn't in memory?
pub(super) fn outlives_power(addr: u64, len: u64) -> bool {
    std::fs::read("/proc/thread-self/maps").is_ok_and(|maps| covers(&maps, addr, addr + len, is_on_disk))
}

/// Does the text of /proc/thread-self/maps have shared mappings of files that `suits` all over the range?
fn covers(maps: &[u8], addr: u64, end: u64, suits: impl Fn(&Path, u64) -> bool) -> bool {
    let mut at = addr;
    for line in maps.split(|&b| b == b'\n').filter_map(parse) {
        if line.end <= at {
            continue;
        }
        if line.start > at || !line.shared || line.inode == 0 || !suits(line.path, line.inode) {
            return false;
        }
        at = line.end;
        if at >= end {
            return true;
        }
    }
    false
}

struct MapsLine<'a> {
    start: u64,
    end: u64,
    shared: bool,
    inode: u64,
    path: &'a Path,
}

fn parse(line: &[u8]) -> Option<MapsLine<'_>> {
    let mut words = line.splitn(6, |&b| b == b' ');
    let (start, end) = std::str::from_utf8(words.next()?).ok()?.split_once('-')?;
    let shared = words.next()?.get(3) == Some(&b's');
    let inode = std::str::from_utf8(words.nth(2)?).ok()?.parse().ok()?;
    let path = words.next().unwrap_or_default().trim_ascii_start();
    Some(MapsLine {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        shared,
        inode,
        path: Path::new(std::ffi::OsStr::from_bytes(path)),
    })
}

fn is_on_disk(path: &Path, inode: u64) -> bool {
    // A file that was removed, or has another name here, can't be asked.
    if !std::fs::metadata(path).is_ok_and(|file| file.ino() == inode && file.is_file()) {
        return false;
    }
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let mut system = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: a string that ends in zero and room for the answer, which is plain data.
    let kind = unsafe {
        if libc::statfs(path.as_ptr(), system.as_mut_ptr()) != 0 {
            return false;
        }
        system.assume_init().f_type
    };
    !IN_MEMORY.contains(&kind)
}

/// Has the file system write the range to its disk, and waits for it.
///
/// # Errors
/// [`Fault`] when the memory is gone or can't be written.
pub fn write_back(addr: u64, len: u64) -> Result<(), Fault> {
    let start = addr & !(sys::page_size() - 1);
    // SAFETY: changes no memory. A raw call, since msync of the C library is a cancellation point.
    match unsafe { libc::syscall(libc::SYS_msync, start, addr + len - start, libc::MS_SYNC) } {
        0 => Ok(()),
        _ => Err(Fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_mappings_of_files_throughout_are_taken() {
        let maps = b"1000-3000 rw-s 00000000 08:01 12                         /a b\n\
            3000-4000 rw-s 00000000 08:01 13 /c\n4000-5000 rw-p 00000000 08:01 13 /c\n5000-6000 rw-s 0 00:01 0\n";
        let all = |path: &Path, inode| (path, inode) == (Path::new("/a b"), 12) || inode == 13;
        assert!(covers(maps, 0x1000, 0x4000, all));
        assert!(covers(maps, 0x2fff, 0x3001, all));
        assert!(!covers(maps, 0x1000, 0x4000, |_, inode| inode == 12));
        assert!(!covers(maps, 0x3000, 0x4001, all), "a private mapping");
        assert!(!covers(maps, 0x5000, 0x6000, all), "no file");
        assert!(!covers(maps, 0xfff, 0x1001, all), "nothing there");
    }

    #[test]
    fn memory_of_the_process_itself_does_not_outlive_it() {
        let page = vec![1u8; 10_000];
        assert!(!outlives_power(page.as_ptr() as u64, page.len() as u64));
    }
}
