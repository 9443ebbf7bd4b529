//! Shared receive queues.

use crate::device::SystemDomain;
use crate::elements::elements;
use crate::library;
use ferroce_abi::verbs::*;
use ferroce_buffers::{Error, Kind};
use ferroce_types::Sge;
use std::ffi::c_int;
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

struct SharedQueue {
    srq: NonNull<ibv_srq>,
    domain: SystemDomain,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for SharedQueue {}
// SAFETY: as above; the library locks what several threads use at once.
unsafe impl Sync for SharedQueue {}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        let context = self.domain.context();
        if context.maker.is_here() {
            // SAFETY: queue pairs have a handle, so none is left. It exists until the call succeeds, after which there is no other.
            library::end("ibv_destroy_srq", || unsafe {
                (context.library.ibv_destroy_srq)(self.srq.as_ptr())
            });
        }
    }
}

/// A shared receive queue. It exists as long as a handle or a queue pair that uses it.
#[derive(Clone)]
pub struct SystemSrq(Arc<SharedQueue>);

impl SystemDomain {
    /// Makes a shared receive queue, with its number in events.
    ///
    /// # Errors
    /// The device has none, or a limit is reached.
    pub fn srq(&self, depth: u32, parts: u32, in_events: u32) -> Result<SystemSrq, Error> {
        let context = self.context();
        context.maker.check("srq")?;
        let attr = ibv_srq_attr { max_wr: depth, max_sge: parts, srq_limit: 0 };
        let srq_context = std::ptr::without_provenance_mut(in_events as usize);
        let mut init = ibv_srq_init_attr { srq_context, attr };
        // SAFETY: a domain, and attributes.
        let srq = unsafe { (context.library.ibv_create_srq)(self.pd(), &raw mut init) };
        let srq = NonNull::new(srq).ok_or_else(|| library::last_error("srq", "ibv_create_srq"))?;
        Ok(SystemSrq(Arc::new(SharedQueue { srq, domain: self.clone() })))
    }
}

impl SystemSrq {
    pub(crate) fn get(&self) -> *mut ibv_srq {
        self.0.srq.as_ptr()
    }

    pub(crate) fn domain(&self) -> &SystemDomain {
        &self.0.domain
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The device is gone, or the queue is the parent's of a fork.
    pub fn receive(&self, wr_id: u64, sges: &[Sge]) -> Result<(), Error> {
        let context = self.0.domain.context();
        context.maker.check("recv")?;
        let (sg_list, num_sge) = elements(sges);
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge };
        let mut bad = null_mut();
        // SAFETY: a queue, whose context's functions the library has set, and a request whose elements are there. The memory
        // that it names is in a slot, which keeps it until the request has ended.
        let returned = unsafe {
            let post = (*context.get()).ops.post_srq_recv;
            let none = || Error::new(Kind::Unsupported, "recv", "the device's provider has no post_srq_recv");
            post.ok_or_else(none)?(self.get(), &raw mut wr, &raw mut bad)
        };
        library::check("recv", "ibv_post_srq_recv", returned)
    }

    /// Asks for an event when fewer receives are left.
    ///
    /// # Errors
    /// The device refuses.
    pub fn low_water(&self, limit: u32) -> Result<(), Error> {
        let context = self.0.domain.context();
        context.maker.check("low_water")?;
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        // SAFETY: a queue, and attributes.
        let returned =
            unsafe { (context.library.ibv_modify_srq)(self.get(), &raw mut attr, IBV_SRQ_LIMIT as c_int) };
        library::check("low_water", "ibv_modify_srq", returned)
    }
}

impl fmt::Debug for SystemSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SystemSrq").field(&self.0.srq).finish()
    }
}
