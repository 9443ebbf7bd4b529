//! The progress engine: one per process, shared by all its device contexts.
//!
//! In here: who owns which QPN, the paths between QPs, who moves packets and when (pollers under a lease, else the
//! background thread), and timers.
//! Out of here: the transport (`ferroce_proto`), sockets (`udp`), the host's other processes (`rendezvous`).

mod addresses;
mod descriptors;
mod dispatch;
mod events;
mod handoff;
mod lease;
mod local;
mod multicast;
mod qps;
mod raw;
mod registry;
mod rings;
mod srqs;
mod taps;
mod thread;
mod timers;
mod work;

pub(crate) use addresses::Share;
pub(crate) use events::schedule_event;
pub(crate) use handoff::{Deadline, Inbox, Queued, Runnable};
pub(crate) use lease::progress_of_poller;
pub use lease::{WaitPlan, prepare_wait, progress_of_waiter};
pub(crate) use local::Record;
pub use multicast::{MAX_ATTACHED, MAX_GROUPS};
pub(crate) use registry::{
    contexts, domain, existing, register_context, register_qp, register_raw_qp, register_wq, unregister_qp,
    unregister_raw_qp, unregister_wq,
};
pub(crate) use thread::start_thread;
pub(crate) use work::Work;

pub(crate) use crate::fork::generation;

use crate::error::{Error, Result};
use crate::fork::{self, ChildStep};
use crate::gids;
use crate::host::Host;
use crate::listed_regions::ListedRegions;
use crate::mem::KeyTable;
use crate::qp::Qp;
use crate::shm::Links;
use crate::sync::{Mutex, class};
use crate::sys::{self, EngineFd};
use crate::xrc::{self, Elsewhere};
use addresses::Addresses;
use descriptors::Descriptors;
use events::Events;
use handoff::{Deadlines, RunQueue, Sleep};
use lease::Lease;
use multicast::Multicast;
use qps::QpTable;
use raw::RawPorts;
use srqs::SrqTable;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use taps::Taps;
use thread::Control;
use work::{HandsOn, WorkPool};

/// The process's engine. It lives as long as the process: nothing of it runs in exit handlers.
pub(crate) struct Engine {
    generation: u32,
    rendezvous: Arc<Host>,
    addresses: Addresses,
    multicast: Multicast,
    qps: QpTable,
    srqs: SrqTable,
    /// SRQs of other processes.
    elsewhere: Elsewhere,
    timers: Deadlines,
    /// Completion events that come later.
    events: Events,
    run_queue: RunQueue<Qp>,
    sleep: Sleep,
    works: WorkPool,
    taps: Option<&'static Taps>,
    lease: Lease,
    /// Shared memory with the host's other processes.
    links: Arc<Links>,
    /// An epoll of the RoCE sockets and the links' connections: the background thread, and whoever waits for a completion event, sleeps on it.
    sockets: EngineFd,
    /// The packet sockets of raw QPs.
    raw: RawPorts,
    /// What only the background thread looks after.
    control: Control,
    descriptors: Descriptors,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("generation", &self.generation).finish_non_exhaustive()
    }
}

static CURRENT: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: Mutex<class::Starting, ()> = Mutex::new(());

/// The engine of this process, if it has one.
pub(crate) fn current() -> Option<&'static Engine> {
    let engine = CURRENT.load(Ordering::Acquire);
    // SAFETY: null, or a leaked box, which nobody frees.
    unsafe { engine.as_ref() }
}

/// In the child of a fork, where the engine's threads and descriptors aren't. The engine is left as it is.
fn forget_after_fork() {
    CURRENT.store(std::ptr::null_mut(), Ordering::Release);
    registry::free_critical_regions();
}

