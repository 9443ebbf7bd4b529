//! Extended completion queues: ibv_create_cq_ex(3). All fields can be read; what a queue wasn't asked to record is 0.

use std::ffi::{c_int, c_uint};

use crate::checked;
use crate::cq::{self, Extension};
use crate::poll::{end_poll, next_poll, start_poll};
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal, at};
use ferroce_objects::{CqBlock, Headed};

/// The slot behind `ibv_create_cq_ex`.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    call::pointer("ibv_create_cq_ex", || {
        // SAFETY: by the man page the caller's structure.
        let attr = unsafe { at(attr, "cq_attr") }?;
        let extension = check(attr)?;
        // SAFETY: by the man page an open context, a channel or NULL, and a domain if the mask has its bit. The head of a new queue's block is an
        // `ibv_cq_ex`.
        unsafe {
            let cq = cq::create(
                context,
                attr.cqe.into(),
                attr.cq_context,
                attr.channel,
                attr.comp_vector.into(),
                &extension,
            )?
            .cast();
            fill(&mut *cq);
            if CqBlock::of(cq.cast())?.watch().is_some() {
                checked::fill_cq(&mut *cq);
            }
            Ok(cq)
        }
    })
}

fn fill(c: &mut ibv_cq_ex) {
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_byte_len = Some(read_byte_len);
    c.read_imm_data = Some(read_imm_data);
    c.read_qp_num = Some(read_qp_num);
    c.read_src_qp = Some(read_src_qp);
    c.read_wc_flags = Some(read_wc_flags);
    c.read_slid = Some(read_slid);
    c.read_sl = Some(read_sl);
    c.read_dlid_path_bits = Some(read_dlid_path_bits);
    c.read_completion_ts = Some(read_completion_ts);
    c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    c.read_cvlan = Some(read_cvlan);
    c.read_flow_tag = Some(read_flow_tag);
    c.read_tm_info = Some(read_tm_info);
}

/// The fields that a queue records with each completion.
const RECORDED: u64 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
    | IBV_WC_EX_WITH_CVLAN
    | IBV_WC_EX_WITH_FLOW_TAG
    | IBV_WC_EX_WITH_TM_INFO;

fn check(attr: &ibv_cq_init_attr_ex) -> Outcome<Extension> {
    let known = u64::from(IBV_WC_STANDARD_FLAGS) | RECORDED;
    if attr.wc_flags & !known != 0 {
        return Err(Refusal::unsupported(format!("wc_flags {:#x}: {known:#x} are known", attr.wc_flags)));
    }
    let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    if attr.comp_mask & !known != 0 {
        return Err(Refusal::unsupported(format!("comp_mask {:#x}: {known:#x} are known", attr.comp_mask)));
    }
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
        return Err(Refusal::unsupported(format!("flags {flags:#x}: single-threaded and ignored overrun")));
    }
    Ok(Extension {
        domain: (attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0).then_some(attr.parent_domain),
        stamped: attr.wc_flags & RECORDED != 0,
        ignore_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
        single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
    })
}

macro_rules! readers {
    ($($name:ident -> $ty:ty = $field:ident;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: by the man page while the iterator stands on a completion, under the lock.
            unsafe { (*(*cq.cast::<CqBlock>()).current.get()).$field as $ty }
        }
    )*};
}

readers! {
    read_opcode -> c_int = opcode;
    read_vendor_err -> u32 = vendor_err;
    read_byte_len -> u32 = byte_len;
    read_imm_data -> u32 = imm_data;
    read_qp_num -> u32 = qp_num;
    read_src_qp -> u32 = src_qp;
    read_wc_flags -> c_uint = wc_flags;
    read_slid -> u32 = slid;
    read_sl -> u8 = sl;
    read_dlid_path_bits -> u8 = dlid_path_bits;
}

macro_rules! record_readers {
    ($($name:ident -> $ty:ty = $($field:ident).+;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: as for the others.
            unsafe { (*(*cq.cast::<CqBlock>()).stamp.get()).$($field).+ }
        }
    )*};
}

record_readers! {
    read_completion_ts -> u64 = clock;
    read_completion_wallclock_ns -> u64 = wall_clock;
    read_cvlan -> u16 = tags.cvlan;
    read_flow_tag -> u32 = tags.flow_tag;
}

unsafe extern "C" fn read_tm_info(cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: as for the others; by the man page the caller's structure.
    if let (tm, Some(info)) = unsafe { ((*(*cq.cast::<CqBlock>()).stamp.get()).tags.tm, info.as_mut()) } {
        *info = ibv_wc_tm_info { tag: tm.tag, r#priv: tm.app_ctx };
    }
}
