//! Queue pairs: the transport's state machine with its queues, keys, path and events around it.
//!
//! In here: creation, attributes, posting, and the one place where a QP's lock is taken to let the transport work.
//! Out of here: the transport itself (`ferroce_proto`), sockets, threads.

mod attr;
mod env;
mod fabric;
mod payload;

pub(crate) use crate::ah::Path;
pub use attr::{AddressVector, MAX_RD_ATOMIC, QpAttr, check_av, mask, names};
pub(crate) use env::{Origin, QpEnv};
pub(crate) use payload::ReadAhead;

use crate::ah::Ah;
use crate::cq::{Cq, Wc};
use crate::engine::{self, Deadline, Engine, Inbox, Queued, Record, Runnable, Work};
use crate::error::{Error, Result, invalid};
use crate::events::Unacked;
use crate::mem::Pd;
use crate::recv::{MAX_SGE, MAX_WR, RecvQueue, Srq};
use crate::shm;
use fabric::Listing;
use ferroce_proto::{Counters, Data, Instant, PostError, QpState, RecvWqe, SendOp, SendWr};
use ferroce_wire::Service;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Bytes of payload that may be posted inline.
pub const MAX_INLINE: u32 = 1024;
/// Bytes a QP may send in one go before others get their turn.
const BUDGET: u32 = 64 * 1024;
/// Sizes of a QP's queues (`struct ibv_qp_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // ibv_create_qp(3)
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// What a new QP is made of.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// RC, UC or UD.
    pub service: Service,
    /// Where send completions go.
    pub send_cq: Arc<Cq>,
    /// Where receive completions go.
    pub recv_cq: Arc<Cq>,
    /// Where receives come from, instead of a queue of its own.
    pub srq: Option<Arc<Srq>>,
    /// Sizes.
    pub cap: QpCap,
    /// Every send request is signaled.
    pub sq_sig_all: bool,
    /// Comes back with events.
    pub cookie: usize,
}

struct Inner {
    proto: ferroce_proto::Qp<Arc<Ah>>,
    attr: QpAttr,
    path: Option<Path>,
    listing: Listing,
}

/// A queue pair (ibv_create_qp(3)).
pub struct Qp {
    qpn: u32,
    service: Service,
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    cap: QpCap,
    sq_sig_all: bool,
    cookie: usize,
    generation: u32,
    engine: &'static Engine,
    rq: Mutex<RecvQueue>,
    inner: Mutex<Inner>,
    /// The transport's state, for whoever can't wait for `inner`.
    state: AtomicU8,
    pub(crate) inbox: Inbox<Record>,
    queued: Queued,
    pub(crate) deadline: Deadline,
    /// The program wants to know when the send queue has drained (IBV_QP_EN_SQD_ASYNC_NOTIFY).
    notify_drained: AtomicBool,
    /// When the last congestion notification was sent.
    last_cnp: AtomicU64,
    /// Where in its link's ring the last packet ends.
    last_record: AtomicU64,
    /// Something has come from the peer by way of shared memory since there is a path.
    heard: AtomicBool,
    unacked_async: Unacked,
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qp").field("qpn", &self.qpn).field("service", &self.service).finish_non_exhaustive()
    }
}

impl Runnable for Qp {
    fn queued(&self) -> &Queued {
        &self.queued
    }
}

impl Qp {
    /// A new QP in RESET.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes out of bounds or objects of another device; [`Error::NoMemory`] when all QPNs are
    /// taken.
    pub fn create(pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Self>> {
        check_cap(&init)?;
        let context = pd.context();
        for cq in [&init.send_cq, &init.recv_cq] {
            if !Arc::ptr_eq(cq.context(), context) {
                return invalid!("a completion queue of another device context");
            }
        }
        let engine = context.engine()?;
        let QpInit { service, send_cq, recv_cq, srq, cap, sq_sig_all, cookie } = init;
        let qp = engine.add_qp(|qpn| {
            Arc::new(Self {
                qpn,
                service,
                pd: pd.clone(),
                send_cq,
                recv_cq,
                srq,
                cap,
                sq_sig_all,
                cookie,
                generation: engine.generation(),
                engine,
                rq: Mutex::new(RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge)),
                inner: Mutex::new(Inner {
                    proto: ferroce_proto::Qp::new(service, qpn, cap.max_send_wr),
                    attr: QpAttr::default(),
                    path: None,
                    listing: Listing::No,
                }),
                state: AtomicU8::new(QpState::Reset as u8),
                inbox: Inbox::default(),
                queued: Queued::default(),
                deadline: Deadline::default(),
                notify_drained: AtomicBool::new(false),
                last_cnp: AtomicU64::new(0),
                last_record: AtomicU64::new(0),
                heard: AtomicBool::new(false),
                unacked_async: Unacked::default(),
            })
        })?;
        pd.hold();
        qp.send_cq.hold();
        qp.recv_cq.hold();
        if let Some(srq) = &qp.srq {
            srq.hold();
        }
        engine::register_qp(&qp);
        Ok(qp)
    }

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

