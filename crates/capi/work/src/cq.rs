//! Completion queues: ibv_create_cq(3), ibv_resize_cq(3), ibv_modify_cq(3), ibv_req_notify_cq(3), ibv_destroy_cq(3).
//! Polling is in `poll`; the extended form of a queue, which every queue here has, in `cq_ex`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::sync::Arc;
use std::time::Duration;

use ferroce_nic as nic;
use nic::OfContext as _;

use ferroce_abi::verbs::*;
use ferroce_check::{self as check, CqWatch};
use ferroce_entry::call::{self, Outcome, Refusal, at, entry};
use ferroce_objects::{ChannelBlock, ContextBlock, CqBlock, Headed, PdBlock, next_handle};

/// What ibv_create_cq_ex(3) adds to ibv_create_cq(3).
#[derive(Default)]
pub struct Extension {
    /// The parent domain.
    pub domain: Option<*mut ibv_pd>,
    /// Completions have the times at which they came.
    pub stamped: bool,
    /// A queue without room drops completions, and its queue pairs go on.
    pub ignore_overrun: bool,
    /// The program promises to use the queue from one thread at a time.
    pub single_threaded: bool,
}

/// # Safety
/// `context`, `channel` and the extension's domain are null or valid.
pub unsafe fn create(
    context: *mut ibv_context,
    cqe: i64,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: i64,
    extension: &Extension,
) -> Outcome<*mut ibv_cq> {
    // SAFETY: the caller's promise.
    let (block, events, pd) = unsafe {
        let pd = extension.domain.map(|pd| PdBlock::checked(pd)).transpose()?.map(PdBlock::nic);
        let events = if channel.is_null() { None } else { Some(ChannelBlock::checked(channel)?.nic()) };
        (ContextBlock::of(context)?, events, pd)
    };
    let vectors = i64::from(block.num_comp_vectors());
    if !(0..vectors).contains(&comp_vector) {
        return Err(Refusal::invalid(format!("comp_vector {comp_vector}: the device has {vectors}")));
    }
    if pd.is_some_and(|pd| !Arc::ptr_eq(&pd.context(), block.nic())) {
        return Err(Refusal::invalid("the parent domain is of another device context"));
    }
    if events.is_some_and(|events| !Arc::ptr_eq(&events.context(), block.nic())) {
        return Err(Refusal::invalid("the completion channel is of another device context"));
    }
    let cqe =
        u32::try_from(cqe).map_err(|_| Refusal::invalid(format!("a completion queue of {cqe} entries")))?;
    CqBlock::allocate(|user_handle| {
        let &Extension { stamped, ignore_overrun, single_threaded, .. } = extension;
        let init = ferroce_queues::CqInit { cqe, channel: events, user_handle, stamped, ignore_overrun, pd };
        let nic = ferroce_queues::Cq::create_as(block.nic(), init)?;
        // SAFETY: numbers, pointers, nullable function pointers and pthread objects, for all of which zeros are valid.
        let (mut c, current): (ibv_cq_ex, ibv_wc) = unsafe { (zeroed(), zeroed()) };
        c.context = context;
        c.channel = channel;
        c.cq_context = cq_context;
        c.handle = next_handle();
        c.cqe = nic.capacity() as c_int;
        let watch = check::counts().then(|| CqWatch::new(&nic, channel, ignore_overrun));
        Ok(CqBlock {
            c,
            nic,
            current: UnsafeCell::new(current),
            stamp: UnsafeCell::default(),
            single_threaded,
            watch,
        })
    })
}

entry! {
    pub fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> pointer ibv_cq, {
        // SAFETY: by the man page an open context, and a channel or NULL.
        unsafe { create(context, cqe.into(), cq_context, channel, comp_vector.into(), &Extension::default()) }
    }
}

entry! {
    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> errno {
        // SAFETY: by the man page a completion queue.
        unsafe {
            let block = CqBlock::checked(cq)?;
            let size = u32::try_from(cqe)
                .map_err(|_| Refusal::invalid(format!("a completion queue of {cqe} entries")))?;
            block.nic().resize(size)?;
            (*cq).cqe = block.nic().capacity() as c_int;
            if let Some(watch) = block.watch() {
                watch.resized(block.nic().capacity());
            }
        }
        Ok(())
    }
}

entry! {
    pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> errno {
        // SAFETY: by the man page a completion queue that the caller gives up. When its destruction returns, no event
        // of it is left anywhere.
        unsafe {
            let block = CqBlock::ending(cq)?;
            block.nic().destroy()?;
            CqBlock::free(cq);
        }
        Ok(())
    }
}

/// The slot behind ibv_req_notify_cq(3).
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    call::to_errno(call::contain("ibv_req_notify_cq", || {
        // SAFETY: by the man page a completion queue.
        unsafe { CqBlock::of(cq) }?.nic().request_notify(solicited_only != 0);
        Ok(())
    }))
}

/// The slot behind ibv_modify_cq(3).
pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    call::errno_value("ibv_modify_cq", || {
        // SAFETY: by the man page a completion queue and the caller's attributes.
        let (block, attr) = unsafe { (CqBlock::checked(cq)?, at(attr, "cq_attr")?) };
        if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
            return Err(Refusal::unsupported(format!("attr_mask {:#x}: only moderation", attr.attr_mask)));
        }
        if attr.attr_mask & IBV_CQ_ATTR_MODERATE != 0 {
            let ibv_moderate_cq { cq_count, cq_period } = attr.moderate;
            block.nic().moderate(cq_count, Duration::from_micros(cq_period.into()));
        }
        Ok(())
    })
}
