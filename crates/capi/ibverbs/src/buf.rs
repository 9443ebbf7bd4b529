//! Buffers that the adapter allocates: ibv_alloc_buf(3).

use std::ffi::c_void;
use std::ptr;

use libc::size_t;

use ferroce_abi::verbs::*;
use ferroce_entry::call::{Outcome, Refusal, entry, put};
use ferroce_objects::{Headed, PdBlock, block};

/// What programs hold and don't look into.
#[repr(C)]
#[allow(non_camel_case_types)] // as in the header
pub struct ibv_buf {
    opaque: [u8; 0],
}

block! {
    /// Plain memory of the process: an adapter in the process reaches all of it.
    BufBlock: ibv_buf, "buf", |_c| (ptr::null_mut(), 0);
    pd: *mut ibv_pd,
    hold: ferroce_mem::PdHold,
    addr: *mut c_void,
    size: size_t,
}

impl Drop for BufBlock {
    fn drop(&mut self) {
        // SAFETY: mapped by `ibv_alloc_buf`, and given up.
        unsafe { libc::munmap(self.addr, self.size) };
    }
}

/// Checks that a region of a buffer is registered in the buffer's domain, and lies inside it.
///
/// # Safety
/// `buf` is null or a buffer.
pub(crate) unsafe fn check_range(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: size_t,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let buf = unsafe { BufBlock::checked(buf) }?;
    if pd != buf.pd {
        return Err(Refusal::invalid("the buffer was allocated from another protection domain"));
    }
    let offset = addr.addr().checked_sub(buf.addr.addr());
    let end = offset.and_then(|offset| offset.checked_add(length));
    if end.is_none_or(|end| end > buf.size) {
        return Err(Refusal::invalid(format!(
            "{addr:p}+{length} is outside of the buffer of {} bytes",
            buf.size
        )));
    }
    Ok(())
}

entry! {
    pub(crate) fn ibv_alloc_buf(pd: *mut ibv_pd, size: size_t, buf: *mut *mut c_void) -> pointer c_void, {
        // SAFETY: by the man page a domain.
        let domain = unsafe { PdBlock::checked(pd) }?;
        if size == 0 {
            return Err(Refusal::invalid("a buffer of no byte"));
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let addr = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
        if addr == libc::MAP_FAILED {
            return Err(Refusal::new(libc::ENOMEM, format!("there is no memory for a buffer of {size} bytes")));
        }
        let hold = ferroce_mem::PdHold::new(domain.nic());
        let block = BufBlock { c: ibv_buf { opaque: [] }, pd, hold, addr, size };
        let made = BufBlock::allocate(|_| Ok(block))?;
        // SAFETY: by the man page the caller's variable.
        unsafe {
            put(buf, "buf", made.cast()).inspect_err(|_| BufBlock::free(made))?;
        }
        Ok(addr)
    }
}

entry! {
    fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> minus_one {
        // SAFETY: by the man page a buffer.
        unsafe { BufBlock::checked(buf) }?;
        Err(Refusal::new(libc::ENODATA, "the buffer is plain memory, behind which there is no dma-buf"))
    }
}

/// ibv_free_buf(3).
#[unsafe(export_name = "ferroce_c_ibv_free_buf")]
pub(crate) unsafe extern "C" fn free_buf(buf: *mut c_void) {
    ferroce_entry::call::value("ibv_free_buf", (), || {
        if !buf.is_null() {
            // SAFETY: by the man page a buffer that the caller gives up.
            unsafe { BufBlock::free(buf.cast()) };
        }
    });
}
