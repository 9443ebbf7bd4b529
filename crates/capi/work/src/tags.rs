//! Tag matching: ibv_post_srq_ops(3), and what ibv_create_srq_ex(3) makes of IBV_SRQT_TM.

use std::ffi::c_int;

use crate::post::{elements, report_bad, sges};
use ferroce_abi::verbs::*;
use ferroce_check::Buffers;
use ferroce_entry::call::{self, Outcome, Refusal};
use ferroce_objects::{CqBlock, Headed, SrqBlock};

/// The capabilities that `ibv_query_device_ex` returns.
pub const CAPS: ibv_tm_caps = ibv_tm_caps {
    max_rndv_hdr_size: ferroce_proto::MAX_RENDEZVOUS_REQUEST as u32,
    max_num_tags: ferroce_queues::MAX_TAGS,
    flags: IBV_TM_CAP_RC,
    max_ops: ferroce_queues::MAX_TAG_OPS,
    max_sge: ferroce_queues::MAX_SGE,
};

/// A tag-matching queue.
///
/// # Safety
/// The objects that `init` names are null or valid.
pub unsafe fn create_srq(init: &mut ibv_srq_init_attr_ex) -> Outcome<*mut ibv_srq> {
    let needed = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
    if init.comp_mask & needed != needed {
        return Err(Refusal::invalid(
            "a tag-matching queue needs IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_CQ and IBV_SRQ_INIT_ATTR_TM",
        ));
    }
    let limits = (init.tm_cap.max_num_tags, init.tm_cap.max_ops);
    // SAFETY: the caller's promise.
    unsafe {
        let cq = CqBlock::checked(init.cq)?;
        SrqBlock::make(init.pd, Some(cq), init.srq_context, &mut init.attr, |pd, attr, user_handle| {
            ferroce_queues::Srq::create_tagged(pd, cq.nic(), limits, attr, user_handle)
        })
    }
}

/// Converts an operation.
///
/// # Safety
/// Its list of elements is valid.
unsafe fn request(wr: &ibv_ops_wr) -> Outcome<ferroce_queues::TagRequest> {
    if wr.flags & !(IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC) != 0 {
        return Err(Refusal::invalid(format!("flags {:#x}: IBV_OPS_SIGNALED and IBV_OPS_TM_SYNC", wr.flags)));
    }
    let op = match wr.opcode {
        IBV_WR_TAG_ADD => {
            let ibv_ops_wr_tm_add { recv_wr_id, sg_list, num_sge, tag, mask } = wr.tm.add;
            // SAFETY: the caller's promise.
            let buffer = unsafe { elements(sg_list, num_sge, ferroce_queues::MAX_SGE) }?;
            let receive = ferroce_types::RecvWqe { wr_id: recv_wr_id, sges: sges(buffer) };
            ferroce_queues::TagOp::Add(ferroce_queues::TagEntry { tag, mask, receive })
        }
        IBV_WR_TAG_DEL => ferroce_queues::TagOp::Remove(wr.tm.handle),
        IBV_WR_TAG_SYNC => ferroce_queues::TagOp::Sync,
        other => return Err(Refusal::invalid(format!("opcode {other} of a tag-matching queue"))),
    };
    let has = |flag| wr.flags & flag != 0;
    let handled = has(IBV_OPS_TM_SYNC).then_some(wr.tm.unexpected_cnt);
    Ok(ferroce_queues::TagRequest { wr_id: wr.wr_id, op, signaled: has(IBV_OPS_SIGNALED), handled })
}

/// Posts an operation, of which the checker may want to know.
fn post(block: &SrqBlock, request: ferroce_queues::TagRequest) -> ferroce_types::Result<Option<u32>> {
    let srq = block.nic();
    let Some(watch) = block.watch() else { return srq.post_tag(request) };
    let (receive, removed) = match &request.op {
        ferroce_queues::TagOp::Add(ferroce_queues::TagEntry { receive, .. }) => {
            let buffers = Buffers::begin(srq.pd(), true, || receive.sges.clone());
            (Some((receive.wr_id, buffers)), None)
        }
        ferroce_queues::TagOp::Remove(handle) => (None, Some(*handle)),
        ferroce_queues::TagOp::Sync => (None, None),
    };
    watch.changes_tag(receive, removed, || srq.post_tag(request))
}

/// The slot behind ibv_post_srq_ops(3).
pub unsafe extern "C" fn post_srq_ops(
    srq: *mut ibv_srq,
    mut wr: *mut ibv_ops_wr,
    bad_wr: *mut *mut ibv_ops_wr,
) -> c_int {
    call::to_errno(call::contain("ibv_post_srq_ops", || {
        // SAFETY: by the man page a queue, a list whose elements get handles, and the caller's variable.
        unsafe {
            let block = SrqBlock::of(srq).inspect_err(|_| report_bad(bad_wr, wr))?;
            let srq = block.nic();
            if !srq.matches_tags() {
                report_bad(bad_wr, wr);
                return Err(Refusal::invalid("the shared receive queue doesn't match tags"));
            }
            while let Some(element) = wr.as_mut() {
                let handle = request(element)
                    .and_then(|request| Ok(post(block, request)?))
                    .inspect_err(|_| report_bad(bad_wr, wr))?;
                if let Some(handle) = handle {
                    element.tm.handle = handle;
                }
                wr = element.next;
            }
        }
        Ok(())
    }))
}