    /// The cookie given at its creation.
    #[must_use]
    pub fn cookie(&self) -> usize {
        self.cookie
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
        *self.inner.lock().proto.counters()
    }

    /// Present attributes (ibv_query_qp(3)).
    #[must_use]
    pub fn query(&self) -> QpAttr {
        let inner = self.inner.lock();
        let state = if self.is_inherited() { QpState::Err } else { inner.proto.state() };
        QpAttr {
            state,
            cur_state: state,
            sq_draining: state == QpState::Sqd && inner.proto.sq_len() > 0,
            ..inner.attr
        }
    }

    /// Belongs to a process from before a fork: its peers talk to the parent.
    fn is_inherited(&self) -> bool {
        self.generation != engine::generation()
    }

    /// Changes attributes and state (ibv_modify_qp(3)). `bits` are those of [`mask`].
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the attribute.
    pub fn modify(self: &Arc<Self>, attr: &QpAttr, bits: u32) -> Result<()> {
        // Asking another process can take a while: not with the QP locked.
        let path = self.new_path(attr, bits)?;
        self.unlist()?;
        let result = self.modify_with(attr, bits, path);
        self.list(&mut self.inner.lock());
        result
    }

    fn modify_with(self: &Arc<Self>, attr: &QpAttr, bits: u32, path: Option<(Path, u32)>) -> Result<()> {
        self.engine.with_work(|work| {
            let mut inner = self.inner.lock();
            let from = inner.proto.state();
            let to = attr::check(self.service, from, attr, bits)?;
            if self.is_inherited() && !matches!(to, QpState::Err | QpState::Reset) {
                return Err(Error::Dead("the queue pair belongs to the process before the fork".into()));
            }
            let has = |bit: u32| bits & bit != 0;
            if to == QpState::Reset {
                inner.attr = QpAttr::default();
                inner.path = None;
            } else {
                merge(&mut inner.attr, attr, bits);
            }
            if let Some((path, mtu)) = path {
                let params = inner.proto.params_mut();
                params.path_mtu = mtu;
                params.lossless = self.is_lossless(&path);
                inner.path = Some(path);
                self.heard.store(false, Ordering::Relaxed);
            } else if self.service == Service::Ud {
                inner.proto.params_mut().path_mtu = self.pd.context().port().active_mtu;
            }
            self.notify_drained.store(inner.attr.en_sqd_async_notify, Ordering::Relaxed);
            self.set_params(&mut inner);
            if has(mask::STATE) && (to != from || to == QpState::Reset) {
                if to == QpState::Reset {
                    self.rq.lock().clear();
                    self.send_cq.forget_qp(self.qpn);
                    self.recv_cq.forget_qp(self.qpn);
                }
                let now = crate::clock::now();
                self.work_locked(&mut inner, work, now, |proto, env| proto.set_state(to, now, env));
            }
            let using = matches!(to, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
            self.engine.listen(self.qpn, using && !self.has_heard(), inner.path.as_ref());
            Ok(())
        })
    }

    fn set_params(&self, inner: &mut Inner) {
        let attr = inner.attr;
        let params = inner.proto.params_mut();
        params.access = attr.access;
        params.qkey = attr.qkey;
        params.dest_qpn = attr.dest_qpn;
        params.rq_psn = attr.rq_psn;
        params.sq_psn = attr.sq_psn;
        params.max_rd_atomic = attr.max_rd_atomic;
        params.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        params.min_rnr_timer = attr.min_rnr_timer;
        params.timeout = attr.timeout;
        params.retry_cnt = attr.retry_cnt;
        params.rnr_retry = attr.rnr_retry;
        params.srq = self.srq.is_some();
    }

    /// Posts send requests, as many as `next` gives, and rings once (ibv_post_send(3)).
    ///
    /// # Errors
    /// The first request that wasn't taken; those before it are posted.
    pub fn post_send(
        self: &Arc<Self>,
        mut next: impl FnMut() -> Option<Result<SendWr<Arc<Ah>>>>,
    ) -> Result<()> {
        self.engine.with_work(|work| {
            let mut inner = self.inner.lock();
            if self.is_inherited() {
                self.fail_inherited(&mut inner, work);
            }
            let mut result = Ok(());
            while let Some(wr) = next() {
                let posted = wr.and_then(|wr| {
                    let wr = self.check_send(wr)?;
                    inner.proto.post_send(wr).map_err(|e| self.post_error(e))
                });
                if posted.is_err() {
                    result = posted;
                    break;
                }
            }
            self.work_locked(&mut inner, work, crate::clock::now(), |_, _| ());
            result
        })
    }

    /// In the child of a fork the QP is in ERR (its peer belongs to the parent).
    fn fail_inherited(self: &Arc<Self>, inner: &mut Inner, work: &mut Work) {
        if inner.proto.state() != QpState::Err {
            inner.path = None;
            let now = crate::clock::now();
            self.work_locked(inner, work, now, |proto, env| proto.set_state(QpState::Err, now, env));
        }
    }

    fn check_send(&self, mut wr: SendWr<Arc<Ah>>) -> Result<SendWr<Arc<Ah>>> {
        match &wr.data {
            Data::Sges(sges) if sges.len() > self.cap.max_send_sge as usize => {
                return invalid!("{} gather elements, the queue takes {}", sges.len(), self.cap.max_send_sge);
            }
            Data::Inline(bytes) if bytes.len() > self.cap.max_inline_data as usize => {
                return invalid!(
                    "{} bytes inline, the queue takes {}",
                    bytes.len(),
                    self.cap.max_inline_data
                );
            }
            Data::Inline(_)
                if matches!(
                    wr.op,
                    SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
                ) =>
            {
                return invalid!("READ and atomics have nothing to send inline");
            }
            _ => {}
        }
        match (&wr.ud, self.service) {
            (Some(ud), Service::Ud) if !Arc::ptr_eq(ud.address.pd(), &self.pd) => {
                return invalid!("the address handle is of another protection domain");
            }
            (None, Service::Ud) => return invalid!("a UD send without an address handle"),
            _ => {}
        }
        wr.signaled |= self.sq_sig_all;
        Ok(wr)
    }

    fn post_error(&self, e: PostError) -> Error {
        match e {
            PostError::QueueFull => {
                Error::NoMemory(format!("the send queue of {} work requests is full", self.cap.max_send_wr))
            }
            PostError::State(state) => Error::Invalid(format!("a send request in state {state:?}")),
            PostError::Operation => {
                Error::Invalid(format!("{:?} has no such operation, or not of this length", self.service))
            }
        }
    }

    /// Posts a receive request (ibv_post_recv(3)).
    ///
    /// # Errors
    /// [`Error::Invalid`] in RESET, with an SRQ, or for too many elements; [`Error::NoMemory`] when the queue is full.
    pub fn post_recv(self: &Arc<Self>, wqe: RecvWqe) -> Result<()> {
        if self.srq.is_some() {
            return invalid!("the queue pair receives from a shared receive queue: post there");
        }
        let mut rq = self.rq.lock();
        match self.state.load(Ordering::Acquire) {
            s if s == QpState::Reset as u8 => invalid!("a receive request in state Reset"),
            s if s == QpState::Err as u8 || self.is_inherited() => {
                let wr_id = wqe.wr_id;
                // Checked as if it were queued, then flushed at once, in order with the queue's other flushes.
                rq.push(wqe)?;
                rq.clear();
                drop(rq);
                let _order = self.inner.lock();
                self.recv_cq.push(Wc {
                    qp_num: self.qpn,
                    completion: env::flushed_recv(wr_id),
                    network: None,
                });
                Ok(())
            }
            _ => rq.push(wqe),
        }
    }

    /// Lets the transport work, with the QP locked; then sends what came of it, publishes completions, sets timers.
    pub(crate) fn work(
        self: &Arc<Self>,
        work: &mut Work,
        now: Instant,
        f: impl FnOnce(&mut ferroce_proto::Qp<Arc<Ah>>, &mut QpEnv<'_>),
    ) {
        let mut inner = self.inner.lock();
        self.work_locked(&mut inner, work, now, f);
    }

    /// As [`Qp::work`], unless somebody else is at it.
    pub(crate) fn try_work(
        self: &Arc<Self>,
        work: &mut Work,
        now: Instant,
        f: impl FnOnce(&mut ferroce_proto::Qp<Arc<Ah>>, &mut QpEnv<'_>),
    ) -> bool {
        let Some(mut inner) = self.inner.try_lock() else { return false };
        self.work_locked(&mut inner, work, now, f);
        true
    }

    fn work_locked(
        self: &Arc<Self>,
        inner: &mut Inner,
        work: &mut Work,
        now: Instant,
        f: impl FnOnce(&mut ferroce_proto::Qp<Arc<Ah>>, &mut QpEnv<'_>),
    ) {
        if matches!(&inner.path, Some(Path::Shm { link, .. }) if link.is_dead()) {
            // It may have refused late, or the link wasn't the one that the peer has.
            self.fall_back_locked(inner);
        }
        let Inner { proto, path, listing, .. } = inner;
        let mut env =
            QpEnv { qp: self, path: path.as_ref(), work, meta: None, listed: *listing == Listing::Listed };
        f(proto, &mut env);
        let more = proto.transmit(now, &mut env, BUDGET);
        proto.flush_acks(now, &mut env);
        env.work.send();
        env.publish();
        let state = proto.state();
        self.state.store(state as u8, Ordering::Release);
        let waits = env.work.blocked_on.take().is_some_and(|link| self.wait_for_room(&link, now));
        let blocked = std::mem::take(&mut env.work.blocked) && !waits;
        if *listing == Listing::Listed && state == QpState::Err {
            // The QP has failed by itself, and nobody was promised anything.
            *listing = Listing::Withdrawn;
            shm::withdraw_qp(self.qpn);
        }
        if let Some(at) = proto.next_timeout() {
            self.engine.schedule(self, at);
        }
        if more || blocked {
            self.engine.enqueue(self);
        }
        if self.inbox.has_records() {
            work.kicks.push(self.clone());
        }
    }

    /// Keeps the QP still over a fork.
    pub(crate) fn freeze(&self) {
        std::mem::forget(self.inner.lock());
        std::mem::forget(self.rq.lock());
    }

    /// Undoes [`Qp::freeze`].
    ///
    /// # Safety
    /// This thread, or in a child its original, has frozen the QP.
    pub(crate) unsafe fn thaw(&self) {
        // SAFETY: both were locked by `freeze`, says the caller.
        unsafe {
            self.rq.force_unlock();
            self.inner.force_unlock();
        }
    }

    /// Ends the QP (ibv_destroy_qp(3)): no completion of it is left in its queues, nothing touches memory through it.
    ///
    /// # Errors
    /// [`Error::Busy`] when another process is in the middle of an access and doesn't end it within a second: the QP stays.
    pub fn destroy(self: &Arc<Self>) -> Result<()> {
        self.unlist()?;
        self.engine.remove_qp(self.qpn);
        self.engine.with_work(|work| {
            let mut inner = self.inner.lock();
            let path = inner.path.take();
            self.engine.listen(self.qpn, false, path.as_ref());
            let now = crate::clock::now();
            self.work_locked(&mut inner, work, now, |proto, env| proto.set_state(QpState::Reset, now, env));
        });
        self.rq.lock().clear();
        self.send_cq.forget_qp(self.qpn);
        self.recv_cq.forget_qp(self.qpn);
        engine::unregister_qp(self);
        self.pd.context().withdraw(self.cookie);
        self.unacked_async.wait();
        self.send_cq.release();
        self.recv_cq.release();
        if let Some(srq) = &self.srq {
            srq.release();
        }
        self.pd.release();
        Ok(())
    }
}

fn check_cap(init: &QpInit) -> Result<()> {
    let cap = init.cap;
    let own_rq = init.srq.is_none();
    if cap.max_send_wr > MAX_WR || (own_rq && cap.max_recv_wr > MAX_WR) {
        return invalid!(
            "queues of {} and {} work requests: at most {MAX_WR}",
            cap.max_send_wr,
            cap.max_recv_wr
        );
    }
    if cap.max_send_sge > MAX_SGE || (own_rq && cap.max_recv_sge > MAX_SGE) {
        return invalid!("{} and {} elements: at most {MAX_SGE}", cap.max_send_sge, cap.max_recv_sge);
    }
    if cap.max_inline_data > MAX_INLINE {
        return invalid!("{} bytes inline: at most {MAX_INLINE}", cap.max_inline_data);
    }
    if !matches!(init.service, Service::Rc | Service::Uc | Service::Ud) {
        return Err(Error::NotSupported(format!("{:?} queue pairs", init.service)));
    }
    Ok(())
}

/// Copies the attributes that `bits` name.
fn merge(to: &mut QpAttr, from: &QpAttr, bits: u32) {
    macro_rules! take {
        ($($bit:ident => $($field:ident),+;)*) => { $(if bits & mask::$bit != 0 { $(to.$field = from.$field;)+ })* };
    }
    take! {
        PATH_MTU => path_mtu;
        PATH_MIG_STATE => path_mig_state;
        QKEY => qkey;
        RQ_PSN => rq_psn;
        SQ_PSN => sq_psn;
        DEST_QPN => dest_qpn;
        ACCESS_FLAGS => access;
        AV => av;
        PKEY_INDEX => pkey_index;
        EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify;
        MAX_QP_RD_ATOMIC => max_rd_atomic;
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic;
        MIN_RNR_TIMER => min_rnr_timer;
        PORT => port_num;
        TIMEOUT => timeout;
        RETRY_CNT => retry_cnt;
        RNR_RETRY => rnr_retry;
    }
    to.rq_psn &= 0xff_ffff;
    to.sq_psn &= 0xff_ffff;
    to.dest_qpn &= 0xff_ffff;
}
