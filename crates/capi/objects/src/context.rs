//! Open devices.

use std::mem::offset_of;
use std::sync::Arc;

use ferroce_nic as nic;

use ferroce_abi::verbs::{ibv_context, verbs_context};
use ferroce_entry::call::{Outcome, Refusal};

/// An open device. The program's pointer leads into its middle.
#[repr(C)]
pub struct ContextBlock {
    /// The structure that programs see.
    pub c: verbs_context,
    /// The adapter's object.
    pub nic: Arc<nic::Context>,
}

impl ContextBlock {
    /// The block behind a program's pointer, which leads into its middle.
    ///
    /// # Safety
    /// `context` is null or an open context of ours.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> Outcome<&'a Self> {
        if context.is_null() {
            return Err(Refusal::invalid("context is NULL"));
        }
        // SAFETY: every context is a block's field at this offset.
        Ok(unsafe { &*context.byte_sub(offset_of!(Self, c.context)).cast::<Self>() })
    }

    /// The adapter's object.
    pub fn nic(&self) -> &Arc<nic::Context> {
        &self.nic
    }

    /// The completion vectors that programs may name.
    pub fn num_comp_vectors(&self) -> i32 {
        self.c.context.num_comp_vectors
    }
}
