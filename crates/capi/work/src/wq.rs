//! Work queues and receive-side scaling: ibv_create_wq(3), ibv_modify_wq(3), ibv_create_rwq_ind_table(3). Posting is in
//! `post`.

use std::ffi::c_int;
use std::mem::zeroed;
use std::slice;

use ferroce_raw::{HASH_KEY_LEN, IndTable, MAX_TABLE, Rss, Wq, WqInit, WqState, fields};

use crate::post;
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal, at, at_mut};
use ferroce_objects::{ContextBlock, CqBlock, Headed, PdBlock, WqBlock, block, next_handle};

/// Whether VLAN tags are to be taken out.
fn stripping(flags: u32) -> Outcome<bool> {
    if flags & !IBV_WQ_FLAGS_CVLAN_STRIPPING != 0 {
        return Err(Refusal::unsupported(format!("flags {flags:#x} of a work queue: only CVLAN stripping")));
    }
    Ok(flags & IBV_WQ_FLAGS_CVLAN_STRIPPING != 0)
}

/// The slot behind `ibv_create_wq`.
pub unsafe extern "C" fn create_wq(context: *mut ibv_context, init: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    call::pointer("ibv_create_wq", || {
        // SAFETY: by the man page an open context and the caller's attributes, which name valid objects.
        let (init, pd, cq) = unsafe {
            ContextBlock::of(context)?;
            let init = at_mut(init, "wq_init_attr")?;
            let (pd, cq) = (PdBlock::checked(init.pd)?, CqBlock::checked(init.cq)?);
            (init, pd, cq)
        };
        if init.wq_type != IBV_WQT_RQ {
            return Err(Refusal::invalid(format!("wq_type {}: only IBV_WQT_RQ", init.wq_type)));
        }
        if init.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0 {
            return Err(Refusal::invalid(format!("comp_mask {:#x}: unknown bits", init.comp_mask)));
        }
        let flags = if init.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 { init.create_flags } else { 0 };
        let cvlan_stripping = stripping(flags)?;
        WqBlock::allocate(|user_handle| {
            let (max_wr, max_sge) = (init.max_wr, init.max_sge);
            let queues = WqInit { cq: cq.nic().clone(), max_wr, max_sge, cvlan_stripping, user_handle };
            let nic = Wq::create(pd.nic(), queues)?;
            // SAFETY: numbers, pointers, a nullable function pointer and pthread objects, for all of which zeros are
            // valid.
            let mut c: ibv_wq = unsafe { zeroed() };
            c.context = context;
            c.wq_context = init.wq_context;
            c.pd = init.pd;
            c.cq = init.cq;
            c.wq_num = nic.number();
            c.handle = next_handle();
            c.state = nic.state() as c_int;
            c.wq_type = init.wq_type;
            c.post_recv = Some(post::post_wq_recv);
            Ok(WqBlock { c, nic, max_sge })
        })
    })
}

fn state(number: c_int, what: &str) -> Outcome<WqState> {
    match number {
        IBV_WQS_RESET => Ok(WqState::Reset),
        IBV_WQS_RDY => Ok(WqState::Rdy),
        IBV_WQS_ERR => Ok(WqState::Err),
        other => Err(Refusal::invalid(format!("{what} {other} isn't a state of a work queue"))),
    }
}

/// The slot behind `ibv_modify_wq`.
pub unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    call::errno_value("ibv_modify_wq", || {
        // SAFETY: by the man page a work queue and the caller's attributes.
        let (block, attr) = unsafe { (WqBlock::checked(wq)?, at(attr, "wq_attr")?) };
        let has = |bit: u32| attr.attr_mask & bit != 0;
        let known = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_FLAGS;
        if attr.attr_mask & !known != 0 {
            return Err(Refusal::invalid(format!("attr_mask {:#x}: unknown bits", attr.attr_mask)));
        }
        let to = has(IBV_WQ_ATTR_STATE).then(|| state(attr.wq_state, "wq_state")).transpose()?;
        let current = has(IBV_WQ_ATTR_CURR_STATE);
        let current = current.then(|| state(attr.curr_wq_state, "curr_wq_state")).transpose()?;
        let strip = if has(IBV_WQ_ATTR_FLAGS) {
            (stripping(attr.flags_mask)?).then_some(stripping(attr.flags)?)
        } else {
            None
        };
        block.nic().modify(to, current, strip)?;
        // SAFETY: the field of the block's head, which only this function changes.
        unsafe { (&raw mut (*wq).state).write(block.nic().state() as c_int) };
        Ok(())
    })
}

