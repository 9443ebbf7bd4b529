//! Queue pairs of ids, with the queues that they need: rdma_create_qp(3), rdma_create_srq(3), rdma_init_qp_attr(3).

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

use ferroce_abi::verbs::*;
use ferroce_connect::Ece;
use ferroce_entry::call::{Outcome, Refusal, at_mut, last_errno};
use ferroce_entry::entry;
use ferroce_ibverbs::calls;
use ferroce_nic as nic;

use crate::abi::*;
use crate::agreed::{self, Negotiated};
use crate::block::IdBlock;
use crate::devices::made;
use crate::id::IdState;

/// Fails with the errno of a verbs call, which has logged the reason.
pub(crate) fn done(errno: c_int, what: &str) -> Outcome<()> {
    match errno {
        0 => Ok(()),
        errno => Err(Refusal::new(errno, format!("{what} failed"))),
    }
}

/// Sets the state of an id's queue pair, with `mask` of the attributes.
unsafe fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_int) -> Outcome<()> {
    // SAFETY: the caller's promise: a queue pair.
    done(unsafe { calls::ibv_modify_qp(qp, attr, mask) }, "changing the queue pair's state")
}

/// The attributes with which an id's queue pair goes to the state `asked`, and their mask.
///
/// # Safety
/// `id` is an id.
unsafe fn attributes(id: *mut rdma_cm_id, asked: c_int) -> Outcome<(ibv_qp_attr, c_int)> {
    // SAFETY: the caller's promise.
    let (shared, qp_type) = unsafe { (IdBlock::of(id)?, (*id).qp_type) };
    let IdState { place, agreed, options, .. } = &*shared.state.lock();
    agreed::attributes(&Negotiated { place, agreed, ack_timeout: options.ack_timeout, qp_type }, asked)
}

/// Takes an id's queue pair to the state `asked`, by what is agreed.
///
/// # Safety
/// `id` is an id with a queue pair.
unsafe fn go_to(id: *mut rdma_cm_id, asked: c_int) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut attr, mask) = attributes(id, asked)?;
        modify((*id).qp, &mut attr, mask)
    }
}

/// Makes an id's queue pair ready to send and to receive, by what is agreed. `peer`: its extended options.
///
/// # Safety
/// `id` is an id with a queue pair.
pub(crate) unsafe fn connect(id: *mut rdma_cm_id, peer: Ece) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        go_to(id, IBV_QPS_INIT)?;
        if peer.vendor_id == ferroce_netdev::VENDOR_ID {
            let mut ece = ibv_ece { vendor_id: peer.vendor_id, options: peer.options, comp_mask: 0 };
            done(calls::ibv_set_ece((*id).qp, &raw mut ece), "taking over the peer's options")?;
        }
        go_to(id, IBV_QPS_RTR)?;
        go_to(id, IBV_QPS_RTS)
    }
}

/// Refuses a peer that answers an offer of Ferroce's options with options of another vendor.
pub(crate) fn check_options(peer: Ece) -> Outcome<()> {
    match peer.vendor_id {
        0 | ferroce_netdev::VENDOR_ID => Ok(()),
        other => Err(Refusal::invalid(format!("the peer answers with options of vendor {other:#x}"))),
    }
}

/// Flushes an id's queue pair, if it has one.
///
/// # Safety
/// `id` is an id.
pub(crate) unsafe fn fail(id: *mut rdma_cm_id) -> Outcome<()> {
    // SAFETY: the caller's promise; numbers only.
    unsafe {
        if (*id).qp.is_null() {
            return Ok(());
        }
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = IBV_QPS_ERR;
        modify((*id).qp, &mut attr, IBV_QP_STATE)
    }
}

/// What an id's queue pair offers beyond the specification.
///
/// # Safety
/// `id` is an id.
pub(crate) unsafe fn options_of(id: *mut rdma_cm_id) -> Ece {
    let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
    // SAFETY: the caller's promise, and a structure to write to.
    unsafe {
        if !(*id).qp.is_null() && calls::ibv_query_ece((*id).qp, &raw mut ece) == 0 {
            return Ece { vendor_id: ece.vendor_id, options: ece.options };
        }
    }
    Ece::default()
}

/// A completion queue for an id, with a channel of its own. rdma_get_send_comp(3) and rdma_get_recv_comp(3), which are inline
/// code, want the id as the queue's context.
unsafe fn make_cq(id: *mut rdma_cm_id, cqe: u32) -> Outcome<(*mut ibv_comp_channel, *mut ibv_cq)> {
    // SAFETY: the caller's promise: an id that is bound to a device.
    unsafe {
        let verbs = (*id).verbs;
        let channel = made(calls::ibv_create_comp_channel(verbs), "a completion channel")?;
        let cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX);
        match made(calls::ibv_create_cq(verbs, cqe, id.cast::<c_void>(), channel, 0), "a completion queue") {
            Ok(cq) => Ok((channel, cq)),
            Err(refusal) => {
                calls::ibv_destroy_comp_channel(channel);
                Err(refusal)
            }
        }
    }
}

