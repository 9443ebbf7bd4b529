//! Endpoints: rdma_create_ep(3), rdma_destroy_ep(3), rdma_get_request(3).

use std::ffi::c_int;
use std::ptr::null_mut;

use ferroce_abi::verbs::{ibv_pd, ibv_qp_init_attr};
use ferroce_entry::call::{Outcome, Refusal, at, put};
use ferroce_entry::entry;

use crate::abi::*;
use crate::address;
use crate::bind;
use crate::block::IdBlock;
use crate::devices;
use crate::id::IdStep;
use crate::qp;
use crate::resolve;
use crate::sync;

/// How long an endpoint's address is looked for, in milliseconds.
const TIMEOUT: c_int = 2000;

/// Binds a new endpoint, or resolves it and makes its queue pair.
///
/// # Safety
/// `id` is an id, and the rest as rdma_create_ep(3) wants it.
unsafe fn set_up(
    id: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let block = IdBlock::block(id)?;
        if info.ai_flags & RAI_PASSIVE != 0 {
            bind::bind(id, address::read(info.ai_src_addr, "ai_src_addr")?, false)?;
            if let Some(attr) = attr.as_ref() {
                let block = IdBlock::block(id)?;
                block.ep.qp = Some(*attr);
                block.ep.pd = (!pd.is_null()).then_some(pd);
                if !pd.is_null() {
                    (*id).pd = pd;
                }
            }
            return Ok(());
        }
        if info.ai_connect_len != 0 && !info.ai_connect.is_null() {
            block.ep.connect =
                std::slice::from_raw_parts(info.ai_connect.cast(), info.ai_connect_len).to_vec();
        }
        resolve::address(id, info.ai_src_addr, info.ai_dst_addr, TIMEOUT)?;
        sync::done(id, "rdma_create_ep")?;
        // On Ethernet a subnet manager's path record changes nothing.
        resolve::route(id)?;
        sync::done(id, "rdma_create_ep")?;
        if let Some(attr) = attr.as_mut() {
            attr.qp_type = info.ai_qp_type;
            qp::create_short(id, pd, attr)?;
        }
    }
    Ok(())
}

entry! {
    fn rdma_create_ep(
        id: *mut *mut rdma_cm_id,
        res: *mut rdma_addrinfo,
        pd: *mut ibv_pd,
        qp_init_attr: *mut ibv_qp_init_attr,
    ) -> minus_one {
        devices::need_one()?;
        // SAFETY: by the man page the caller's variable, address information, a domain and attributes.
        unsafe {
            let info = at(res, "res")?;
            if id.is_null() {
                return Err(Refusal::invalid("id is NULL"));
            }
            let new = IdBlock::allocate(null_mut(), null_mut(), info.ai_port_space, info.ai_qp_type)?;
            if let Err(refusal) = set_up(new, info, pd, qp_init_attr) {
                IdBlock::destroy(new, "rdma_create_ep")?;
                return Err(refusal);
            }
            put(id, "id", new)?;
        }
        Ok(0)
    }
}

entry! {
    fn rdma_destroy_ep(id: *mut rdma_cm_id) -> value () = (), {
        if id.is_null() {
            return;
        }
        // SAFETY: by the man page an id that the caller gives up.
        unsafe {
            qp::rdma_destroy_qp(id);
            qp::rdma_destroy_srq(id);
            if let Err(refusal) = IdBlock::destroy(id, "rdma_destroy_ep") {
                tracing::warn!("rdma_destroy_ep: {}", refusal.why);
            }
        }
    }
}

/// Makes the queue pair of a request's id with the listener's attributes.
///
/// # Safety
/// Both are ids.
unsafe fn equip(listener: *mut rdma_cm_id, child: *mut rdma_cm_id) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let ep = &IdBlock::block(listener)?.ep;
        let Some(mut attr) = ep.qp else { return Ok(()) };
        attr.qp_type = (*listener).qp_type;
        qp::create_short(child, ep.pd.unwrap_or(null_mut()), &mut attr)
    }
}

entry! {
    fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> minus_one {
        // SAFETY: by the man page an id and the caller's variable.
        unsafe {
            let shared = IdBlock::of(listen)?;
            if !shared.is_sync() {
                return Err(Refusal::invalid("the listener has a channel of the program's: its requests are events there"));
            }
            // Otherwise the thread would wait for ever.
            let step = shared.step();
            if !matches!(step, IdStep::Listening | IdStep::Removed) {
                return Err(Refusal::invalid(format!("the id is {step:?}: requests come to one that listens")));
            }
            if id.is_null() {
                return Err(Refusal::invalid("id is NULL"));
            }
            if !sync::next_event(listen, "rdma_get_request")? {
                return Ok(-1);
            }
            sync::check_status(listen)?;
            let event = (*listen).event;
            if (*event).event != RDMA_CM_EVENT_CONNECT_REQUEST {
                let name = crate::names::name((*event).event).to_string_lossy();
                return Err(Refusal::invalid(format!("{name} came instead of a request")));
            }
            let child = (*event).id;
            if let Err(refusal) = equip(listen, child) {
                IdBlock::destroy(child, "rdma_get_request")?;
                return Err(refusal);
            }
            // The event is the new id's from now on.
            (*listen).event = null_mut();
            (*child).event = event;
            put(id, "id", child)?;
        }
        Ok(0)
    }
}
