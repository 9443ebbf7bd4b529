//! Shared receive queues: ibv_create_srq(3), ibv_modify_srq(3), ibv_query_srq(3), ibv_destroy_srq(3).

use std::ffi::c_int;

use crate::xrc;
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Refusal, at, at_mut, entry, put};
use ferroce_objects::{Headed, SrqBlock};
use ferroce_work::tags;

entry! {
    pub fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> pointer ibv_srq, {
        // SAFETY: by the man page a domain and the caller's attributes.
        unsafe {
            let init = at_mut(init, "srq_init_attr")?;
            SrqBlock::make(pd, None, init.srq_context, &mut init.attr, ferroce_queues::Srq::create)
        }
    }
}

/// The slot behind `ibv_create_srq_ex`, which gets what the header doesn't turn into `ibv_create_srq`.
///
/// # Safety
/// The conditions of the man page.
pub unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    call::pointer("ibv_create_srq_ex", || {
        // SAFETY: by the man page the caller's attributes.
        let init = unsafe { at_mut(init, "srq_init_attr_ex") }?;
        let kind = if init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 { IBV_SRQT_BASIC } else { init.srq_type };
        let known = IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ
            | IBV_SRQ_INIT_ATTR_TM;
        if init.comp_mask & !known != 0 {
            return Err(Refusal::unsupported(format!(
                "comp_mask {:#x}: {known:#x} are known",
                init.comp_mask
            )));
        }
        match kind {
            IBV_SRQT_BASIC => {}
            // SAFETY: by the man page the attributes name valid objects.
            IBV_SRQT_XRC => return unsafe { xrc::create_srq(init) },
            // SAFETY: as above.
            IBV_SRQT_TM => return unsafe { tags::create_srq(init) },
            other => return Err(Refusal::unsupported(format!("type {other}: basic, XRC and tag matching"))),
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
            return Err(Refusal::invalid("no protection domain (IBV_SRQ_INIT_ATTR_PD)"));
        }
        // SAFETY: by the man page a domain.
        unsafe {
            SrqBlock::make(init.pd, None, init.srq_context, &mut init.attr, ferroce_queues::Srq::create)
        }
    })
}

entry! {
    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> errno {
        // SAFETY: by the man page a queue and the caller's attributes.
        let (block, attr) = unsafe { (SrqBlock::checked(srq)?, at(attr, "srq_attr")?) };
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Refusal::invalid(format!("srq_attr_mask {mask:#x}: IBV_SRQ_MAX_WR, IBV_SRQ_LIMIT or both")));
        }
        let size = ferroce_queues::NewSize { max_wr: attr.max_wr, max_sge: attr.max_sge };
        block.nic().modify(
            (mask & IBV_SRQ_MAX_WR != 0).then_some(size),
            (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit),
        )?;
        Ok(())
    }
}

entry! {
    fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> errno {
        // SAFETY: by the man page a queue and the caller's structure.
        unsafe {
            let now = SrqBlock::checked(srq)?.nic().query();
            put(attr, "srq_attr", ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit })
        }
    }
}

entry! {
    pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> errno {
        // SAFETY: by the man page a queue that the caller gives up. When its destruction returns, no event of it is
        // left anywhere.
        unsafe {
            let block = SrqBlock::ending(srq)?;
            block.nic().destroy()?;
            SrqBlock::free(srq);
        }
        Ok(())
    }
}
