//! Queue pairs: the transport's state machine with its queues, keys, path and events around it.
//!
//! In here: creation, attributes, posting, and the one place where a QP's lock is taken to let the transport work.
//! Out of here: the transport itself (`ferroce_proto`), sockets, threads.

mod broken;
mod create;
pub mod ece;
mod env;
mod fabric;
mod fetch;
mod look;
mod modify;
mod multicast;
mod observers;
mod offers;
mod one_sided;
mod payload;
mod plain;
mod post;
mod received;
mod short;
mod waiting;
mod work;
mod wr_session;
mod xrc_backlog;
mod xrc_target;

pub use create::{QpCap, QpInit};
pub(crate) use env::{PacketOrigin, QpEnv, is_middle};
use env::{operation_of_request, state_of};
pub(crate) use modify::HELD_UP;
pub use modify::wait_for_work;
pub use payload::{RxPayload, gather, scatter};
pub use post::Poster;
pub(crate) use received::ReceiveCompletions;
use waiting::AwaitedMemory;
pub(crate) use waiting::{AwaitingQp, Bringing, WaitingPackets};
pub use wr_session::{GatheredWrs, WrSession};
pub(crate) use xrc_backlog::Lost;

use crate::adapter::Adapter;
use fabric::Listing;
use ferroce_engine::{Deadline, Job, Queued, Runnable};
use ferroce_mem::Pd;
use ferroce_os::fork::Turn;
use ferroce_os::sync::{Mutex, class};
use ferroce_parts::{Ah, HasQpn, KeptOfQp, Path, QpAttr, UnackedPace, UnreadRecords};
use ferroce_proto::{Counters, SendWr};
use ferroce_queues::{CompCntr, Cq, RecvQueue, Srq, Unacked};
use ferroce_types::{Instant, QpState, Result, invalid};
use ferroce_wire::Service;
use ferroce_xrc::Domain;
use observers::Observers;
use offers::Offering;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

struct LockedQp {
    /// Unlike that of any other connection of the process's life; another after RESET.
    connection: u64,
    /// It has been connected before: packets of that connection may be on their way.
    was_reset: bool,
    /// What a broken QP still has is flushed, or was tried to be.
    flushed: bool,
    proto: ferroce_proto::QpProtocol<Arc<Ah>>,
    attr: QpAttr,
    path: Option<Path>,
    /// The last try to go by UDP instead has failed.
    udp_failed: bool,
    listing: Listing,
    /// The directory shows that this QP owes its peer answers.
    owes: bool,
    xrc_target: xrc_target::XrcTargetSlot,
    unacked_pace: UnackedPace,
    unread: UnreadRecords,
    /// Receive completions that wait for their acknowledgement to leave.
    held: ReceiveCompletions,
    /// Packets that wait for memory.
    waiting: WaitingPackets,
    /// Packets that wait for those before them.
    kept: KeptOfQp,
    /// Options agreed with the peer.
    ece: Option<u32>,
}

