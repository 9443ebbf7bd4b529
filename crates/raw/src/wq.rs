//! Receive queues for Ethernet frames: a raw QP's own, and the work queues of receive-side scaling (ibv_create_wq(3)).

use super::frame::{IncomingFrame, TAG_AT};
use ferroce_mem::{Pd, QueueKind};
use ferroce_nic::qp::scatter;
use ferroce_nic::{Adapter, OfContext as _};
use ferroce_os::{
    fork,
    sync::{Mutex, class},
};
use ferroce_queues::late::{self, Late};
use ferroce_queues::{Cq, Limits, RecvQueue, Unacked, WcTags};
use ferroce_types::{AsyncEvent, Completion, RecvWqe, Result, Users, WcOpcode, WcStatus, invalid};
use std::sync::Arc;

/// State of a work queue; discriminants are those of `enum ibv_wq_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // ibv_modify_wq(3)
pub enum WqState {
    Reset = 0,
    Rdy = 1,
    Err = 2,
}

/// What a queue does with requests and frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WqPhase {
    /// Takes neither.
    Reset,
    /// Takes requests.
    Init,
    /// Takes both.
    Ready,
    /// Flushes requests.
    Error,
}

/// The owner of a queue, which gets its events.
#[derive(Clone, Copy, Debug)]
pub(super) enum WqOwner {
    Program,
    Qp(u32),
}

/// What a new work queue is made of.
#[derive(Clone, Debug)]
pub struct WqInit {
    /// Where its completions go.
    pub cq: Arc<Cq>,
    /// Work requests it holds.
    pub max_wr: u32,
    /// Elements a work request may have.
    pub max_sge: u32,
    /// Takes the first VLAN tag out of frames (IBV_WQ_FLAGS_CVLAN_STRIPPING).
    pub cvlan_stripping: bool,
    /// Comes back with events.
    pub user_handle: usize,
}

struct LockedWq {
    phase: WqPhase,
    queue: RecvQueue,
    cvlan_stripping: bool,
}

/// A receive queue.
pub struct Wq {
    number: u32,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    owner: WqOwner,
    user_handle: usize,
    adapter: &'static Adapter,
    inner: Mutex<class::Wq, LockedWq>,
    users: Users,
    unacked_async: Unacked,
}

