//! ibv_query_ece(3), ibv_set_ece(3), ibv_query_qp_data_in_order(3).

use std::ffi::c_int;
use std::sync::Arc;

use ferroce_nic as nic;

use ferroce_abi::verbs::*;
use ferroce_entry::call::{Refusal, at_mut, entry, put};
use ferroce_objects::{Headed, QpBlock, QpObject};

/// The queue pair, if it has a connection of its own to agree about.
fn connected(block: &QpBlock) -> Option<&Arc<nic::Qp>> {
    match &block.kind {
        QpObject::Transport(nic) => Some(nic),
        QpObject::Target(target) => target.own_qp(),
        QpObject::Raw(_) => None,
    }
}

entry! {
    /// What the queue pair offers; once options have been set, those in force.
    pub fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> errno {
        // SAFETY: by the man page a queue pair and the caller's structure.
        unsafe {
            let options = connected(QpBlock::checked(qp)?).map_or(0, |nic| nic.ece_options());
            put(ece, "ece", ibv_ece { vendor_id: ferroce_netdev::VENDOR_ID, options, comp_mask: 0 })
        }
    }
}

entry! {
    /// Options that the queue pair doesn't have are removed, and `ece` gets the rest. A vendor of 0 is a peer without options, which
    /// librdmacm takes EOPNOTSUPP for.
    pub fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> errno {
        // SAFETY: by the man page a queue pair and the caller's structure.
        let (block, ece) = unsafe { (QpBlock::checked(qp)?, at_mut(ece, "ece")?) };
        match ece.vendor_id {
            ferroce_netdev::VENDOR_ID => {}
            0 => return Err(Refusal::unsupported("options of no vendor")),
            other => return Err(Refusal::invalid(format!("options of vendor {other:#x}"))),
        }
        if ece.comp_mask != 0 {
            return Err(Refusal::invalid(format!("comp_mask {:#x}: unknown bits", ece.comp_mask)));
        }
        ece.options = match connected(block) {
            Some(nic) => nic.set_ece_options(ece.options)?,
            None => 0,
        };
        Ok(())
    }
}

entry! {
    /// Data may arrive in any order: 0.
    fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_int, _flags: u32) -> value c_int = 0, {
        0
    }
}
