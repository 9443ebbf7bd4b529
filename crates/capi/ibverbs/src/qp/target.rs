//! XRC target queue pairs: ibv_open_qp(3), and ibv_create_qp_ex(3) of IBV_QPT_XRC_RECV.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;

use ferroce_nic as nic;

use super::create::{Init, head};
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal, at_mut};
use ferroce_objects::{Headed, QpBlock, QpObject, XrcdBlock};

/// A block around the target queue pair that `make` creates or opens.
fn target(
    context: *mut ibv_context,
    qp_context: *mut c_void,
    make: impl FnOnce(usize) -> Outcome<nic::XrcTarget>,
) -> Outcome<*mut ibv_qp> {
    // SAFETY: numbers only.
    let cap = &mut unsafe { zeroed() };
    let init = Init {
        pd: null_mut(),
        qp_context,
        send_cq: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        cap,
        qp_type: IBV_QPT_XRC_RECV,
        send_ops: None,
        sq_sig_all: 0,
        create_flags: 0,
        max_tso_header: 0,
    };
    QpBlock::allocate(|user_handle| {
        let target = make(user_handle)?;
        let mut c = head(&init, context, target.qp().qpn());
        // An error here is the handle's end.
        let attr = target.query().or_else(|error| target.close().and(Err(error)))?;
        c.qp_base.state = attr.state as c_int;
        Ok(QpBlock {
            c,
            kind: QpObject::Target(target),
            send_ops: None,
            access: AtomicU32::new(0),
            watch: None,
        })
    })
}

/// A target queue pair (IBV_QPT_XRC_RECV).
///
/// # Safety
/// `context` is null or open, and the domain that `init` names null or valid.
pub(super) unsafe fn create(
    context: *mut ibv_context,
    init: &mut ibv_qp_init_attr_ex,
) -> Outcome<*mut ibv_qp> {
    if init.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        return Err(Refusal::invalid("an XRC target needs a domain (IBV_QP_INIT_ATTR_XRCD)"));
    }
    // SAFETY: the caller's promise.
    let xrcd = unsafe { XrcdBlock::checked(init.xrcd)? };
    // It has no queues: what the program has asked for isn't looked at, as with adapters.
    // SAFETY: numbers only.
    init.cap = unsafe { zeroed() };
    target(context, init.qp_context, |user_handle| Ok(nic::XrcTarget::create(xrcd.nic(), user_handle)?))
}

/// The slot behind `ibv_open_qp`.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    call::pointer("ibv_open_qp", || {
        // SAFETY: by the man page the caller's attributes.
        let attr = unsafe { at_mut(attr, "qp_open_attr") }?;
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        let beyond = attr.comp_mask & !(needed | IBV_QP_OPEN_ATTR_CONTEXT);
        if beyond != 0 {
            return Err(Refusal::unsupported(format!("comp_mask {beyond:#x} of a queue pair to be opened")));
        }
        if attr.comp_mask & needed != needed {
            return Err(Refusal::invalid("IBV_QP_OPEN_ATTR_NUM, _XRCD and _TYPE are needed"));
        }
        if attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(Refusal::invalid(format!("qp_type {}: only IBV_QPT_XRC_RECV", attr.qp_type)));
        }
        // SAFETY: by the man page a domain.
        let xrcd = unsafe { XrcdBlock::checked(attr.xrcd)? };
        let named = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
        let qp_context = if named { attr.qp_context } else { null_mut() };
        target(context, qp_context, |user_handle| {
            Ok(nic::XrcTarget::open(xrcd.nic(), attr.qp_num, user_handle)?)
        })
    })
}
