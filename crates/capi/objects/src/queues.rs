//! Queues, and the channels of their events.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::zeroed;
use std::sync::Arc;

use ferroce_parts::settings;

use super::{Headed as _, PdBlock, block, next_handle};
use ferroce_abi::verbs::*;
use ferroce_check::{CqWatch, SrqWatch};
use ferroce_entry::call::Outcome;

block! {
    ChannelBlock: ibv_comp_channel, "channel", |c| (c.context, 0);
    => ferroce_queues::CompChannel;
}

block! {
    /// The adapter's queues are all alike; the extended part of the C structure is used by those that were made with
    /// `ibv_create_cq_ex`.
    CqBlock: ibv_cq_ex as ibv_cq, "cq", |c| (c.context, c.handle);
    => ferroce_queues::Cq;
    /// The completion that the iterator of an extended queue stands on.
    current: UnsafeCell<ibv_wc>,
    /// What was recorded with it.
    stamp: UnsafeCell<ferroce_queues::Stamp>,
    /// The program promises to use an extended queue from one thread at a time.
    single_threaded: bool,
    /// For the checker.
    watch: Option<Arc<CqWatch>>,
}

impl CqBlock {
    /// What the checker knows of it, if there is one.
    pub fn watch(&self) -> Option<&Arc<CqWatch>> {
        self.watch.as_ref()
    }
}

block! {
    SrqBlock: ibv_srq, "srq", |c| (c.context, c.handle);
    => ferroce_queues::Srq;
    /// With `--check=memory`.
    watch: Option<Arc<SrqWatch>>,
}

impl SrqBlock {
    /// What the checker knows of it.
    pub fn watch(&self) -> Option<&Arc<SrqWatch>> {
        self.watch.as_ref()
    }

    /// A block around what `make` makes of a domain, sizes and a user handle. `cq`: where the queue completes into by itself.
    ///
    /// # Safety
    /// `pd` is null or a domain.
    pub unsafe fn make(
        pd: *mut ibv_pd,
        cq: Option<&CqBlock>,
        srq_context: *mut c_void,
        attr: &mut ibv_srq_attr,
        make: impl FnOnce(
            &Arc<ferroce_mem::Pd>,
            ferroce_queues::SrqAttr,
            usize,
        ) -> ferroce_types::Result<Arc<ferroce_queues::Srq>>,
    ) -> Outcome<*mut ibv_srq> {
        // SAFETY: the caller's promise.
        let domain = unsafe { PdBlock::checked(pd) }?;
        // By the man page the limit is ignored here.
        let wanted = ferroce_queues::SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: 0 };
        Self::allocate(|user_handle| {
            let nic = make(domain.nic(), wanted, user_handle)?;
            let actual = nic.query();
            attr.max_wr = actual.max_wr;
            attr.max_sge = actual.max_sge;
            // SAFETY: numbers, pointers and pthread objects, for all of which zeros are valid.
            let mut c: ibv_srq = unsafe { zeroed() };
            c.context = domain.context();
            c.srq_context = srq_context;
            c.pd = pd;
            c.handle = next_handle();
            let cq = cq.and_then(CqBlock::watch).map(|watch| &**watch);
            let watch = settings::checks_memory().then(|| SrqWatch::new(&nic, cq));
            Ok(Self { c, nic, watch })
        })
    }
}

block! {
    WqBlock: ibv_wq, "wq", |c| (c.context, c.handle);
    => ferroce_raw::Wq;
    /// Elements of a request, at most.
    max_sge: u32,
}

impl WqBlock {
    /// Elements of a request, at most.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }
}
