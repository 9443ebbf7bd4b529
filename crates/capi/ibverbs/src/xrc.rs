//! XRC domains and SRQs: ibv_open_xrcd(3), ibv_close_xrcd(3), ibv_get_srq_num(3). Target queue pairs are in `qp`.

use std::ffi::c_int;

use ferroce_nic as nic;

use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal, at, put};
use ferroce_objects::{ContextBlock, CqBlock, Headed, SrqBlock, XrcdBlock};

/// The slot behind `ibv_open_xrcd`.
///
/// # Safety
/// The conditions of the man page.
pub unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    call::pointer("ibv_open_xrcd", || {
        // SAFETY: by the man page an open context and the caller's attributes.
        let (block, attr) = unsafe { (ContextBlock::of(context)?, at(attr, "xrcd_init_attr")?) };
        let both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if attr.comp_mask & !both != 0 {
            return Err(Refusal::unsupported(format!("comp_mask {:#x} of an XRC domain", attr.comp_mask)));
        }
        if attr.comp_mask != both {
            return Err(Refusal::invalid("an XRC domain needs IBV_XRCD_INIT_ATTR_FD and _OFLAGS"));
        }
        if attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Refusal::invalid(format!("oflags {:#o}: only O_CREAT and O_EXCL", attr.oflags)));
        }
        let fd = (attr.fd != -1).then_some(attr.fd);
        let has = |flag: c_int| attr.oflags & flag != 0;
        let nic = nic::Xrcd::open(block.nic(), fd, has(libc::O_CREAT), has(libc::O_EXCL))?;
        XrcdBlock::allocate(|_| Ok(XrcdBlock { c: ibv_xrcd { context }, nic }))
    })
}

/// The slot behind `ibv_close_xrcd`.
///
/// # Safety
/// The conditions of the man page.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    call::errno_value("ibv_close_xrcd", || {
        // SAFETY: by the man page a domain that the caller gives up.
        unsafe {
            XrcdBlock::ending(xrcd)?.nic().check_unused()?;
            XrcdBlock::free(xrcd);
        }
        Ok(())
    })
}

/// The slot behind `ibv_get_srq_num`.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    call::errno_value("ibv_get_srq_num", || {
        // SAFETY: by the man page a queue and the caller's variable.
        unsafe {
            let own = SrqBlock::checked(srq)?.nic().number();
            put(number, "srq_num", own.ok_or_else(|| Refusal::invalid("only XRC queues have a number"))?)
        }
    })
}

/// An XRC queue.
///
/// # Safety
/// The objects that `init` names are null or valid.
pub(crate) unsafe fn create_srq(init: &mut ibv_srq_init_attr_ex) -> Outcome<*mut ibv_srq> {
    let needed = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    if init.comp_mask & needed != needed {
        return Err(Refusal::invalid(
            "an XRC queue needs IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_XRCD and IBV_SRQ_INIT_ATTR_CQ",
        ));
    }
    // SAFETY: the caller's promise.
    let (xrcd, cq) = unsafe { (XrcdBlock::checked(init.xrcd)?, CqBlock::checked(init.cq)?) };
    // SAFETY: the caller's promise.
    unsafe {
        SrqBlock::make(init.pd, Some(cq), init.srq_context, &mut init.attr, |pd, attr, user_handle| {
            xrcd.nic().create_srq(pd, cq.nic(), attr, user_handle)
        })
    }
}
