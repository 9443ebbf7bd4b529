//! ibv_create_qp(3), ibv_create_qp_ex(3).

use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ferroce_nic as nic;
use nic::qp::QpInit;

use super::attr::{c_cap, cap_of};
use super::{raw, target};
use ferroce_abi::verbs::*;
use ferroce_check::QpWatch;
use ferroce_entry::call::{self, Outcome, Refusal, at_mut, entry};
use ferroce_objects::{CqBlock, Headed, PdBlock, QpBlock, QpObject, SrqBlock, next_handle};
use ferroce_work::checked;
use ferroce_work::wq;
use ferroce_work::wr;

/// What both forms of the attributes have in common.
pub(super) struct Init<'a> {
    pub(super) pd: *mut ibv_pd,
    pub(super) qp_context: *mut std::ffi::c_void,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) cap: &'a mut ibv_qp_cap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
    pub(super) send_ops: Option<u64>,
    pub(super) create_flags: u32,
    pub(super) max_tso_header: u16,
}

/// The C structure of a new queue pair.
pub(super) fn head(init: &Init<'_>, context: *mut ibv_context, qpn: u32) -> ibv_qp_ex {
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
    c
}

/// # Safety
/// The objects that `init` names are null or valid.
unsafe fn create(init: Init<'_>) -> Outcome<*mut ibv_qp> {
    let service = match init.qp_type {
        IBV_QPT_RC => ferroce_wire::Service::Rc,
        IBV_QPT_UC => ferroce_wire::Service::Uc,
        IBV_QPT_UD => ferroce_wire::Service::Ud,
        IBV_QPT_XRC_SEND => ferroce_wire::Service::Xrc,
        // SAFETY: the caller's promise.
        IBV_QPT_RAW_PACKET => return unsafe { raw::create(init, None) },
        other => {
            return Err(Refusal::unsupported(format!("qp_type {other}: RC, UC, UD, XRC and raw packet")));
        }
    };
    let block_own_multicast = init.create_flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0;
    if init.create_flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0
        || (block_own_multicast && service != ferroce_wire::Service::Ud)
    {
        return Err(Refusal::unsupported(format!("create_flags {:#x}", init.create_flags)));
    }
    if let Some(ops) = init.send_ops {
        wr::check_ops(service, ops)?;
    }
    // SAFETY: the caller's promise.
    let (domain, send_cq, recv_cq, srq) = unsafe {
        let srq = if init.srq.is_null() || service == ferroce_wire::Service::Xrc {
            None
        } else {
            Some(SrqBlock::checked(init.srq)?.nic().clone())
        };
        let queue = |cq: *mut ibv_cq, what: &'static str| {
            CqBlock::checked(cq).map(|cq| cq.nic().clone()).map_err(|_| Refusal::invalid(what))
        };
        (
            PdBlock::checked(init.pd)?,
            queue(init.send_cq, "send_cq is NULL")?,
            // An XRC initiator receives nothing.
            queue(
                if service == ferroce_wire::Service::Xrc { init.send_cq } else { init.recv_cq },
                "recv_cq is NULL",
            )?,
            srq,
        )
    };
    QpBlock::allocate(|user_handle| {
        let nic = nic::Qp::create(
            domain.nic(),
            QpInit {
                service,
                send_cq,
                recv_cq,
                srq,
                cap: cap_of(init.cap),
                sq_sig_all: init.sq_sig_all != 0,
                user_handle,
            },
        )?;
        if block_own_multicast {
            nic.block_own_multicast();
        }
        *init.cap = c_cap(nic.cap());
        let mut c = head(&init, domain.context(), nic.qpn());
        if init.send_ops.is_some() {
            wr::fill(&mut c);
        }
        // SAFETY: the caller's promise.
        let watch = unsafe { watch(&init, &nic) };
        if init.send_ops.is_some() && watch.is_some() {
            c.wr_complete = Some(checked::wr_complete);
        }
        Ok(QpBlock {
            c,
            kind: QpObject::Transport(nic),
            send_ops: init.send_ops,
            access: AtomicU32::new(0),
            watch,
        })
    })
}

/// What the checker is to know of a new queue pair.
///
/// # Safety
/// The queues that `init` names are null or valid.
unsafe fn watch(init: &Init<'_>, nic: &Arc<nic::Qp>) -> Option<Arc<QpWatch>> {
    let of = |cq: *mut ibv_cq| {
        // SAFETY: the caller's promise.
        unsafe { CqBlock::of(cq) }.ok()?.watch().cloned()
    };
    // Nothing is watched unless the queues are.
    let send_cq = of(init.send_cq)?;
    let own_receives = nic.srq().is_none() && nic.service() != ferroce_wire::Service::Xrc;
    let recv_cq = own_receives.then(|| of(init.recv_cq)).flatten();
    // SAFETY: the caller's promise.
    let srq = unsafe { SrqBlock::of(init.srq) }.ok().and_then(SrqBlock::watch).cloned();
    let cap = nic.cap();
    let size = (cap.max_send_wr, cap.max_recv_wr);
    Some(QpWatch::new(nic.qpn(), Arc::downgrade(nic), size, nic.sq_sig_all(), send_cq, recv_cq, srq))
}

entry! {
    pub fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> pointer ibv_qp, {
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
                create_flags: 0,
                max_tso_header: 0,
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
    let scaling = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    let offered =
        if init.qp_type == IBV_QPT_RAW_PACKET { scaling | IBV_QP_INIT_ATTR_MAX_TSO_HEADER } else { 0 };
    if let Some((_, what)) = asked.into_iter().find(|(bit, _)| mask & !offered & bit != 0) {
        return Err(Refusal::unsupported(format!("{what} for a queue pair of type {}", init.qp_type)));
    }
    if mask & scaling != 0 && mask & scaling != scaling {
        return Err(Refusal::invalid("receive hashing needs an indirection table, and the other way round"));
    }
    let known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | offered;
    if mask & !known != 0 {
        return Err(Refusal::invalid(format!("comp_mask {mask:#x}: unknown bits")));
    }
    if mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(Refusal::invalid("no protection domain (IBV_QP_INIT_ATTR_PD)"));
    }
    Ok(())
}

/// The slot behind `ibv_create_qp_ex`.
///
/// # Safety
/// The conditions of the man page.
pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    call::pointer("ibv_create_qp_ex", || {
        // SAFETY: by the man page the caller's attributes.
        let init = unsafe { at_mut(init, "qp_init_attr_ex") }?;
        if init.qp_type == IBV_QPT_XRC_RECV {
            // SAFETY: by the man page an open context, and attributes that name valid objects.
            return unsafe { target::create(context, init) };
        }
        check_extensions(init)?;
        // SAFETY: by the man page the attributes name valid objects.
        unsafe {
            let rss = if init.comp_mask & IBV_QP_INIT_ATTR_IND_TABLE != 0 {
                Some(wq::rss(init.rwq_ind_tbl, &init.rx_hash_conf)?)
            } else {
                None
            };
            let flags = init.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0;
            let parts = Init {
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
                create_flags: if flags { init.create_flags } else { 0 },
                max_tso_header: if init.comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER != 0 {
                    init.max_tso_header
                } else {
                    0
                },
            };
            match rss {
                Some(rss) => raw::create(parts, Some(rss)),
                None => create(parts),
            }
        }
    })
}
