//! Device contexts: ibv_open_device(3) and ibv_close_device(3), and the table of functions that inline code of the
//! header calls through.

use std::mem::zeroed;
use std::ptr;
use std::sync::Arc;

use ferroce_nic as nic;

use crate::device::DeviceBlock;
use crate::{advise, buf, counters, dm, dmah, domain, events, flow, memory, qp, query, reg_ex, srq, xrc};
use ferroce_abi::verbs::{ibv_context, ibv_context_ops, ibv_device, verbs_context};
use ferroce_check as check;
use ferroce_entry::call::entry;
use ferroce_objects::ContextBlock;
use ferroce_work::checked;
use ferroce_work::cq;
use ferroce_work::cq_ex;
use ferroce_work::mw;
use ferroce_work::poll;
use ferroce_work::post;
use ferroce_work::tags;
use ferroce_work::wq;

/// The value of `abi_compat` of an `ibv_context` inside a `verbs_context`.
const EXTENDED: usize = usize::MAX;

/// The functions of an open device. What isn't set here, inline code answers with EOPNOTSUPP.
fn fill(context: &mut verbs_context) {
    context.sz = size_of::<verbs_context>();
    context.query_port = Some(query::query_port_sized);
    context.query_device_ex = Some(query::query_device_ex);
    context.create_cq_ex = Some(cq_ex::create_cq_ex);
    context.modify_cq = Some(cq::modify_cq);
    context.query_rt_values = Some(query::query_rt_values);
    context.modify_qp_rate_limit = Some(qp::modify_qp_rate_limit);
    context.create_qp_ex = Some(qp::create_qp_ex);
    context.create_srq_ex = Some(srq::create_srq_ex);
    context.post_srq_ops = Some(tags::post_srq_ops);
    context.alloc_dm = Some(dm::alloc_dm);
    context.free_dm = Some(dm::free_dm);
    context.reg_dm_mr = Some(dm::reg_dm_mr);
    context.dm_export_dmabuf_fd = Some(dm::ibv_dm_export_dmabuf_fd);
    context.alloc_dmah = Some(dmah::ibv_alloc_dmah);
    context.dealloc_dmah = Some(dmah::ibv_dealloc_dmah);
    context.reg_mr_ex = Some(reg_ex::ibv_reg_mr_ex);
    context.alloc_buf = Some(buf::ibv_alloc_buf);
    context.free_buf = Some(buf::free_buf);
    context.alloc_td = Some(domain::alloc_td);
    context.dealloc_td = Some(domain::dealloc_td);
    context.alloc_parent_domain = Some(domain::alloc_parent_domain);
    context.open_xrcd = Some(xrc::open_xrcd);
    context.close_xrcd = Some(xrc::close_xrcd);
    context.get_srq_num = Some(xrc::get_srq_num);
    context.open_qp = Some(qp::open_qp);
    context.ibv_create_flow = Some(flow::create_flow);
    context.ibv_destroy_flow = Some(flow::destroy_flow);
    context.create_flow_action_esp = Some(flow::create_flow_action_esp);
    context.create_counters = Some(counters::create_counters);
    context.destroy_counters = Some(counters::destroy_counters);
    context.attach_counters_point_flow = Some(counters::attach_counters_point_flow);
    context.read_counters = Some(counters::read_counters);
    context.create_wq = Some(wq::create_wq);
    context.modify_wq = Some(wq::modify_wq);
    context.destroy_wq = Some(wq::destroy_wq);
    context.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    context.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    context.advise_mr = Some(advise::advise_mr);
    context.alloc_null_mr = Some(memory::alloc_null_mr);
    context.context.ops = ibv_context_ops {
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(mw::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        poll_cq: Some(poll::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_srq_recv: Some(post::post_srq_recv),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        // SAFETY: the rest are nullable function pointers, never called by anybody.
        ..unsafe { zeroed() }
    };
}

entry! {
    pub fn ibv_open_device(device: *mut ibv_device) -> pointer ibv_context, {
        // SAFETY: by the man page a device from a list.
        Ok(present(device, unsafe { DeviceBlock::of(device) }?.nic().open()?))
    }
}

/// The C structure of an open device.
pub(crate) fn present(device: *mut ibv_device, nic: Arc<nic::Context>) -> *mut ibv_context {
    ferroce_queues::late::listen(events::late);
    // SAFETY: numbers, nullable pointers and a pthread mutex, for all of which zeros are valid.
    let mut c: verbs_context = unsafe { zeroed() };
    fill(&mut c);
    if check::counts() {
        checked::fill(&mut c.context.ops);
    }
    c.context.device = device;
    c.context.cmd_fd = nic.cmd_fd();
    c.context.async_fd = nic.async_events().fd();
    c.context.num_comp_vectors = std::thread::available_parallelism().map_or(1, |n| n.get() as i32);
    c.context.abi_compat = ptr::without_provenance_mut(EXTENDED);
    let block = Box::into_raw(Box::new(ContextBlock { c, nic }));
    // SAFETY: just made; only an address is computed.
    unsafe { &raw mut (*block).c.context }
}

entry! {
    fn ibv_close_device(context: *mut ibv_context) -> errno {
        // SAFETY: by the man page an open context, which the caller gives up.
        let block = ptr::from_ref(unsafe { ContextBlock::of(context) }?).cast_mut();
        check::close(context);
        // SAFETY: made by `present` as a box.
        let block = unsafe { Box::from_raw(block) };
        let left = block.nic().close();
        if left != nic::Leftovers::default() {
            // Programs do this (perftest leaves a completion queue): it isn't worth a line by default.
            tracing::info!("{left} of a closed device end with it");
        }
        Ok(())
    }
}
