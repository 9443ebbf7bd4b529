//! Events as the program has them: rdma_ack_cm_event(3).

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::sync::Arc;

use ferroce_entry::call::Refusal;
use ferroce_entry::entry;

use crate::abi::*;
use crate::id::CmId;

/// Room for private data behind an event.
const PRIVATE_DATA: usize = 256;

/// An event as the program has it.
#[repr(C)]
pub(crate) struct EventBlock {
    pub(crate) c: rdma_cm_event,
    /// The id that it counts against.
    counted: Arc<CmId>,
    /// What it is, whatever the program does to its structure.
    event: c_int,
    private_data: [u8; PRIVATE_DATA],
}

impl EventBlock {
    pub(crate) fn new(counted: Arc<CmId>, id: *mut rdma_cm_id) -> Box<Self> {
        // SAFETY: numbers and pointers.
        let mut c: rdma_cm_event = unsafe { zeroed() };
        c.id = id;
        Box::new(Self { c, counted, event: -1, private_data: [0; PRIVATE_DATA] })
    }

    /// Gives it to the program.
    pub(crate) fn give(mut self: Box<Self>) -> *mut rdma_cm_event {
        self.event = self.c.event;
        self.counted.unacked.delivered(self.event);
        Box::into_raw(self).cast()
    }

    /// Keeps private data with the event; where it is, and how long.
    fn keep(&mut self, data: &[u8]) -> (*const c_void, u8) {
        self.private_data[..data.len()].copy_from_slice(data);
        (self.private_data.as_ptr().cast(), data.len() as u8)
    }

    pub(crate) fn set(&mut self, event: c_int, status: c_int) {
        (self.c.event, self.c.status) = (event, status);
    }

    pub(crate) fn set_conn(&mut self, param: rdma_conn_param, data: &[u8]) {
        let (private_data, private_data_len) = self.keep(data);
        self.c.param.conn = rdma_conn_param { private_data, private_data_len, ..param };
    }

    pub(crate) fn set_ud(&mut self, param: rdma_ud_param, data: &[u8]) {
        let (private_data, private_data_len) = self.keep(data);
        self.c.param.ud = rdma_ud_param { private_data, private_data_len, ..param };
    }
}

pub(crate) fn no_param() -> rdma_conn_param {
    // SAFETY: numbers and a pointer.
    unsafe { zeroed() }
}

pub(crate) fn no_ud() -> rdma_ud_param {
    // SAFETY: numbers and a pointer.
    unsafe { zeroed() }
}

/// Acknowledges an event.
///
/// # Safety
/// `event` is null, or an event that isn't acknowledged.
pub(crate) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    if !event.is_null() {
        // SAFETY: made by `deliver` of a box.
        let block = unsafe { Box::from_raw(event.cast::<EventBlock>()) };
        block.counted.unacked.ack(block.event);
    }
}

entry! {
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> minus_one {
        if event.is_null() {
            return Err(Refusal::invalid("event is NULL"));
        }
        // SAFETY: by the man page an event that the caller gives up.
        unsafe { acknowledge(event) };
        Ok(0)
    }
}
