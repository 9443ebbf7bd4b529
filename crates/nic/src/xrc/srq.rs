//! Shared receive queues of an XRC domain: what ibv_create_srq_ex(3) makes with IBV_SRQT_XRC.

use super::Xrcd;
use crate::adapter;
use ferroce_mem::{Pd, is_same};
use ferroce_queues::{Cq, NewSrq, Srq, SrqAttr, SrqRegistration};
use ferroce_types::{Result, invalid};
use std::sync::Arc;

/// An SRQ's place in its domain.
#[derive(Debug)]
struct InDomain {
    xrcd: Arc<Xrcd>,
    number: u32,
}

impl SrqRegistration for InDomain {
    fn end(&self) {
        if let Some(adapter) = adapter::current() {
            adapter.srqs.remove(self.number);
        }
        self.xrcd.release();
    }
}

impl Xrcd {
    /// A new SRQ in `pd` for the targets of the domain. Completions of its receives go to `cq`.
    ///
    /// # Errors
    /// [`ferroce_types::Error::Invalid`] for sizes out of bounds or objects of another device context;
    /// [`ferroce_types::Error::NoMemory`] when this process's numbers are used up.
    pub fn create_srq(
        self: &Arc<Self>,
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        attr: SrqAttr,
        user_handle: usize,
    ) -> Result<Arc<Srq>> {
        if !cq.shares_context_with(pd) || !is_same(&*self.context, &**pd.owner()) {
            return invalid!("a completion queue or XRC domain of another device context");
        }
        let new = NewSrq::new(pd, attr)?;
        let adapter = self.context.adapter()?;
        let srq = adapter.srqs.add(&adapter.host.slots(), (self, self.domain()), |number| {
            new.numbered(cq, user_handle, number, Box::new(InDomain { xrcd: self.clone(), number }))
        })?;
        self.hold();
        Ok(srq)
    }
}
