//! Copies to and from the program's memory that take the CRC-32 of the bytes in the same pass.

use crate::guard::{FEWEST_FOLDED, FOLDED};
use crate::{Fault, copy, guard};
use ferroce_wire::crc::extend;

/// Copies from the program's memory at `addr` as [`copy::read`] does. Returns the CRC-32 of what `crc` is the CRC-32 of, followed by the
/// bytes that `dst` has then.
///
/// # Errors
/// [`Fault`] when a byte can't be read; `dst` may then be partly written.
#[inline]
pub fn read(addr: u64, dst: &mut [u8], crc: u32) -> Result<u32, Fault> {
    let body = dst.len() / FOLDED * FOLDED;
    if !copy::by_kernel() && body >= FEWEST_FOLDED {
        // SAFETY: `dst` is exclusively ours for the call.
        let summed = unsafe { guard::copy_summed(dst.as_mut_ptr() as u64, addr, body, crc) };
        if let Ok(crc) = summed {
            let rest = &mut dst[body..];
            copy::read(addr + body as u64, rest)?;
            return Ok(extend(crc, rest));
        }
    }
    copy::read(addr, dst)?;
    Ok(extend(crc, dst))
}

/// Copies to the program's memory at `addr` as [`copy::write`] does. Returns the CRC-32 of what `crc` is the CRC-32 of, followed by `src`.
///
/// # Errors
/// [`Fault`] when a byte can't be written; a part may have been.
#[inline]
pub fn write(addr: u64, src: &[u8], crc: u32) -> Result<u32, Fault> {
    // Stores that don't cross the border of an aligned word.
    let (head, rest) = src.split_at(src.len().min(addr.wrapping_neg() as usize % FOLDED));
    let (body, tail) = rest.split_at(rest.len() / FOLDED * FOLDED);
    if !copy::by_kernel() && body.len() >= FEWEST_FOLDED {
        copy::write(addr, head)?;
        let to = addr + head.len() as u64;
        let crc = extend(crc, head);
        // SAFETY: `src` is only read; no reference to the program's memory exists.
        let summed = unsafe { guard::copy_summed(to, body.as_ptr() as u64, body.len(), crc) };
        if let Ok(crc) = summed {
            copy::write(to + body.len() as u64, tail)?;
            return Ok(extend(crc, tail));
        }
    }
    copy::write(addr, src)?;
    Ok(extend(crc, src))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_bytes_copied_whatever_their_number_and_place() {
        let source: Vec<u8> = (0..6000_u32).map(|i| ((i * 31) ^ (i >> 4)) as u8).collect();
        let mut target = vec![0; 6100];
        for len in (0..400).chain([1023, 1024, 1500, 4095, 4096, 5000]) {
            for (from, at) in [(0, 0), (1, 0), (0, 5), (3, 33), (16, 8)] {
                let bytes = &source[from..from + len];
                let sum = extend(len as u32, bytes);
                for writes in [false, true] {
                    target.fill(0);
                    let to = &mut target[at..at + len];
                    let copied = if writes {
                        write(to.as_mut_ptr() as u64, bytes, len as u32)
                    } else {
                        read(bytes.as_ptr() as u64, to, len as u32)
                    };
                    assert_eq!((copied, &*to), (Ok(sum), bytes), "{len} bytes from {from} to {at}");
                    assert!(target[..at].iter().chain(&target[at + len..]).all(|&byte| byte == 0));
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_not_there_are_an_error() {
        const PAGE: usize = 4096;
        // SAFETY: mappings of this test's own.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let map = libc::mmap(std::ptr::null_mut(), 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(map, PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            map as u64
        };
        let mut bytes = vec![7; PAGE];
        for len in [1, 31, 128, 200, 1024, PAGE] {
            let last = page + (PAGE - len) as u64;
            for missing in [1, 40, 200] {
                assert_eq!(read(last + missing, &mut bytes[..len], 0), Err(Fault), "{len}");
                assert_eq!(write(last + missing, &bytes[..len], 0), Err(Fault), "{len}");
            }
            assert!(read(last, &mut bytes[..len], 0).is_ok() && write(last, &bytes[..len], 0).is_ok());
        }
        // SAFETY: what was mapped above.
        unsafe { libc::munmap(page as *mut _, 2 * PAGE) };
    }
}