/// Makes the completion queues that an id lacks for `send` and `recv` requests.
unsafe fn make_cqs(id: *mut rdma_cm_id, send: Option<u32>, recv: Option<u32>) -> Outcome<()> {
    // SAFETY: the caller's promise: an id that is bound to a device.
    unsafe {
        if let Some(cqe) = recv.filter(|&cqe| cqe != 0) {
            ((*id).recv_cq_channel, (*id).recv_cq) = make_cq(id, cqe)?;
        }
        if let Some(cqe) = send.filter(|&cqe| cqe != 0) {
            ((*id).send_cq_channel, (*id).send_cq) = make_cq(id, cqe)?;
        }
    }
    Ok(())
}

/// Destroys the completion queues that the library has made for an id.
unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise: an id. Only queues that were made with a channel here are in these fields.
    unsafe {
        for (cq, channel) in [
            (&raw mut (*id).recv_cq, &raw mut (*id).recv_cq_channel),
            (&raw mut (*id).send_cq, &raw mut (*id).send_cq_channel),
        ] {
            if !(*cq).is_null() && !(*channel).is_null() {
                calls::ibv_destroy_cq(*cq);
                calls::ibv_destroy_comp_channel(*channel);
            }
            (*cq, *channel) = (null_mut(), null_mut());
        }
    }
}

/// The state in which the program gets a new queue pair: it can post receives, and datagrams.
unsafe fn start(id: *mut rdma_cm_id) -> Outcome<()> {
    // SAFETY: the caller's promise: an id with a queue pair.
    unsafe {
        go_to(id, IBV_QPS_INIT)?;
        if (*id).qp_type == IBV_QPT_UD {
            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = IBV_QPS_RTR;
            modify((*id).qp, &mut attr, IBV_QP_STATE)?;
            attr.qp_state = IBV_QPS_RTS;
            modify((*id).qp, &mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN)?;
        }
        Ok(())
    }
}

/// Makes the queue pair of an id.
///
/// # Safety
/// `id` is an id, and the attributes name valid objects.
pub(crate) unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let device = IdBlock::block(id)?.device()?;
        if !(*id).qp.is_null() {
            return Err(Refusal::invalid("the id has a queue pair already"));
        }
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
            attr.pd = (*id).pd;
        } else if (*attr.pd).context != (*id).verbs {
            return Err(Refusal::invalid("pd is of another device context than the id's (id->verbs)"));
        }
        let other =
            |wanted: *mut ibv_cq, own: *mut ibv_cq| !wanted.is_null() && !own.is_null() && wanted != own;
        if other(attr.send_cq, (*id).send_cq) || other(attr.recv_cq, (*id).recv_cq) {
            return Err(Refusal::invalid("the id has completion queues already, and these are others"));
        }
        let xrc_target = attr.qp_type == IBV_QPT_XRC_RECV;
        if xrc_target && attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
            attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
            attr.xrcd = device.xrcd()?;
        }
        let lacks = |wanted: *mut ibv_cq, own: *mut ibv_cq| wanted.is_null() && own.is_null() && !xrc_target;
        let send = lacks(attr.send_cq, (*id).send_cq).then_some(attr.cap.max_send_wr);
        let recv = lacks(attr.recv_cq, (*id).recv_cq).then_some(attr.cap.max_recv_wr);
        let made_here = [send, recv].iter().any(|cqe| cqe.is_some_and(|cqe| cqe != 0));
        let undo = move |refusal: Refusal| {
            if made_here {
                destroy_cqs(id);
            }
            refusal
        };
        make_cqs(id, send, recv).map_err(undo)?;
        if attr.send_cq.is_null() {
            attr.send_cq = (*id).send_cq;
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = (*id).recv_cq;
        }
        // One queue can do for both when the program has asked for one direction only.
        if attr.send_cq.is_null() {
            attr.send_cq = attr.recv_cq;
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = attr.send_cq;
        }
        if attr.srq.is_null() {
            attr.srq = (*id).srq;
        }
        if attr.qp_type == IBV_QPT_XRC_SEND {
            attr.srq = null_mut();
        }
        if !xrc_target {
            // Programs (rdma_xclient) post inline what an element of the queue has room for, and haven't asked for it.
            let elements = attr.cap.max_send_sge.saturating_mul(size_of::<ibv_sge>() as u32);
            attr.cap.max_inline_data = attr.cap.max_inline_data.max(elements.min(nic::limits().max_inline));
        }
        (*id).qp = made(calls::create_qp_ex((*id).verbs, attr), "a queue pair").map_err(undo)?;
        (*id).qp_type = attr.qp_type;
        if let Err(refusal) = start(id) {
            calls::ibv_destroy_qp((*id).qp);
            (*id).qp = null_mut();
            return Err(undo(refusal));
        }
        if !(*(*id).qp).pd.is_null() {
            (*id).pd = (*(*id).qp).pd;
        }
    }
    Ok(())
}

