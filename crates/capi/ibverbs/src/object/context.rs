//! Open devices.

use std::mem::offset_of;
use std::sync::Arc;

use ferroce_nic as nic;

use crate::abi::{ibv_context, verbs_context};
use crate::call::{Outcome, Refusal};

/// An open device. The program's pointer leads into its middle.
#[repr(C)]
pub(crate) struct ContextBlock {
    pub(crate) c: verbs_context,
    pub(crate) nic: Arc<nic::Context>,
}

impl ContextBlock {
    /// The block behind a program's pointer, which leads into its middle.
    ///
    /// # Safety
    /// `context` is null or an open context of ours.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> Outcome<&'a Self> {
        if context.is_null() {
            return Err(Refusal::invalid("context is NULL"));
        }
        // SAFETY: every context is a block's field at this offset.
        Ok(unsafe { &*context.byte_sub(offset_of!(Self, c.context)).cast::<Self>() })
    }

    pub(crate) fn nic(&self) -> &Arc<nic::Context> {
        &self.nic
    }

    pub(crate) fn num_comp_vectors(&self) -> i32 {
        self.c.context.num_comp_vectors
    }
}
