//! Registration of other memory than the program's own, and of any memory with attributes: ibv_reg_dmabuf_mr(3),
//! ibv_reg_mr_ex(3), ibv_reg_buf_mr(3).

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use libc::size_t;

use crate::buf::{self, BufBlock, ibv_buf};
use crate::memory;
use ferroce_abi::verbs::*;
use ferroce_entry::call::{Outcome, Refusal, at, entry};
use ferroce_objects::{DmahBlock, Headed, MrBlock, PdBlock};

/// # Safety
/// `pd` is null or a domain.
unsafe fn register_dmabuf(
    pd: *mut ibv_pd,
    fd: c_int,
    offset: u64,
    length: size_t,
    iova: u64,
    access: c_uint,
) -> Outcome<*mut ibv_mr> {
    // SAFETY: the caller's promise.
    let domain = unsafe { PdBlock::checked(pd) }?;
    if access & !(memory::PLAIN_ACCESS | IBV_ACCESS_OPTIONAL_RANGE) != 0 {
        return Err(Refusal::invalid(format!(
            "access {access:#x} to a dma-buf: local write, remote read, write and atomic"
        )));
    }
    let (rights, _) = memory::rights(access)?;
    let nic = ferroce_mem::Mr::register_dmabuf(domain.nic(), fd, offset, length as u64, iova, rights)?;
    memory::describe(pd, domain, ptr::without_provenance_mut(offset as usize), nic)
}

entry! {
    fn ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: size_t,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> pointer ibv_mr, {
        // SAFETY: by the man page a domain.
        unsafe { register_dmabuf(pd, fd, offset, length, iova, access as c_uint) }
    }
}

/// # Safety
/// `pd` is null or a domain, and what `attr` names by its mask is null or valid.
unsafe fn register_ex(pd: *mut ibv_pd, attr: &ibv_mr_init_attr) -> Outcome<*mut ibv_mr> {
    const KNOWN: u64 = IBV_REG_MR_MASK_IOVA
        | IBV_REG_MR_MASK_ADDR
        | IBV_REG_MR_MASK_FD
        | IBV_REG_MR_MASK_FD_OFFSET
        | IBV_REG_MR_MASK_DMAH
        | IBV_REG_MR_MASK_BUF;
    let has = |bit: u64| attr.comp_mask & bit != 0;
    if attr.comp_mask & !KNOWN != 0 {
        return Err(Refusal::unsupported(format!("comp_mask {:#x} of ibv_mr_init_attr", attr.comp_mask)));
    }
    if has(IBV_REG_MR_MASK_FD) == has(IBV_REG_MR_MASK_ADDR)
        || has(IBV_REG_MR_MASK_FD) != has(IBV_REG_MR_MASK_FD_OFFSET)
    {
        return Err(Refusal::invalid("a region has an address, or a descriptor with an offset, not both"));
    }
    let access = attr.access as c_uint;
    let mut dmah = None;
    if has(IBV_REG_MR_MASK_DMAH) {
        // SAFETY: the caller's promise. Its hints are for PCIe; there is nothing to know but that it is in use.
        dmah = Some(unsafe { DmahBlock::checked(attr.dmah) }?.hold());
        if access & IBV_ACCESS_ON_DEMAND != 0 {
            return Err(Refusal::invalid("a DMA handle doesn't go with on-demand paging"));
        }
    }
    if has(IBV_REG_MR_MASK_BUF) {
        if has(IBV_REG_MR_MASK_FD) {
            return Err(Refusal::invalid(
                "a buffer's region has an address in the buffer, and no descriptor",
            ));
        }
        // SAFETY: the caller's promise.
        unsafe { buf::check_range(pd, attr.buf.cast(), attr.addr, attr.length) }?;
    }
    // SAFETY: the caller's promise.
    let mr = unsafe {
        if has(IBV_REG_MR_MASK_FD) {
            if !has(IBV_REG_MR_MASK_IOVA) {
                return Err(Refusal::invalid("a region of a descriptor needs an iova"));
            }
            register_dmabuf(pd, attr.fd, attr.fd_offset, attr.length, attr.iova, access)
        } else {
            let iova = if has(IBV_REG_MR_MASK_IOVA) { attr.iova } else { attr.addr as u64 };
            memory::register(pd, attr.addr, attr.length, iova, access)
        }
    }?;
    if let Some(dmah) = dmah {
        // SAFETY: just made.
        unsafe { MrBlock::checked(mr) }?.keep(dmah);
    }
    Ok(mr)
}

entry! {
    pub(crate) fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> pointer ibv_mr, {
        // SAFETY: by the man page a domain and the caller's attributes, which name valid objects.
        unsafe { register_ex(pd, at(attr, "mr_init_attr")?) }
    }
}

entry! {
    fn ibv_reg_buf_mr(
        pd: *mut ibv_pd,
        buf: *mut ibv_buf,
        addr: *mut c_void,
        length: size_t,
        access: c_int,
    ) -> pointer ibv_mr, {
        // SAFETY: by the man page a domain and a buffer.
        unsafe {
            BufBlock::checked(buf)?;
            buf::check_range(pd, buf, addr, length)?;
            memory::register(pd, addr, length, addr as u64, access as c_uint)
        }
    }
}