/// Makes the queue pair of an id by the short form of the attributes, into which what there is in truth is written back.
///
/// # Safety
/// `id` is an id, and the attributes name valid objects.
pub(crate) unsafe fn create_short(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
) -> Outcome<()> {
    // SAFETY: numbers and pointers.
    let mut full: ibv_qp_init_attr_ex = unsafe { zeroed() };
    full.qp_context = attr.qp_context;
    full.send_cq = attr.send_cq;
    full.recv_cq = attr.recv_cq;
    full.srq = attr.srq;
    full.cap = attr.cap;
    full.qp_type = attr.qp_type;
    full.sq_sig_all = attr.sq_sig_all;
    if !pd.is_null() {
        full.comp_mask = IBV_QP_INIT_ATTR_PD;
        full.pd = pd;
    }
    // SAFETY: the caller's promise.
    unsafe { create(id, &mut full) }?;
    attr.send_cq = full.send_cq;
    attr.recv_cq = full.recv_cq;
    attr.srq = full.srq;
    attr.cap = full.cap;
    Ok(())
}

entry! {
    fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> minus_one {
        // SAFETY: by the man page an id and the caller's attributes, which name valid objects.
        unsafe {
            IdBlock::block(id)?;
            create_short(id, pd, at_mut(qp_init_attr, "qp_init_attr")?)?;
        }
        Ok(0)
    }
}

entry! {
    fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> minus_one {
        // SAFETY: by the man page an id and the caller's attributes, which name valid objects.
        unsafe {
            IdBlock::block(id)?;
            create(id, at_mut(qp_init_attr, "qp_init_attr")?)?;
        }
        Ok(0)
    }
}

entry! {
    pub(crate) fn rdma_destroy_qp(id: *mut rdma_cm_id) -> value () = (), {
        // SAFETY: by the man page an id.
        unsafe {
            if id.is_null() || (*id).qp.is_null() {
                return;
            }
            // A failure is logged by the call.
            calls::ibv_destroy_qp((*id).qp);
            (*id).qp = null_mut();
            if (*id).srq.is_null() {
                destroy_cqs(id);
            }
        }
    }
}

/// Makes the shared receive queue of an id.
unsafe fn create_srq(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Outcome<()> {
    // SAFETY: the caller's promise: an id, and attributes that name valid objects.
    unsafe {
        let device = IdBlock::block(id)?.device()?;
        if !(*id).srq.is_null() {
            return Err(Refusal::invalid("the id has a shared receive queue already"));
        }
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            attr.pd = (*id).pd;
        } else if (*attr.pd).context != (*id).verbs {
            return Err(Refusal::invalid("pd is of another device context than the id's (id->verbs)"));
        }
        let is_xrc = attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && attr.srq_type == IBV_SRQT_XRC;
        let mut made_here = false;
        if is_xrc {
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
                attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
                attr.xrcd = device.xrcd()?;
            }
            if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
                if (*id).recv_cq.is_null() {
                    make_cqs(id, None, Some(attr.attr.max_wr))?;
                    made_here = true;
                }
                attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
                attr.cq = (*id).recv_cq;
            }
        }
        match made(calls::create_srq_ex((*id).verbs, attr), "a shared receive queue") {
            Ok(srq) => {
                (*id).srq = srq;
                (*id).pd = attr.pd;
                Ok(())
            }
            Err(refusal) => {
                if made_here {
                    destroy_cqs(id);
                }
                Err(refusal)
            }
        }
    }
}

entry! {
    fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> minus_one {
        // SAFETY: by the man page an id and the caller's attributes.
        unsafe {
            IdBlock::block(id)?;
            let attr = at_mut(attr, "attr")?;
            let mut full: ibv_srq_init_attr_ex = zeroed();
            full.srq_context = attr.srq_context;
            full.attr = attr.attr;
            full.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
            full.srq_type = if (*id).qp_type == IBV_QPT_XRC_RECV { IBV_SRQT_XRC } else { IBV_SRQT_BASIC };
            full.pd = pd;
            create_srq(id, &mut full)?;
            attr.attr = full.attr;
        }
        Ok(0)
    }
}

entry! {
    fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> minus_one {
        // SAFETY: by the man page an id and the caller's attributes, which name valid objects.
        unsafe {
            IdBlock::block(id)?;
            create_srq(id, at_mut(attr, "attr")?)?;
        }
        Ok(0)
    }
}

entry! {
    pub(crate) fn rdma_destroy_srq(id: *mut rdma_cm_id) -> value () = (), {
        // SAFETY: by the man page an id.
        unsafe {
            if id.is_null() || (*id).srq.is_null() {
                return;
            }
            if calls::ibv_destroy_srq((*id).srq) != 0 {
                tracing::warn!(errno = last_errno(), "rdma_destroy_srq: the queue is used still");
                return;
            }
            (*id).srq = null_mut();
            if (*id).qp.is_null() {
                destroy_cqs(id);
            }
        }
    }
}

entry! {
    fn rdma_init_qp_attr(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> minus_one {
        // SAFETY: by the man page an id and the caller's variables.
        unsafe {
            IdBlock::block(id)?.device()?;
            let (to, mask) = (at_mut(qp_attr, "qp_attr")?, at_mut(qp_attr_mask, "qp_attr_mask")?);
            (*to, *mask) = attributes(id, to.qp_state)?;
        }
        Ok(0)
    }
}
