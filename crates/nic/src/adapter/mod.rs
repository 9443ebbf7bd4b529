//! The adapter: what a process has of it once, shared by all its device contexts.
//!
//! In here: the composition of the progress engine, the host's other processes, the fabrics and the numbers; every object
//! that the process has made; threads' buffers; news of the network.
//! Out of here: which threads make progress and when (`engine`), which way leads to a QP (`fabric`), verbs objects.

mod network;
mod registry;
mod work;

pub(crate) use registry::{contexts, domain, qps_of, register_context, register_qp, unregister_qp};
pub(crate) use work::ThreadBuffers;

use crate::qp::{Bringing, Qp};
use crate::xrc::Xrcd;
use ferroce_engine::{Loop, Pool, WaitPlan};
use ferroce_hostlink::LinkWithWork;
use ferroce_network::Network;
use ferroce_os::{fork::InChild, sync::Global};
use ferroce_parts::traced::Tracing;
use ferroce_parts::{QpTable, frame_qps};
use ferroce_queues::Cq;
use ferroce_types::{Instant, Result};
use ferroce_xrc::{Connections, SrqTable};
use network::NetworkMonitor;
pub(crate) use network::NetworkSource;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;
use work::HandsOn;

/// The process's adapter. It lives as long as the process: nothing of it runs in exit handlers.
pub struct Adapter {
    network: Network<Adapter>,
    qps: QpTable<Qp>,
    pub(crate) srqs: SrqTable<Xrcd>,
    /// Connections of XRC targets with other processes.
    pub(crate) xrc: Connections<Qp>,
    works: Pool<Box<ThreadBuffers>>,
    /// Packets have come since the background thread asked last.
    pub(crate) has_arrived: AtomicBool,
    monitor: NetworkMonitor,
    pub(crate) tracing: Tracing,
    /// Bytes of packets that wait for memory.
    pub(crate) waiting_bytes: AtomicUsize,
    bringing: Bringing,
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Adapter").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// The adapter is the process's part of the network, and has queue pairs.
impl Deref for Adapter {
    type Target = Network<Self>;

    #[inline]
    fn deref(&self) -> &Network<Self> {
        &self.network
    }
}

static CURRENT: Global<Adapter> = Global::new();

/// The adapter of this process, if it has one.
#[inline]
pub(crate) fn current() -> Option<&'static Adapter> {
    CURRENT.get()
}

/// In the child of a fork, where the adapter's threads and descriptors aren't. The adapter is left as it is.
pub(crate) fn forget_after_fork(child: &InChild) {
    CURRENT.clear();
    registry::free_critical_regions(child);
    if let Some(qps) = frame_qps() {
        qps.after_fork(child);
    }
    ferroce_mem::forget_requests_after_fork(child);
}

impl Adapter {
    /// An adapter without sources, services and a thread.
    ///
    /// # Errors
    /// What kept the process from joining the host's others.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            network: Network::new()?,
            qps: QpTable::default(),
            srqs: SrqTable::default(),
            xrc: Connections::new()?,
            works: Pool::default(),
            has_arrived: AtomicBool::new(false),
            monitor: NetworkMonitor::open(),
            tracing: Tracing::default(),
            waiting_bytes: AtomicUsize::new(0),
            bringing: Bringing::default(),
        })
    }

    /// It is the process's from here on, until a fork.
    pub(crate) fn make_current(&'static self) {
        CURRENT.set(self);
    }
}

