//! Counters: ibv_create_counters(3), ibv_attach_counters_point_flow(3), ibv_read_counters(3).

use std::ffi::c_int;
use std::slice;
use std::sync::Arc;

use ferroce_raw::CounterPoint;

use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Refusal, at};
use ferroce_objects::{ContextBlock, CountersBlock, FlowBlock, Headed};

/// The slot behind `ibv_create_counters`.
pub(crate) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    attr: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    call::pointer("ibv_create_counters", || {
        // SAFETY: by the man page an open context and the caller's attributes.
        let attr = unsafe {
            ContextBlock::of(context)?;
            at(attr, "init_attr")?
        };
        if attr.comp_mask != 0 {
            return Err(Refusal::invalid("the comp_mask of ibv_counters_init_attr isn't 0"));
        }
        CountersBlock::allocate(|_| Ok(CountersBlock { c: ibv_counters { context }, nic: Arc::default() }))
    })
}

/// The slot behind `ibv_destroy_counters`.
pub(crate) unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    call::errno_value("ibv_destroy_counters", || {
        // SAFETY: by the man page counters that the caller gives up.
        unsafe {
            CountersBlock::ending(counters)?.nic().check_unused()?;
            CountersBlock::free(counters);
        }
        Ok(())
    })
}

/// The slot behind `ibv_attach_counters_point_flow`: before a flow names the counters.
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    call::errno_value("ibv_attach_counters_point_flow", || {
        // SAFETY: by the man page counters, the caller's attributes, and a flow or NULL.
        let (block, attr) = unsafe {
            if !flow.is_null() {
                FlowBlock::checked(flow)?;
                return Err(Refusal::unsupported("counters for a flow that exists already"));
            }
            (CountersBlock::checked(counters)?, at(attr, "counter_attach_attr")?)
        };
        if attr.comp_mask != 0 {
            return Err(Refusal::invalid("the comp_mask of ibv_counter_attach_attr isn't 0"));
        }
        let point = match attr.counter_desc {
            IBV_COUNTER_PACKETS => CounterPoint::Packets,
            IBV_COUNTER_BYTES => CounterPoint::Bytes,
            other => return Err(Refusal::new(libc::ENOTSUP, format!("counter_desc {other}"))),
        };
        Ok(block.nic().attach(attr.index, point)?)
    })
}

/// The slot behind `ibv_read_counters`.
pub(crate) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    values: *mut u64,
    ncounters: u32,
    flags: u32,
) -> c_int {
    call::errno_value("ibv_read_counters", || {
        // SAFETY: by the man page counters.
        let block = unsafe { CountersBlock::checked(counters) }?;
        if flags & !IBV_READ_COUNTERS_ATTR_PREFER_CACHED != 0 {
            return Err(Refusal::invalid(format!("flags {flags:#x}: unknown bits")));
        }
        if values.is_null() || ncounters == 0 {
            return Err(Refusal::invalid("no room for a value"));
        }
        // SAFETY: by the man page the caller's array, whatever it holds.
        let values = unsafe {
            values.write_bytes(0, ncounters as usize);
            slice::from_raw_parts_mut(values, ncounters as usize)
        };
        block.nic().read(values);
        Ok(())
    })
}
