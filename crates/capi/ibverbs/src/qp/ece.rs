//! ibv_query_ece(3), ibv_set_ece(3), ibv_query_qp_data_in_order(3).

use std::ffi::c_int;

use super::QpBlock;
use crate::abi::*;
use crate::call::{Refusal, entry, put};
use crate::object::Headed;

entry! {
    /// There is nothing to agree on: no vendor, no options.
    fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> errno {
        // SAFETY: by the man page a queue pair and the caller's structure.
        unsafe {
            QpBlock::of(qp)?;
            put(ece, "ece", ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 })?;
        }
        Err(Refusal::unsupported("enhanced connection establishment"))
    }
}

entry! {
    fn ibv_set_ece(qp: *mut ibv_qp, _ece: *mut ibv_ece) -> errno {
        // SAFETY: by the man page a queue pair.
        unsafe { QpBlock::of(qp) }?;
        Err(Refusal::unsupported("enhanced connection establishment"))
    }
}

entry! {
    /// Data may arrive in any order: 0.
    fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_int, _flags: u32) -> value c_int = 0, {
        0
    }
}
