//! Device memory: ibv_alloc_dm(3), ibv_dm_export_dmabuf_fd(3).

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::Arc;

use libc::size_t;

use crate::memory;
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal, at, entry};
use ferroce_objects::{ContextBlock, DmBlock, Headed, PdBlock};

/// The slot behind `ibv_alloc_dm`.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    call::pointer("ibv_alloc_dm", || {
        // SAFETY: by the man page an open context and the caller's attributes.
        let (block, attr) = unsafe { (ContextBlock::of(context)?, at(attr, "attr")?) };
        if attr.comp_mask != 0 {
            return Err(Refusal::invalid("the comp_mask of ibv_alloc_dm_attr isn't 0"));
        }
        let nic = ferroce_mem::Dm::alloc(block.nic(), attr.length as u64, attr.log_align_req)?;
        describe(context, nic)
    })
}

/// The C structure of device memory.
pub(crate) fn describe(context: *mut ibv_context, nic: Arc<ferroce_mem::Dm>) -> Outcome<*mut ibv_dm> {
    DmBlock::allocate(|_| {
        let c = ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle: nic.handle(),
        };
        Ok(DmBlock { c, nic })
    })
}

/// The slot behind `ibv_free_dm`.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    call::errno_value("ibv_free_dm", || {
        // SAFETY: by the man page device memory that the caller gives up.
        unsafe {
            DmBlock::ending(dm)?.nic().free()?;
            DmBlock::free(dm);
        }
        Ok(())
    })
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: size_t,
) -> c_int {
    call::errno_value("ibv_memcpy_to_dm", || {
        // SAFETY: by the man page device memory; the kernel checks the program's range.
        Ok(unsafe { DmBlock::of(dm) }?.nic().copy_in(dm_offset, host_addr as u64, length as u64)?)
    })
}

unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: size_t,
) -> c_int {
    call::errno_value("ibv_memcpy_from_dm", || {
        // SAFETY: by the man page device memory; the kernel checks the program's range, which is the caller's to write.
        Ok(unsafe { DmBlock::of(dm) }?.nic().copy_out(dm_offset, host_addr as u64, length as u64)?)
    })
}

/// The slot behind `ibv_reg_dm_mr`.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: size_t,
    access: c_uint,
) -> *mut ibv_mr {
    call::pointer("ibv_reg_dm_mr", || {
        // SAFETY: by the man page a domain and device memory.
        let (domain, dm) = unsafe { (PdBlock::checked(pd)?, DmBlock::checked(dm)?) };
        let allowed = memory::PLAIN_ACCESS | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_OPTIONAL_RANGE;
        if access & IBV_ACCESS_ZERO_BASED == 0 || access & !allowed != 0 {
            return Err(Refusal::invalid(format!(
                "access {access:#x} to device memory: IBV_ACCESS_ZERO_BASED with local write, remote read, write and atomic"
            )));
        }
        let (access, _) = memory::rights(access)?;
        let nic = ferroce_mem::Mr::register_dm(domain.nic(), dm.nic(), dm_offset, length as u64, access)?;
        memory::describe(pd, domain, ptr::null_mut(), nic)
    })
}

entry! {
    pub(crate) fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> minus_one {
        // SAFETY: by the man page device memory.
        Ok(unsafe { DmBlock::checked(dm) }?.nic().export()?.into_raw_fd())
    }
}
