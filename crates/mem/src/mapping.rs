//! Files in the address space of the adapter: device memory and dma-bufs.

use ferroce_os::sys;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// The name of the memfds of device memory, by which they are recognized.
pub(crate) const NAME: &std::ffi::CStr = c"ferroce-dm";
/// Their seals.
pub(crate) const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Address space of the adapter, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct MappedFile {
    reserved: NonNull<u8>,
    reserved_len: usize,
    at: NonNull<u8>,
}

// SAFETY: an address range; accesses to the bytes have safety arguments of their own.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps the first `len` bytes of a file at a multiple of `align` bytes.
    ///
    /// # Errors
    /// That of `mmap(2)`.
    pub(crate) fn new(fd: RawFd, len: usize, align: usize, writable: bool) -> io::Result<Self> {
        let page = sys::page_size() as usize;
        let reserved_len = len.max(1).next_multiple_of(page) + if align > page { align } else { 0 };
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let (none, flags) =
            (std::ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice, and a second one inside it.
        unsafe {
            let reserved = libc::mmap(none, reserved_len, libc::PROT_NONE, flags, -1, 0);
            if reserved == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let at = reserved.byte_add(reserved.addr().next_multiple_of(align.max(1)) - reserved.addr());
            let shared = libc::MAP_SHARED | libc::MAP_FIXED;
            if libc::mmap(at, len, protection, shared, fd, 0) == libc::MAP_FAILED {
                let error = io::Error::last_os_error();
                libc::munmap(reserved, reserved_len);
                return Err(error);
            }
            let (reserved, at) = (NonNull::new_unchecked(reserved.cast()), NonNull::new_unchecked(at.cast()));
            Ok(Self { reserved, reserved_len, at })
        }
    }

    /// The first of the file's bytes.
    pub(crate) fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Its address.
    pub(crate) fn addr(&self) -> u64 {
        self.at.as_ptr() as u64
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        sys::unmap(self.reserved, self.reserved_len);
    }
}
