//! Completion counters: ibv_create_comp_cntr(3), ibv_qp_attach_comp_cntr(3), ibv_query_comp_cntr_caps(3).
#![allow(non_camel_case_types)] // as in the header

use std::ffi::c_int;
use std::ptr;

use ferroce_nic as nic;
use ferroce_queues::CntrValue::{Completed, Failed};
use libc::size_t;

use ferroce_abi::verbs::{ibv_context, ibv_qp};
use ferroce_entry::call::{Refusal, at, entry, put};
use ferroce_objects::{ContextBlock, Headed, QpBlock, block, next_handle};

#[repr(C)]
pub struct ibv_comp_cntr {
    context: *mut ibv_context,
    handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_comp_cntr_init_attr {
    comp_mask: u32,
    r#type: c_int,
    flags: u32,
}

#[repr(C)]
pub(crate) struct ibv_comp_cntr_caps {
    max_value: u64,
    max_counters: u32,
    supported_qp_attach_ops: u32,
}

#[repr(C)]
pub(crate) struct ibv_qp_attach_comp_cntr_attr {
    comp_mask: u32,
    op_mask: u32,
}

const _: () = assert!(
    size_of::<ibv_comp_cntr>() == 16
        && size_of::<ibv_comp_cntr_init_attr>() == 12
        && size_of::<ibv_comp_cntr_caps>() == 16
        && size_of::<ibv_qp_attach_comp_cntr_attr>() == 8
);

const IBV_COMP_CNTR_TYPE_WRS: c_int = 0;
const IBV_COMP_CNTR_TYPE_BYTES: c_int = 1;

block! {
    CntrBlock: ibv_comp_cntr, "comp_cntr", |c| (c.context, c.handle);
    => ferroce_queues::CompCntr;
}

entry! {
    /// Behind the inline function without the first underscore, which passes the size of the program's structure.
    fn _ibv_query_comp_cntr_caps(
        context: *mut ibv_context,
        caps: *mut ibv_comp_cntr_caps,
        caps_size: size_t,
    ) -> errno {
        // SAFETY: by the man page an open context.
        unsafe { ContextBlock::of(context) }?;
        if caps.is_null() {
            return Err(Refusal::invalid("caps is NULL"));
        }
        let full = ibv_comp_cntr_caps {
            max_value: u64::MAX,
            max_counters: ferroce_queues::MAX_COMP_CNTR,
            supported_qp_attach_ops: ferroce_queues::CountedOp::ALL.iter().map(|op| op.bit()).sum(),
        };
        let known = size_of::<ibv_comp_cntr_caps>();
        // SAFETY: the caller's structure has `caps_size` bytes.
        unsafe {
            let to = caps.cast::<u8>();
            ptr::copy_nonoverlapping((&raw const full).cast(), to, known.min(caps_size));
            ptr::write_bytes(to.add(known.min(caps_size)), 0, caps_size.saturating_sub(known));
        }
        Ok(())
    }
}

entry! {
    fn ibv_create_comp_cntr(
        context: *mut ibv_context,
        attr: *mut ibv_comp_cntr_init_attr,
    ) -> pointer ibv_comp_cntr, {
        // SAFETY: by the man page an open context and the caller's attributes.
        let (_, attr) = unsafe { (ContextBlock::of(context)?, at(attr, "cc_attr")?) };
        if attr.comp_mask != 0 || attr.flags != 0 {
            return Err(Refusal::invalid("comp_mask and flags of ibv_comp_cntr_init_attr are 0"));
        }
        let counts = match attr.r#type {
            IBV_COMP_CNTR_TYPE_WRS => ferroce_queues::CompCntrType::Requests,
            IBV_COMP_CNTR_TYPE_BYTES => ferroce_queues::CompCntrType::Bytes,
            other => return Err(Refusal::unsupported(format!("counters of type {other}"))),
        };
        let nic = ferroce_queues::CompCntr::create(counts)?;
        CntrBlock::allocate(|_| Ok(CntrBlock { c: ibv_comp_cntr { context, handle: next_handle() }, nic }))
    }
}

entry! {
    fn ibv_destroy_comp_cntr(cntr: *mut ibv_comp_cntr) -> errno {
        // SAFETY: by the man page a counter that the caller gives up.
        unsafe {
            CntrBlock::ending(cntr)?.nic().check_unused()?;
            CntrBlock::free(cntr);
        }
        Ok(())
    }
}

macro_rules! values {
    ($($set:ident $add:ident $read:ident: $entry:ident;)*) => {$(
        entry! {
            fn $set(cntr: *mut ibv_comp_cntr, value: u64) -> errno {
                // SAFETY: by the man page a counter.
                unsafe { CntrBlock::checked(cntr) }?.nic().set($entry, value);
                Ok(())
            }
        }

        entry! {
            fn $add(cntr: *mut ibv_comp_cntr, amount: u64) -> errno {
                // SAFETY: by the man page a counter.
                unsafe { CntrBlock::checked(cntr) }?.nic().add($entry, amount);
                Ok(())
            }
        }

        entry! {
            fn $read(cntr: *mut ibv_comp_cntr, value: *mut u64) -> errno {
                // SAFETY: by the man page a counter and the caller's variable.
                unsafe { put(value, "value", nic::read_comp_cntr(CntrBlock::checked(cntr)?.nic(), $entry)) }
            }
        }
    )*};
}

values! {
    ibv_set_comp_cntr ibv_inc_comp_cntr ibv_read_comp_cntr: Completed;
    ibv_set_err_comp_cntr ibv_inc_err_comp_cntr ibv_read_err_comp_cntr: Failed;
}

entry! {
    fn ibv_qp_attach_comp_cntr(
        qp: *mut ibv_qp,
        cntr: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> errno {
        // SAFETY: by the man page a queue pair, a counter and the caller's attributes.
        let (qp, cntr, attr) = unsafe { (QpBlock::checked(qp)?, CntrBlock::checked(cntr)?, at(attr, "attr")?) };
        if attr.comp_mask != 0 {
            return Err(Refusal::invalid("the comp_mask of ibv_qp_attach_comp_cntr_attr isn't 0"));
        }
        Ok(qp.nic()?.attach_comp_cntr(cntr.nic(), attr.op_mask)?)
    }
}
