//! Whether a range of the program's address space is mapped, with which rights. This thread is asked for it: once the main
//! thread has ended, `/proc/self` has no memory any more.

use std::io;
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

/// Are all of `len` bytes at `addr` mapped, readable, and writable where `write` asks for it?
///
/// # Errors
/// /proc/thread-self/maps can't be read.
pub fn mappings_permit(addr: u64, len: u64, write: bool) -> io::Result<bool> {
    let maps = std::fs::File::open("/proc/thread-self/maps")?;
    let end = addr + len;
    let mut at = addr;
    while at < end {
        let mut q =
            ProcmapQuery { size: size_of::<ProcmapQuery>() as u64, query_addr: at, ..Default::default() };
        // SAFETY: `q` is the structure that this ioctl reads and writes, with its size in its first field.
        if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut q) } != 0 {
            return match io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOENT) => Ok(false),
                _ => Ok(covered(&std::fs::read("/proc/thread-self/maps")?, addr, end, write)),
            };
        }
        let need = if write { VMA_READABLE | VMA_WRITABLE } else { VMA_READABLE };
        if q.vma_flags & need != need || q.vma_end <= at {
            return Ok(false);
        }
        at = q.vma_end;
    }
    Ok(true)
}

/// The same from the text of /proc/thread-self/maps, for older kernels.
fn covered(maps: &[u8], addr: u64, end: u64, write: bool) -> bool {
    let mut at = addr;
    for line in maps.split(|&b| b == b'\n') {
        let Some((from, to, perms)) = parse_line(line) else { continue };
        if to <= at {
            continue;
        }
        if from > at || !perms.starts_with(b"r") || (write && perms.get(1) != Some(&b'w')) {
            return false;
        }
        at = to;
        if at >= end {
            return true;
        }
    }
    false
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
        let maps = b"1000-3000 rw-p 0 00:00 0\n3000-4000 r--p 0 00:00 0 /x y\n6000-7000 ---p 0 00:00 0\n";
        assert!(covered(maps, 0x1000, 0x3000, true));
        assert!(covered(maps, 0x1800, 0x4000, false));
        assert!(!covered(maps, 0x1800, 0x4000, true));
        assert!(!covered(maps, 0x3800, 0x4001, false));
        assert!(!covered(maps, 0x6000, 0x6001, false));
        assert!(!covered(maps, 0x800, 0x1001, false));
    }

    #[test]
    fn both_ways_agree_on_this_process() {
        let page = vec![1u8; 100_000];
        let (at, len) = (page.as_ptr() as u64, page.len() as u64);
        let text = std::fs::read("/proc/self/maps").unwrap();
        assert!(mappings_permit(at, len, true).unwrap());
        assert!(covered(&text, at, at + len, true));
        assert!(!mappings_permit(0, 16, false).unwrap());
        assert!(!covered(&text, 0, 16, false));
    }
}