/// The engine of this process; the first call makes it.
///
/// # Errors
/// What kept the process from joining the host's others.
pub(crate) fn start() -> Result<&'static Engine> {
    if let Some(engine) = current() {
        return Ok(engine);
    }
    let _starting = STARTING.lock();
    if let Some(engine) = current() {
        return Ok(engine);
    }
    fork::install();
    fork::register(ChildStep::Engine, forget_after_fork);
    sys::protect_engine_fds();
    let taps = Taps::from_env();
    let lossless = !addresses::udp_only() && !taps.is_some_and(Taps::has_faults);
    let links = Links::new(lossless, taps.is_some_and(Taps::has_capture))?;
    KeyTable::global().list_in(&ListedRegions);
    let engine: &'static Engine = Box::leak(Box::new(Engine {
        generation: generation(),
        rendezvous: Host::join()?,
        addresses: Addresses::default(),
        multicast: Multicast::default(),
        qps: QpTable::default(),
        srqs: SrqTable::default(),
        elsewhere: Elsewhere::new()?,
        timers: Deadlines::default(),
        events: Events::default(),
        run_queue: RunQueue::default(),
        sleep: Sleep::default(),
        works: WorkPool::new(taps),
        taps,
        lease: Lease::default(),
        links,
        sockets: sys::epoll_create().map_err(Error::os("epoll_create1"))?,
        raw: RawPorts::default(),
        control: Control::new()?,
        descriptors: Descriptors::default(),
    }));
    let services = engine.rendezvous.services();
    engine.links.register(services);
    xrc::register(services);
    gids::register(services);
    engine.control.watch(engine.rendezvous.poll_fd())?;
    engine.control.watch(engine.elsewhere.poll_fd())?;
    engine.watch_links()?;
    thread::spawn(engine)?;
    CURRENT.store(std::ptr::from_ref(engine).cast_mut(), Ordering::Release);
    Ok(engine)
}

impl Engine {
    /// How many forks lie between the first process and this engine's.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn elsewhere(&self) -> &Elsewhere {
        &self.elsewhere
    }

    /// A connection to the process that holds a slot.
    pub(crate) fn dial(&self, slot: u16) -> Option<EngineFd> {
        self.rendezvous.dial(slot)
    }

    /// A number is of one of this process's slots.
    pub(crate) fn owns(&self, number: u32) -> bool {
        self.rendezvous.owns(number)
    }

    /// Answers other processes while a thread waits for one of them.
    pub(crate) fn answer_requests(&self) {
        self.rendezvous.answer_requests();
    }

    /// Runs `f` with a set of buffers, then lets the QPs of this process work to which `f` has sent something.
    pub(crate) fn with_work<R>(&'static self, f: impl FnOnce(&mut Work) -> R) -> R {
        let mut work = self.works.take();
        let unwinding = HandsOn { engine: self, work: &mut work };
        let result = f(unwinding.work);
        self.deliver_local(unwinding.work);
        self.find_ways(unwinding.work);
        std::mem::forget(unwinding);
        self.works.put(work);
        self.wake_for_taps();
        result
    }

    /// Finds out what a QP at work wanted to know; it may take a while, so no QP is locked. Who waits stays in its list until
    /// then, so that a panic hands it on.
    fn find_ways(&'static self, work: &mut Work) {
        loop {
            if let Some((qp, srqn)) = work.wanted.first().cloned() {
                qp.reach(work, srqn);
                work.wanted.remove(0);
            } else if let Some((qp, ah, qpn)) = work.unknown.first().cloned() {
                ah.find_path(self, qpn);
                qp.work(work, crate::clock::now(), |_, _| ());
                work.unknown.remove(0);
            } else if let Some(qp) = work.falling.first().cloned() {
                qp.fall_back(work, crate::clock::now());
                work.falling.remove(0);
            } else {
                return;
            }
            self.deliver_local(work);
        }
    }

    /// Has more to do when others have had their turn.
    pub(crate) fn enqueue(&self, qp: &Arc<Qp>) {
        if self.run_queue.push(qp) {
            self.wake_for(crate::clock::now());
        }
    }
}
