//! Shared receive queues.

use crate::device::NativeDomain;
use crate::library;
use ferroce_buffers::Error;
use ferroce_queues::{Srq, SrqAttr};
use ferroce_types::{RecvWqe, Sge, sge_list};
use std::fmt;
use std::sync::Arc;

struct Inner {
    srq: Arc<Srq>,
    domain: NativeDomain,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Queue pairs have a handle, so none is left.
        library::until_done("destroy", || self.srq.destroy());
    }
}

/// A shared receive queue. It exists as long as a handle or a queue pair that uses it.
#[derive(Clone)]
pub struct NativeSrq(Arc<Inner>);

impl NativeDomain {
    /// Makes a shared receive queue, with its number in events.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn srq(&self, depth: u32, parts: u32, in_events: u32) -> Result<NativeSrq, Error> {
        let _inside = library::enter("srq")?;
        let attr = SrqAttr { max_wr: depth, max_sge: parts, limit: 0 };
        let srq = Srq::create(self.pd(), attr, in_events as usize)
            .map_err(|error| library::error("srq", &error))?;
        Ok(NativeSrq(Arc::new(Inner { srq, domain: self.clone() })))
    }
}

impl NativeSrq {
    pub(crate) fn inner(&self) -> &Arc<Srq> {
        &self.0.srq
    }

    pub(crate) fn domain(&self) -> &NativeDomain {
        &self.0.domain
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The process can't use the adapter.
    pub fn receive(&self, wr_id: u64, sges: &[Sge]) -> Result<(), Error> {
        let _inside = library::enter("recv")?;
        self.0
            .srq
            .post(RecvWqe { wr_id, sges: sge_list(sges) })
            .map_err(|error| library::error("recv", &error))
    }

    /// Asks for an event when fewer receives are left.
    ///
    /// # Errors
    /// The queue isn't so long.
    pub fn low_water(&self, limit: u32) -> Result<(), Error> {
        let _inside = library::enter("low_water")?;
        self.0.srq.modify(None, Some(limit)).map_err(|error| library::error("low_water", &error))
    }
}

impl fmt::Debug for NativeSrq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeSrq({})", self.0.srq.serial())
    }
}