/// Progress on behalf of a thread in ibv_poll_cq(3). `empty`: it found nothing. `sleeper`: it has asked for an event. `read_rings` is
/// [`Adapter::read_rings`], for this thread.
#[inline(always)]
pub(crate) fn progress_of_poller(
    empty: bool,
    sleeper: bool,
    read_rings: impl FnOnce(&'static Adapter, LinkWithWork) -> bool,
) {
    if let Some(adapter) = current() {
        // Of all sources, the links alone lie in memory.
        Loop::progress_of_poller(adapter, empty, sleeper, || {
            let work = adapter.links.next_with_work(0);
            work.is_some_and(|first| read_rings(adapter, first))
        });
    }
}

/// The program has asked for an event of one more queue, or of one less, and may sleep until it comes.
pub(crate) fn expect_sleeper(is_one_more: bool) {
    match current() {
        Some(adapter) if is_one_more => adapter.engine.expect_sleeper(),
        Some(adapter) => adapter.engine.forget_sleeper(),
        None => {}
    }
}

/// Makes progress and returns the descriptors and the timeout with which a thread waits for a completion event; `None` if it `has_event`
/// meanwhile. `may_wait` is asked if there is none: whether the call blocks until there is one. The caller polls, without a lock and
/// without anything that needs a destructor (it may be cancelled there), then calls [`progress_of_waiter`].
#[must_use]
pub fn prepare_wait(
    channel: RawFd,
    may_wait: impl FnOnce() -> bool,
    has_event: impl Fn() -> bool,
) -> Option<WaitPlan> {
    match current() {
        Some(adapter) => Loop::prepare_wait(adapter, channel, may_wait, has_event),
        None => {
            may_wait();
            Some(WaitPlan { fds: [channel, -1], timeout: Duration::from_secs(3600) })
        }
    }
}

/// Progress on behalf of a thread that has waited with the plan of [`prepare_wait`]. `readable`: the second descriptor woke it.
pub fn progress_of_waiter(readable: bool) {
    if let Some(adapter) = current() {
        Loop::progress_of_waiter(adapter, readable);
    }
}

/// Looks at `cq` when `at` has come.
pub(crate) fn schedule_event(cq: &Arc<Cq>, at: Instant) {
    if let Some(adapter) = current() {
        adapter.engine.schedule_alarm(cq, at);
    }
}

impl Adapter {
    /// Gives a new QP a number.
    ///
    /// # Errors
    /// ENOMEM when the device's QPs or the host's slots are used up.
    pub(crate) fn add_qp(&self, make: impl FnOnce(u32) -> Arc<Qp>) -> Result<Arc<Qp>> {
        self.qps.add(|is_known| self.one_more_slot(is_known), make)
    }

    /// Gives a number to a QP or queue for which no packets come.
    ///
    /// # Errors
    /// ENOMEM when the device's QPs or the host's slots are used up.
    pub fn reserve_qpn(&self) -> Result<u32> {
        self.qps.reserve(|is_known| self.one_more_slot(is_known))
    }

    /// A slot of this process that isn't known.
    fn one_more_slot(&self, is_known: &dyn Fn(u16) -> bool) -> Result<u16> {
        let fresh = self.host.slots().into_iter().find(|&slot| !is_known(slot));
        let slot = match fresh {
            Some(slot) => slot,
            None => self.host.claim_slot()?,
        };
        if let Some(directory) = self.links.own() {
            directory.add_slot(slot);
        }
        self.watch_slots()?;
        Ok(slot)
    }

    /// Frees the number of a QP, if the number is this QP's.
    pub(crate) fn remove_qp(&self, qp: &Arc<Qp>) {
        self.qps.remove(qp);
    }

    /// Frees a number that [`Adapter::reserve_qpn`] has given.
    pub fn free_qpn(&self, qpn: u32) {
        self.qps.free(qpn);
    }

    /// The QP with this number, if it is of this process.
    #[inline]
    pub(crate) fn qp(&self, qpn: u32) -> Option<Arc<Qp>> {
        self.qps.get(qpn)
    }

    /// Runs `f` with a set of buffers, then takes what `f` has sent to QPs of this process.
    pub(crate) fn with_work<R>(&'static self, f: impl FnOnce(&mut ThreadBuffers) -> R) -> R {
        let mut work = self.works.take(|| Box::new(ThreadBuffers::sending_through(self.taps)));
        let unwinding = HandsOn { adapter: self, work: &mut work };
        let result = f(unwinding.work);
        self.take_left(unwinding.work);
        if unwinding.work.has_ways_to_find() {
            self.find_ways(unwinding.work);
        }
        if !unwinding.work.absent.is_empty() {
            self.bringing.bring(unwinding.work);
        }
        if !unwinding.work.said.is_empty() {
            ferroce_parts::voice::say(&mut unwinding.work.said);
        }
        std::mem::forget(unwinding);
        self.works.put(work);
        self.wake_for_taps();
        result
    }

    /// Finds the processes and paths that QPs have asked for while they worked. It may take a while, so no QP is locked. A QP stays in its
    /// list until its answer is there, so that a panic hands it on.
    #[cold]
    fn find_ways(&'static self, work: &mut ThreadBuffers) {
        loop {
            if let Some((qp, srqn)) = work.unconnected.first().cloned() {
                qp.connect_srq_process(work, srqn);
                work.unconnected.remove(0);
            } else if let Some((qp, ah, qpn)) = work.unresolved.first().cloned() {
                self.find_path(&ah, qpn);
                qp.work(work, ferroce_os::clock::now(), |_, _| ());
                work.unresolved.remove(0);
            } else if let Some(qp) = work.falling_back.first().cloned() {
                qp.fall_back(work, ferroce_os::clock::now());
                work.falling_back.remove(0);
            } else {
                return;
            }
            self.take_left(work);
        }
    }

    fn take_left(&'static self, work: &mut ThreadBuffers) {
        if std::mem::take(&mut work.left_here) {
            self.take_what_was_left();
        }
    }

    /// Gives `qp` another turn, after the QPs that wait in the run queue.
    pub(crate) fn enqueue(&self, qp: &Arc<Qp>) {
        self.engine.enqueue(qp);
    }

    /// Lets `qp` work when `at` has come. The caller holds the QP's lock.
    #[inline]
    pub(crate) fn schedule(&self, qp: &Qp, at: Instant) {
        self.engine.schedule(&qp.deadline, at, qp.qpn());
    }
}