/// The number of a new connection.
fn next_connection() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A queue pair (ibv_create_qp(3)).
pub struct Qp {
    qpn: u32,
    service: Service,
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    /// Of an XRC target only.
    domain: Option<Arc<Domain>>,
    cap: QpCap,
    sq_sig_all: bool,
    user_handle: usize,
    generation: u32,
    /// Unlike that of any other QP of the process's life.
    serial: u64,
    adapter: &'static Adapter,
    rq: Mutex<class::ReceiveQueue, RecvQueue>,
    inner: Mutex<class::Qp, LockedQp>,
    /// Calls of the program that wait for `inner`.
    callers: AtomicU32,
    /// Held by the thread that changes attributes or ends the QP, which may take a second.
    changing: Turn,
    /// The program has destroyed it; what is left to do waits for the program.
    ended: AtomicBool,
    /// The transport's state, for readers that don't lock `inner`.
    state: AtomicU8,
    queued: Queued,
    pub(crate) deadline: Deadline,
    /// A turn of the QP was put off, as a thread was held up in its work for the QP.
    is_held_up: AtomicBool,
    /// What threads bring memory for, or are about to.
    awaited: AwaitedMemory,
    /// The program wants to know when the send queue has drained (IBV_QP_EN_SQD_ASYNC_NOTIFY).
    notify_drained: AtomicBool,
    /// When the last congestion notification was sent.
    last_cnp: AtomicU64,
    /// Where in its link's ring the last packet of a request ends.
    last_request: AtomicU64,
    /// … and the last packet that has answered a READ or an atomic.
    last_answer: AtomicU64,
    /// The last one-sided request was left to the peer, though it could have been executed here.
    left_to_peer: AtomicBool,
    /// How many more one-sided requests leave without waiting until they could be executed here: the last copy was refused.
    not_waiting: AtomicU32,
    /// What of large SENDs has left, for the next ones.
    offering: Offering,
    /// The key of a region of the peer's that can't be mapped, if one was asked for.
    unmappable: AtomicU32,
    /// Something has come from the peer by way of shared memory since there is a path.
    peer_uses_shm: AtomicBool,
    /// The number of the connection at the peer; a later connection of the same QPs has another number. 0: not known yet.
    peer_connection: AtomicU64,
    /// What it sends to a group doesn't come back to it.
    own_multicast_blocked: AtomicBool,
    wr_session: WrSession<SendWr<Arc<Ah>>>,
    /// A bug has stopped the transport half-way: it isn't to be let work again.
    broken: AtomicBool,
    /// Completion counters and the tracer, which note the end of each message.
    pub(crate) observers: Observers,
    unacked_async: Unacked,
    /// The number of the reason for which it has failed.
    reason: AtomicU16,
    /// Already reported: every packet so far had a PSN before `rq_psn`.
    drops_strangers: AtomicBool,
    /// The sender of the refused packet is Ferroce over UDP: the reason packet leaves before the NAK.
    peer_is_told: AtomicBool,
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qp").field("qpn", &self.qpn).field("service", &self.service).finish_non_exhaustive()
    }
}

impl HasQpn for Qp {
    #[inline]
    fn qpn(&self) -> u32 {
        self.qpn
    }
}

impl Runnable for Qp {
    fn queued(&self) -> &Queued {
        &self.queued
    }
}

impl Job for Qp {
    fn run(self: Arc<Self>, now: Instant) {
        self.let_callers_in();
        self.adapter.with_work(|work| self.work_in_turn(work, now, |_, _| ()));
    }
}

impl Qp {
    /// Its number, 24 bits.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Its transport service.
    #[must_use]
    pub fn service(&self) -> Service {
        self.service
    }

    /// The user handle given at its creation.
    #[must_use]
    pub fn user_handle(&self) -> usize {
        self.user_handle
    }

    /// Sizes of its queues.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Every send request is signaled.
    #[must_use]
    pub fn sq_sig_all(&self) -> bool {
        self.sq_sig_all
    }

    /// Its protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Its shared receive queue.
    #[must_use]
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }

    /// Asynchronous events that the program has to acknowledge.
    #[must_use]
    pub fn unacked_async(&self) -> &Unacked {
        &self.unacked_async
    }

    /// What the transport has counted since the QP left RESET.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.lock().proto.counters()
    }

    /// Requests are acknowledged: nothing is lost for good.
    fn is_reliable(&self) -> bool {
        matches!(self.service, Service::Rc | Service::Xrc)
    }

    /// Runs `f` while the QP can't leave RESET or INIT.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it has left them; those of `f`.
    pub(crate) fn before_use(&self, f: impl FnOnce() -> Result<()>) -> Result<()> {
        let inner = self.inner.lock();
        match inner.proto.state() {
            QpState::Reset | QpState::Init => f(),
            state => invalid!("the queue pair is in state {state}, not RESET or INIT"),
        }
    }

    /// Attaches a completion counter to the operations of `mask` (bits of [`ferroce_queues::CountedOp`]; ibv_qp_attach_comp_cntr(3)).
    ///
    /// # Errors
    /// [`ferroce_types::Error::Invalid`] for no operation or a QP that has left INIT; [`ferroce_types::Error::NotSupported`] for operations that
    /// aren't counted; [`ferroce_types::Error::Busy`] for one that has a counter.
    pub fn attach_comp_cntr(&self, counter: &Arc<CompCntr>, mask: u32) -> Result<()> {
        self.before_use(|| self.observers.attach(counter, mask))
    }

    /// Belongs to a process from before a fork: its peers talk to the parent.
    #[inline]
    fn is_inherited(&self) -> bool {
        self.generation != ferroce_os::fork::generation()
    }
}
