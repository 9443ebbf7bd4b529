//! Objects of another context, in this process or another: ibv_import_device(3), ibv_import_pd(3), ibv_import_mr(3),
//! ibv_import_dm(3).

use std::ffi::c_int;
use std::ptr;

use ferroce_nic as nic;
use nic::OfContext as _;

use crate::context;
use crate::device;
use crate::dm;
use crate::memory;
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, entry};
use ferroce_entry::log;
use ferroce_objects::{ContextBlock, DmBlock, Headed, MrBlock, PdBlock};

entry! {
    fn ibv_import_device(cmd_fd: c_int) -> pointer ibv_context, {
        log::start();
        let nic = nic::Context::import(cmd_fd)?;
        Ok(context::present(device::listed(nic.device().clone()), nic))
    }
}

entry! {
    fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> pointer ibv_pd, {
        // SAFETY: by the man page an open context.
        let nic = unsafe { ContextBlock::of(context) }?.nic().import_pd(pd_handle)?;
        PdBlock::allocate(|_| Ok(PdBlock::new(context, nic, None)))
    }
}

entry! {
    fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> pointer ibv_mr, {
        // SAFETY: by the man page a domain.
        let domain = unsafe { PdBlock::checked(pd) }?;
        let nic = domain.nic().context().import_mr(mr_handle)?;
        memory::describe(pd, domain, ptr::null_mut(), nic)
    }
}

entry! {
    fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> pointer ibv_dm, {
        // SAFETY: by the man page an open context.
        let nic = unsafe { ContextBlock::of(context) }?.nic().import_dm(dm_handle)?;
        dm::describe(context, nic)
    }
}

/// Frees what stands for an imported object. These functions return nothing.
fn unimport(name: &'static str, body: impl FnOnce() -> call::Outcome<()>) {
    // `guard` logs a refusal; the caller gets no result.
    let _ = call::guard(name, body);
}

/// ibv_unimport_pd(3).
#[unsafe(export_name = "ferroce_c_ibv_unimport_pd")]
unsafe extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    unimport("ibv_unimport_pd", || {
        // SAFETY: by the man page a domain that the caller gives up.
        unsafe {
            PdBlock::checked(pd)?;
            PdBlock::free(pd);
        }
        Ok(())
    });
}

/// ibv_unimport_mr(3).
#[unsafe(export_name = "ferroce_c_ibv_unimport_mr")]
unsafe extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    unimport("ibv_unimport_mr", || {
        // SAFETY: by the man page a region that the caller gives up.
        unsafe {
            MrBlock::checked(mr)?.nic().unimport()?;
            MrBlock::free(mr);
        }
        Ok(())
    });
}

/// ibv_unimport_dm(3).
#[unsafe(export_name = "ferroce_c_ibv_unimport_dm")]
unsafe extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    unimport("ibv_unimport_dm", || {
        // SAFETY: by the man page device memory that the caller gives up.
        unsafe {
            DmBlock::checked(dm)?;
            DmBlock::free(dm);
        }
        Ok(())
    });
}
