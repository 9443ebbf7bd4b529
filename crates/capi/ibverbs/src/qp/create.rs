//! ibv_create_qp(3), ibv_create_qp_ex(3).

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;

use ferroce_nic as nic;
use nic::qp::QpInit;

use super::attr::{c_cap, cap_of};
use super::{Kind, QpBlock};
use crate::abi::*;
use crate::call::{self, Outcome, Refusal, at_mut, entry};
use crate::cq::CqBlock;
use crate::memory::PdBlock;
use crate::object::{Headed, next_handle};
use crate::srq::SrqBlock;
use crate::wr;
use crate::xrc;

/// What both forms of the attributes have in common.
struct Init<'a> {
    pd: *mut ibv_pd,
    qp_context: *mut std::ffi::c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    cap: &'a mut ibv_qp_cap,
    qp_type: c_int,
    sq_sig_all: c_int,
    send_ops: Option<u64>,
}

/// The C structure of a new queue pair.
fn head(init: &Init<'_>, context: *mut ibv_context, qpn: u32) -> ibv_qp_ex {
    // SAFETY: numbers, pointers, nullable function pointers and pthread objects, for all of which zeros are valid.
    let mut c: ibv_qp_ex = unsafe { zeroed() };
    c.qp_base.context = context;
    c.qp_base.qp_context = init.qp_context;
    c.qp_base.pd = init.pd;
    c.qp_base.send_cq = init.send_cq;
    c.qp_base.recv_cq = init.recv_cq;
    c.qp_base.srq = init.srq;
    c.qp_base.handle = next_handle();
    c.qp_base.qp_num = qpn;
    c.qp_base.state = IBV_QPS_RESET;
    c.qp_base.qp_type = init.qp_type;
    if init.send_ops.is_some() {
        wr::fill(&mut c);
    }
    c
}

/// # Safety
/// The objects that `init` names are null or valid.
unsafe fn create(init: Init<'_>) -> Outcome<*mut ibv_qp> {
    let service = match init.qp_type {
        IBV_QPT_RC => nic::Service::Rc,
        IBV_QPT_UC => nic::Service::Uc,
        IBV_QPT_UD => nic::Service::Ud,
        IBV_QPT_XRC_SEND => nic::Service::Xrc,
        other => return Err(Refusal::unsupported(format!("qp_type {other}: only RC, UC, UD and XRC"))),
    };
    if let Some(ops) = init.send_ops {
        wr::check_ops(service, ops)?;
    }
    // SAFETY: the caller's promise.
    let (domain, send_cq, recv_cq, srq) = unsafe {
        let srq = if init.srq.is_null() || service == nic::Service::Xrc {
            None
        } else {
            Some(SrqBlock::of(init.srq)?.nic().clone())
        };
        let queue = |cq: *mut ibv_cq, what: &'static str| {
            CqBlock::of(cq).map(|cq| cq.nic().clone()).map_err(|_| Refusal::invalid(what))
        };
        (
            PdBlock::of(init.pd)?,
            queue(init.send_cq, "send_cq is NULL")?,
            // An XRC initiator receives nothing.
            queue(if service == nic::Service::Xrc { init.send_cq } else { init.recv_cq }, "recv_cq is NULL")?,
            srq,
        )
    };
    QpBlock::allocate(|cookie| {
        let nic = nic::Qp::create(
            domain.nic(),
            QpInit {
                service,
                send_cq,
                recv_cq,
                srq,
                cap: cap_of(init.cap),
                sq_sig_all: init.sq_sig_all != 0,
                cookie,
            },
        )?;
        *init.cap = c_cap(nic.cap());
        let c = head(&init, domain.context(), nic.qpn());
        Ok(QpBlock { c, kind: Kind::Transport(nic), send_ops: init.send_ops, access: AtomicU32::new(0) })
    })
}

impl QpBlock {
    /// A block around the target queue pair that `make` creates or opens.
    pub(crate) fn target(
        context: *mut ibv_context,
        qp_context: *mut std::ffi::c_void,
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
        };
        Self::allocate(|cookie| {
            let target = make(cookie)?;
            let mut c = head(&init, context, target.qp().qpn());
            c.qp_base.state = target.qp().query().state as c_int;
            Ok(Self { c, kind: Kind::Target(target), send_ops: None, access: AtomicU32::new(0) })
        })
    }
}

entry! {
    fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> pointer ibv_qp, {
        // SAFETY: by the man page a domain and the caller's attributes, which name valid objects.
        unsafe {
            let init = at_mut(init, "qp_init_attr")?;
            create(Init {
                pd,
                qp_context: init.qp_context,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                cap: &mut init.cap,
                qp_type: init.qp_type,
                sq_sig_all: init.sq_sig_all,
                send_ops: None,
            })
        }
    }
}

/// What the attributes ask for beyond those of ibv_create_qp(3).
fn check_extensions(init: &ibv_qp_init_attr_ex) -> Outcome<()> {
    let mask = init.comp_mask;
    let asked = [
        (IBV_QP_INIT_ATTR_XRCD, "an XRC domain"),
        (IBV_QP_INIT_ATTR_MAX_TSO_HEADER, "TCP segmentation"),
        (IBV_QP_INIT_ATTR_IND_TABLE, "an indirection table"),
        (IBV_QP_INIT_ATTR_RX_HASH, "receive hashing"),
    ];
    if let Some((_, what)) = asked.into_iter().find(|(bit, _)| mask & bit != 0) {
        return Err(Refusal::unsupported(format!("{what} for a queue pair of type {}", init.qp_type)));
    }
    let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if mask & !known != 0 {
        return Err(Refusal::invalid(format!("comp_mask {mask:#x}: unknown bits")));
    }
    if mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && init.create_flags != 0 {
        return Err(Refusal::unsupported(format!("create_flags {:#x}", init.create_flags)));
    }
    if mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(Refusal::invalid("no protection domain (IBV_QP_INIT_ATTR_PD)"));
    }
    Ok(())
}

/// The slot behind `ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    call::pointer("ibv_create_qp_ex", || {
        // SAFETY: by the man page the caller's attributes.
        let init = unsafe { at_mut(init, "qp_init_attr_ex") }?;
        if init.qp_type == IBV_QPT_XRC_RECV {
            // SAFETY: by the man page an open context, and attributes that name valid objects.
            return unsafe { xrc::create_target(context, init) };
        }
        check_extensions(init)?;
        // SAFETY: by the man page the attributes name valid objects.
        unsafe {
            create(Init {
                pd: init.pd,
                qp_context: init.qp_context,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                cap: &mut init.cap,
                qp_type: init.qp_type,
                sq_sig_all: init.sq_sig_all,
                send_ops: (init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0)
                    .then_some(init.send_ops_flags),
            })
        }
    })
}
