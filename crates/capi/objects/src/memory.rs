//! Domains and memory.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::block;
use ferroce_abi::verbs::*;

block! {
    PdBlock: ibv_pd, "pd", |c| (c.context, c.handle);
    => ferroce_mem::Pd;
    /// Of a parent domain.
    td: Option<TdHold>,
}

impl PdBlock {
    /// A domain's block, not yet in a place of its own.
    pub fn new(context: *mut ibv_context, nic: Arc<ferroce_mem::Pd>, td: Option<TdHold>) -> Self {
        Self { c: ibv_pd { context, handle: nic.handle() }, nic, td }
    }

    /// The open device.
    pub fn context(&self) -> *mut ibv_context {
        self.c.context
    }
}

block! {
    /// A thread domain promises that one thread at a time uses its objects. That permits an adapter to leave locks out; it
    /// asks for nothing, and this one keeps them.
    TdBlock: ibv_td, "td", |c| (c.context, 0);
    /// Parent domains that hold it.
    users: AtomicUsize,
}

/// A parent domain's hold on its thread domain.
#[derive(Debug)]
pub struct TdHold(NonNull<ibv_td>);

impl TdHold {
    /// # Safety
    /// `td` is null or a thread domain.
    pub unsafe fn new(td: *mut ibv_td) -> Option<Self> {
        let hold = Self(NonNull::new(td)?);
        hold.users().fetch_add(1, Ordering::Relaxed);
        Some(hold)
    }

    fn users(&self) -> &AtomicUsize {
        // SAFETY: a thread domain isn't freed while it is held.
        unsafe { &self.0.cast::<TdBlock>().as_ref().users }
    }
}

impl Drop for TdHold {
    fn drop(&mut self) {
        self.users().fetch_sub(1, Ordering::Release);
    }
}

block! {
    MrBlock: ibv_mr, "mr", |c| (c.context, c.handle);
    => ferroce_mem::Mr;
    /// Of `ibv_reg_mr_ex` with a DMA handle.
    dmah: OnceLock<DmahHold>,
}

impl MrBlock {
    /// Keeps a region's DMA handle from being deallocated until the region is gone.
    pub fn keep(&self, dmah: DmahHold) {
        let _ = self.dmah.set(dmah);
    }
}

block! {
    DmBlock: ibv_dm, "dm", |c| (c.context, c.handle);
    => ferroce_mem::Dm;
}

block! {
    DmahBlock: ibv_dmah, "dmah", |c| (c.context, 0);
    /// Regions that hold it have a clone.
    users: Arc<()>,
}

/// A region's hold on its handle.
pub struct DmahHold {
    _users: Arc<()>,
}

impl DmahBlock {
    /// Keeps the handle from being deallocated.
    pub fn hold(&self) -> DmahHold {
        DmahHold { _users: Arc::clone(&self.users) }
    }
}
