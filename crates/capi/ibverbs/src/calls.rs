//! What the communication manager (`capi/rdmacm`) calls, which is linked into the same library: verbs as a program calls them, and
//! the adapter's objects behind what they return.

use std::sync::Arc;

use ferroce_nic as nic;

pub use crate::context::ibv_open_device;
pub use crate::device::{ibv_free_device_list, ibv_get_device_list};
pub use crate::events::{EventSleep, Woken, end_call, ibv_create_comp_channel, ibv_destroy_comp_channel};
pub use crate::mcast::{ibv_attach_mcast, ibv_detach_mcast};
pub use crate::memory::{ibv_alloc_pd, ibv_dealloc_pd};
pub use crate::qp::{
    create_qp_ex, ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, ibv_query_ece, ibv_query_qp, ibv_set_ece,
};
pub use crate::srq::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};
pub use crate::xrc::{close_xrcd, open_xrcd};
pub use ferroce_work::cq::{ibv_create_cq, ibv_destroy_cq};

use ferroce_abi::verbs::{ibv_context, ibv_device};
use ferroce_entry::call::Outcome;
use ferroce_objects::ContextBlock;

/// The adapter's object behind an open device.
///
/// # Errors
/// EINVAL for NULL.
///
/// # Safety
/// `context` is null or an open context.
pub unsafe fn context_of<'a>(context: *mut ibv_context) -> Outcome<&'a Arc<nic::Context>> {
    // SAFETY: the caller's promise.
    Ok(unsafe { ContextBlock::of(context) }?.nic())
}

/// The device as programs hold it, whether it was listed before or not.
#[must_use]
pub fn device_pointer(device: Arc<nic::Device>) -> *mut ibv_device {
    ferroce_entry::log::start();
    crate::device::listed(device)
}