impl std::fmt::Debug for Wq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wq").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Wq {
    /// A new work queue in RESET.
    ///
    /// # Errors
    /// [`ferroce_types::Error::Invalid`] for sizes out of bounds or a completion queue of another device context.
    pub fn create(pd: &Arc<Pd>, init: WqInit) -> Result<Arc<Self>> {
        if init.max_wr == 0 {
            return invalid!("a work queue without room for work requests");
        }
        Self::new(pd, init, WqOwner::Program)
    }

    pub(super) fn new(pd: &Arc<Pd>, init: WqInit, owner: WqOwner) -> Result<Arc<Self>> {
        let WqInit { cq, max_wr, max_sge, cvlan_stripping, user_handle } = init;
        let Limits { wr, sge, .. } = *Limits::get();
        if max_wr > wr || max_sge > sge {
            return invalid!(
                "a receive queue of {max_wr} work requests with {max_sge} elements: at most {wr} with {sge}"
            );
        }
        if !cq.shares_context_with(pd) {
            return invalid!("a completion queue of another device context");
        }
        let adapter = pd.context().adapter()?;
        let queue = RecvQueue::new(pd, QueueKind::Receive, max_wr, max_sge)?;
        let number = match owner {
            WqOwner::Program => adapter.reserve_qpn()?,
            WqOwner::Qp(qpn) => qpn,
        };
        pd.hold();
        cq.hold();
        Ok(Arc::new(Self {
            number,
            pd: pd.clone(),
            cq,
            owner,
            user_handle,
            adapter,
            inner: Mutex::new(LockedWq { phase: WqPhase::Reset, queue, cvlan_stripping }),
            users: Users::default(),
            unacked_async: Unacked::default(),
        }))
    }

    /// Its number: completions of its requests have it as their QPN.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The user handle given at its creation.
    #[must_use]
    pub fn user_handle(&self) -> usize {
        self.user_handle
    }

    /// Its protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Asynchronous events that the program has to acknowledge.
    #[must_use]
    pub fn unacked_async(&self) -> &Unacked {
        &self.unacked_async
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> WqState {
        match self.phase() {
            WqPhase::Reset | WqPhase::Init => WqState::Reset,
            WqPhase::Ready => WqState::Rdy,
            WqPhase::Error => WqState::Err,
        }
    }

    /// Changes state and, or, VLAN stripping (ibv_modify_wq(3)). `current`: the state that the caller takes it to be in.
    ///
    /// # Errors
    /// [`ferroce_types::Error::Invalid`] when it is in another state, or for a way that states don't go.
    pub fn modify(
        &self,
        state: Option<WqState>,
        current: Option<WqState>,
        cvlan_stripping: Option<bool>,
    ) -> Result<()> {
        let from = self.state();
        if current.is_some_and(|current| current != from) {
            return invalid!("the work queue is in state {from:?}, not {current:?}");
        }
        let phase = match (from, state) {
            (_, None) => None,
            (_, Some(WqState::Reset)) => Some(WqPhase::Reset),
            (_, Some(WqState::Err)) => Some(WqPhase::Error),
            (WqState::Reset | WqState::Rdy, Some(WqState::Rdy)) => Some(WqPhase::Ready),
            (WqState::Err, Some(WqState::Rdy)) => {
                return invalid!("a work queue goes from ERR to RESET only");
            }
        };
        if let Some(stripping) = cvlan_stripping {
            self.inner.lock().cvlan_stripping = stripping;
        }
        if let Some(phase) = phase {
            self.enter(phase);
        }
        Ok(())
    }

    pub(super) fn phase(&self) -> WqPhase {
        if self.adapter.generation() == fork::generation() { self.inner.lock().phase } else { WqPhase::Error }
    }

    /// Changes the phase; flushes what is posted, or drops it with its completions.
    pub(super) fn enter(&self, phase: WqPhase) {
        let mut inner = self.inner.lock();
        inner.phase = phase;
        match phase {
            WqPhase::Reset => {
                inner.queue.clear();
                self.cq.forget_qp(self.number);
            }
            WqPhase::Error => self.flush(&mut inner),
            WqPhase::Init | WqPhase::Ready => {}
        }
    }

    fn flush(&self, inner: &mut LockedWq) {
        while let Some(wqe) = inner.queue.pop() {
            // The queue is in ERR already: an overrun, which the completion queue reports by an event, changes nothing about it.
            let _ = self.complete(wqe.wr_id, WcStatus::WrFlushErr, 0, false, WcTags::default());
        }
    }

    /// Posts a receive request (ibv_post_wq_recv(3)).
    ///
    /// # Errors
    /// [`ferroce_types::Error::Invalid`] in RESET or for too many elements; [`ferroce_types::Error::NoMemory`] when the queue is full.
    pub fn post(&self, wqe: RecvWqe) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.phase == WqPhase::Reset {
            return invalid!("a receive request in state RESET");
        }
        inner.queue.push(wqe)?;
        if inner.phase == WqPhase::Error || self.adapter.generation() != fork::generation() {
            self.flush(&mut inner);
        }
        Ok(())
    }

    /// Takes a frame that a flow has steered here. Without a receive request it is dropped.
    pub(super) fn receive(&self, frame: &IncomingFrame<'_>, flow_tag: u32) {
        let mut inner = self.inner.lock();
        if inner.phase != WqPhase::Ready {
            return;
        }
        let Some(wqe) = inner.queue.pop() else {
            tracing::trace!(number = self.number, "a frame finds no receive request");
            return;
        };
        let (parts, cvlan) = match frame.stripped().filter(|_| inner.cvlan_stripping) {
            Some(stripped) => stripped,
            None => (frame.bytes.split_at(TAG_AT).into(), 0),
        };
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let status = if len as u64 > wqe.capacity() {
            WcStatus::LocLenErr
        } else {
            let pd = self.pd.id();
            let placed = if len == frame.bytes.len() {
                scatter(pd, &wqe.sges, 0, &frame.bytes.into())
            } else {
                scatter(pd, &wqe.sges, 0, &parts[0].into())
                    .and_then(|()| scatter(pd, &wqe.sges, TAG_AT as u64, &parts[1].into()))
            };
            if placed.is_ok() { WcStatus::Success } else { WcStatus::LocProtErr }
        };
        let tags = WcTags { cvlan, flow_tag, ..WcTags::default() };
        let reported = self.complete(wqe.wr_id, status, len as u32, frame.checksums_ok, tags);
        if status != WcStatus::Success || !reported {
            inner.phase = WqPhase::Error;
            self.flush(&mut inner);
            drop(inner);
            self.pd.owner().raise(match self.owner {
                WqOwner::Qp(_) => AsyncEvent::QpFatal(self.user_handle),
                WqOwner::Program => AsyncEvent::WqFatal(self.user_handle),
            });
        }
    }

    /// False when the completion queue has overrun.
    fn complete(&self, wr_id: u64, status: WcStatus, len: u32, checksums_ok: bool, tags: WcTags) -> bool {
        let completion = Completion::new(wr_id, status, WcOpcode::Recv).with_checksums_ok(checksums_ok);
        self.cq.push_tagged(Completion { byte_len: len, qp_num: self.number, ..completion }, tags)
    }

    pub(super) fn hold(&self) {
        self.users.hold();
    }

    pub(super) fn release(&self) {
        self.users.release();
    }

    /// Ends the queue (ibv_destroy_wq(3)).
    ///
    /// # Errors
    /// [`ferroce_types::Error::Busy`] while an indirection table names it.
    pub fn destroy(self: &Arc<Self>) -> Result<()> {
        self.users.check_none("the work queue is still in entries of indirection tables")?;
        self.end();
        Ok(())
    }

    pub(super) fn end(self: &Arc<Self>) {
        self.enter(WqPhase::Reset);
        let queue = self.inner.lock().queue.take();
        drop(queue);
        if let WqOwner::Program = self.owner {
            self.adapter.free_qpn(self.number);
            self.pd.owner().withdraw(self.user_handle);
            self.unacked_async.wait(|count| late::tell(Late::OfWq, count));
        }
        self.cq.release();
        self.pd.release();
    }
}