/// The slot behind `ibv_destroy_wq`.
pub unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    call::errno_value("ibv_destroy_wq", || {
        // SAFETY: by the man page a work queue that the caller gives up.
        unsafe {
            WqBlock::ending(wq)?.nic().destroy()?;
            WqBlock::free(wq);
        }
        Ok(())
    })
}

block! {
    TableBlock: ibv_rwq_ind_table, "rwq_ind_table", |c| (c.context, c.ind_tbl_handle as u32);
    => IndTable;
}

/// The slot behind `ibv_create_rwq_ind_table`.
pub unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    call::pointer("ibv_create_rwq_ind_table", || {
        // SAFETY: by the man page an open context and the caller's attributes.
        let init = unsafe {
            ContextBlock::of(context)?;
            at(init, "init_attr")?
        };
        if init.comp_mask != 0 {
            return Err(Refusal::invalid("the comp_mask of ibv_rwq_ind_table_init_attr isn't 0"));
        }
        let entries = 1_u32.checked_shl(init.log_ind_tbl_size).filter(|&n| n <= MAX_TABLE);
        let Some(entries) = entries else {
            return Err(Refusal::invalid(format!(
                "log_ind_tbl_size {}: up to {} entries",
                init.log_ind_tbl_size, MAX_TABLE
            )));
        };
        if init.ind_tbl.is_null() {
            return Err(Refusal::invalid("ind_tbl is NULL"));
        }
        // SAFETY: by the man page a table of that many work queues.
        let wqs = unsafe { slice::from_raw_parts(init.ind_tbl, entries as usize) };
        // SAFETY: as above.
        let wqs = wqs
            .iter()
            .map(|&wq| Ok(unsafe { WqBlock::checked(wq) }?.nic().clone()))
            .collect::<Outcome<_>>()?;
        let nic = IndTable::create(wqs)?;
        let handle = next_handle() as c_int;
        let c = ibv_rwq_ind_table { context, ind_tbl_handle: handle, ind_tbl_num: handle, comp_mask: 0 };
        TableBlock::allocate(|_| Ok(TableBlock { c, nic }))
    })
}

/// The slot behind `ibv_destroy_rwq_ind_table`.
pub unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    call::errno_value("ibv_destroy_rwq_ind_table", || {
        // SAFETY: by the man page a table that the caller gives up.
        unsafe {
            TableBlock::ending(table)?.nic().destroy()?;
            TableBlock::free(table);
        }
        Ok(())
    })
}

/// How a queue pair is to spread what it receives.
///
/// # Safety
/// `table` is null or a table; the key of `conf` is readable for its length.
pub unsafe fn rss(table: *mut ibv_rwq_ind_table, conf: &ibv_rx_hash_conf) -> Outcome<Rss> {
    // SAFETY: the caller's promise.
    let table = unsafe { TableBlock::checked(table) }?.nic().clone();
    if conf.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ {
        return Err(Refusal::unsupported(format!(
            "rx_hash_function {}: only Toeplitz",
            conf.rx_hash_function
        )));
    }
    if usize::from(conf.rx_hash_key_len) != HASH_KEY_LEN || conf.rx_hash_key.is_null() {
        return Err(Refusal::invalid(format!(
            "a hash key of {} bytes: it has {HASH_KEY_LEN}",
            conf.rx_hash_key_len
        )));
    }
    if conf.rx_hash_fields_mask & !fields::ALL != 0 {
        return Err(Refusal::unsupported(format!("rx_hash_fields_mask {:#x}", conf.rx_hash_fields_mask)));
    }
    // SAFETY: the caller's promise.
    let key = unsafe { conf.rx_hash_key.cast::<[u8; HASH_KEY_LEN]>().read_unaligned() };
    Ok(Rss { table, key, fields: conf.rx_hash_fields_mask })
}
