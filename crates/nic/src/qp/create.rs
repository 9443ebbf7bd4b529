//! A queue pair's beginning and end: ibv_create_qp(3), ibv_destroy_qp(3).

use super::fabric::Listing;
use super::modify::HELD_UP;
use super::observers::Observers;
use super::offers::Offering;
use super::waiting::{AwaitedMemory, WaitingPackets};
use super::wr_session::WrSession;
use super::xrc_target::XrcTargetSlot;
use super::{LockedQp, Qp, ReceiveCompletions, next_connection};
use crate::Context;
use crate::adapter;
use crate::device::OfContext as _;
use ferroce_engine::{Deadline, Queued};
use ferroce_mem::{Pd, QueueKind, ring_for};
use ferroce_os::fork::{self, Turn};
use ferroce_os::sync::Mutex;
use ferroce_os::sys;
use ferroce_parts::{KeptOfQp, QpAttr, UnackedPace, UnreadRecords, counted};
use ferroce_queues::late::{self, Late};
use ferroce_queues::{Cq, Limits, RecvQueue, Srq, Unacked};
use ferroce_types::{Error, QpState, Result, invalid};
use ferroce_wire::Service;
use ferroce_xrc::Domain;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

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
    /// RC, UC, UD or, for an initiator, XRC.
    pub service: Service,
    /// Where send completions go.
    pub send_cq: Arc<Cq>,
    /// Where receive completions go.
    pub recv_cq: Arc<Cq>,
    /// Where receives come from, instead of a queue of its own.
    pub srq: Option<Arc<Srq>>,
    /// Sizes. Those of the receive queue are ignored where there is none: with an SRQ, and of XRC.
    pub cap: QpCap,
    /// Every send request is signaled.
    pub sq_sig_all: bool,
    /// Comes back with events.
    pub user_handle: usize,
}

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

impl Qp {
    /// A new QP in RESET.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes out of bounds or objects of another device; [`Error::NoMemory`] when all QPNs are
    /// taken.
    pub fn create(pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Self>> {
        Self::create_as(pd, init, None)
    }

    /// Of an XRC target there is a domain, and perhaps the number of another process's target that it stands for.
    pub(super) fn create_as(
        pd: &Arc<Pd>,
        mut init: QpInit,
        target: Option<(Arc<Domain>, Option<u32>)>,
    ) -> Result<Arc<Self>> {
        let (domain, number) = target.map_or((None, None), |(domain, number)| (Some(domain), number));
        if init.srq.is_some() || init.service == Service::Xrc {
            // There is no receive queue that they could size.
            (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
        }
        check_cap(&init)?;
        for cq in [&init.send_cq, &init.recv_cq] {
            if !cq.shares_context_with(pd) {
                return invalid!("a completion queue of another device context");
            }
        }
        let adapter = pd.context().adapter()?;
        let QpInit { service, send_cq, recv_cq, srq, cap, sq_sig_all, user_handle } = init;
        let rq = RecvQueue::new(pd, QueueKind::Receive, cap.max_recv_wr, cap.max_recv_sge)?;
        let sq = ring_for(pd.queues(), cap.max_send_wr as usize, QueueKind::Send)?;
        let make = |qpn| {
            let mut proto = ferroce_proto::QpProtocol::new(service, qpn, cap.max_send_wr);
            proto.place_send_queue(sq);
            Arc::new(Self {
                qpn,
                service,
                pd: pd.clone(),
                send_cq,
                recv_cq,
                srq,
                domain,
                cap,
                sq_sig_all,
                user_handle,
                generation: adapter.generation(),
                serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
                adapter,
                rq: Mutex::new(rq),
                inner: Mutex::new(LockedQp {
                    connection: next_connection(),
                    was_reset: false,
                    flushed: false,
                    proto,
                    attr: QpAttr::default(),
                    path: None,
                    udp_failed: false,
                    listing: Listing::No,
                    owes: false,
                    xrc_target: XrcTargetSlot::default(),
                    kept: KeptOfQp::default(),
                    unacked_pace: UnackedPace::default(),
                    unread: UnreadRecords::default(),
                    held: ReceiveCompletions::default(),
                    waiting: WaitingPackets::default(),
                    ece: None,
                }),
                state: AtomicU8::new(QpState::Reset as u8),
                callers: AtomicU32::new(0),
                queued: Queued::default(),
                deadline: Deadline::default(),
                is_held_up: AtomicBool::new(false),
                awaited: AwaitedMemory::default(),
                notify_drained: AtomicBool::new(false),
                last_cnp: AtomicU64::new(0),
                last_request: AtomicU64::new(0),
                last_answer: AtomicU64::new(0),
                changing: Turn::free(),
                ended: AtomicBool::new(false),
                left_to_peer: AtomicBool::new(false),
                not_waiting: AtomicU32::new(0),
                unmappable: AtomicU32::new(0),
                offering: Offering::default(),
                peer_uses_shm: AtomicBool::new(false),
                peer_connection: AtomicU64::new(0),
                own_multicast_blocked: AtomicBool::new(false),
                wr_session: WrSession::default(),
                broken: AtomicBool::new(false),
                observers: Observers::new(adapter.tracing.of_new(qpn)),
                unacked_async: Unacked::default(),
                reason: AtomicU16::new(0),
                drops_strangers: AtomicBool::new(false),
                peer_is_told: AtomicBool::new(false),
            })
        };
        let qp = match number {
            Some(number) => make(number),
            None => adapter.add_qp(make)?,
        };
        pd.hold();
        qp.send_cq.hold();
        qp.recv_cq.hold();
        if let Some(srq) = &qp.srq {
            srq.hold();
        }
        adapter::register_qp(&qp);
        Ok(qp)
    }

    /// From here on it sends and receives nothing, and touches no memory. Others of the host may still list it. What has come before is
    /// received, and acknowledged to the peer.
    ///
    /// # Errors
    /// [`Error::Busy`] when a thread is held up in its work for the queue pair, which then goes on.
    fn stop_traffic(self: &Arc<Self>) -> Result<()> {
        if self.has_to_take_before(QpState::Err)? {
            self.adapter.take_what_has_come(self, HELD_UP)?;
        }
        self.adapter.with_work(|work| -> Result<()> {
            let mut inner = self.lock_in_time()?;
            let path = inner.path.take();
            inner.waiting.clear();
            self.return_receive(&mut inner);
            self.reset_xrc_target(&mut inner);
            self.adapter.listen(self.qpn, false, path.as_ref());
            let now = ferroce_os::clock::now();
            self.work_locked(&mut inner, work, now, |proto, env| proto.set_state(QpState::Reset, env));
            Ok(())
        })?;
        // It waits for threads that look the number up: with nothing locked.
        self.adapter.remove_qp(self);
        // One after the other: a QP's lock comes before that of its receive queue.
        let rq = self.rq.lock().take();
        let sq = self.inner.lock().proto.end_send_queue();
        // It calls the program, with nothing locked.
        drop((rq, sq));
        Ok(())
    }

    pub(crate) fn context(&self) -> Arc<Context> {
        self.pd.context()
    }

    /// Its context, or one that may have a handle of it, is closed while it exists (ibv_close_device(3)). A target of which others have
    /// handles goes on. Returns whether the program's QP has ended.
    pub(crate) fn end_with_context(self: &Arc<Self>, context: &Context) -> bool {
        if self.is_target() {
            let is_own = std::ptr::eq(&raw const *self.context(), context);
            if (is_own && self.adapter.stop_serving(self)) || !self.give_up_handles_of(context, is_own) {
                return false;
            }
        }
        if let Err(why) = self.unlist() {
            tracing::warn!(%why, "a queue pair of a closed device is still listed");
        }
        match self.stop_traffic() {
            Ok(()) => adapter::unregister_qp(self),
            Err(why) => self.end_later(&why),
        }
        true
    }

    /// A thread of its own ends the traffic of a queue pair of a closed context, when the thread that is held up in its work for the QP
    /// has come back. Until then the QP is registered: it fails with the device.
    #[cold]
    fn end_later(self: &Arc<Self>, why: &Error) {
        tracing::warn!(qpn = self.qpn, %why, "a queue pair of a closed device ends later");
        self.repeat_in_thread(|qp| {
            // A fork isn't held up by the queue pair: an attempt begins when the QP's lock is free.
            let has_ended = qp.inner.try_lock().is_some() && qp.stop_traffic().is_ok();
            if has_ended {
                adapter::unregister_qp(qp);
            }
            has_ended
        });
    }

    /// A thread of its own repeats `end` until it returns true.
    #[cold]
    pub(super) fn repeat_in_thread(self: &Arc<Self>, end: impl Fn(&Arc<Self>) -> bool + Send + 'static) {
        const ROUND: Duration = Duration::from_millis(100);
        let qp = self.clone();
        let repeat = move || {
            let Ok(_inside) = fork::enter_library() else { return };
            while !end(&qp) {
                fork::outside_library(|| sys::pause(ROUND));
            }
        };
        if let Err(why) = ferroce_engine::start_thread("ferroce-end", repeat) {
            tracing::error!(qpn = self.qpn, %why, "the queue pair stays alive: the thread that ends it can't be started");
        }
    }

    /// Ends the QP (ibv_destroy_qp(3)): no completion of it is left in its queues, and no thread or process accesses memory through it.
    ///
    /// # Errors
    /// [`Error::Busy`] when it is attached to a multicast group, or when another process is in the middle of an access and
    /// doesn't end it within a second: the QP stays.
    pub fn destroy(self: &Arc<Self>) -> Result<()> {
        self.check_detached()?;
        let turn = self.wait_for_turn()?;
        self.unlist()?;
        self.stop_traffic().inspect_err(|_| self.list_again())?;
        counted::keep(self.pd.owner().device_name(), &self.counters());
        self.send_cq.forget_qp(self.qpn);
        self.recv_cq.forget_qp(self.qpn);
        adapter::unregister_qp(self);
        self.pd.owner().withdraw(self.user_handle);
        // A thread may change the QP before it acknowledges an event of it: such calls fail from here on, as the QP has ended.
        self.ended.store(true, Ordering::Relaxed);
        drop(turn);
        self.unacked_async.wait(|count| late::tell(Late::OfQp, count));
        if let Some(counters) = self.observers.counters() {
            counters.detach();
        }
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
    let Limits { wr, sge, inline, .. } = *Limits::get();
    if cap.max_send_wr > wr || cap.max_recv_wr > wr {
        return invalid!("queues of {} and {} work requests: at most {wr}", cap.max_send_wr, cap.max_recv_wr);
    }
    if cap.max_send_sge > sge || cap.max_recv_sge > sge {
        return invalid!("{} and {} elements: at most {sge}", cap.max_send_sge, cap.max_recv_sge);
    }
    if init.srq.is_some() && init.service == Service::Uc {
        return invalid!("a UC queue pair with a shared receive queue: only RC and UD have them");
    }
    if init.service != Service::Rc && init.srq.as_ref().is_some_and(|srq| srq.matches_tags()) {
        return invalid!("{:?} with a tag-matching shared receive queue: only RC has them", init.service);
    }
    if cap.max_inline_data > inline {
        return invalid!("{} bytes inline: at most {inline}", cap.max_inline_data);
    }
    if !matches!(init.service, Service::Rc | Service::Uc | Service::Ud | Service::Xrc) {
        return Err(Error::NotSupported(format!("{:?} queue pairs", init.service)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::adapter::qps_of;
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use ferroce_os::fork;
    use ferroce_os::sync::ForkReader;
    use ferroce_tests::wait::eventually;
    use ferroce_types::QpState;
    use ferroce_wire::Service;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_queue_pair_whose_thread_is_held_up_while_its_context_is_closed_ends_later() {
        const NAME: &str =
            "qp::create::tests::a_queue_pair_whose_thread_is_held_up_while_its_context_is_closed_ends_later";
        in_namespace(NAME, || {
            let context = open();
            let side = Side::new(&context, Service::Rc, 64);
            side.connect(side.qp.qpn());
            let (locked, is_locked) = channel();
            let (go_on, goes_on) = channel();
            let qp = side.qp.clone();
            // As one that waits for a page of the program's memory.
            let held_up = std::thread::spawn(move || {
                let _inner = qp.inner.lock();
                locked.send(()).unwrap();
                goes_on.recv().unwrap();
            });
            is_locked.recv().unwrap();
            assert_eq!(context.close().qps, 1);
            assert_eq!(qps_of(&context).len(), 1, "it fails with the device");
            go_on.send(()).unwrap();
            held_up.join().unwrap();
            eventually("the queue pair has ended", || qps_of(&context).is_empty());
            assert_eq!(side.qp.inner.lock().proto.state(), QpState::Reset);
            assert!(side.qp.adapter.qp(side.qp.qpn()).is_none(), "its number is free");
        });
    }

    #[test]
    fn a_queue_pair_is_not_locked_while_its_end_waits_for_readers() {
        const NAME: &str = "qp::create::tests::a_queue_pair_is_not_locked_while_its_end_waits_for_readers";
        in_namespace(NAME, || {
            let context = open();
            let side = Side::new(&context, Service::Rc, 64);
            side.connect(side.qp.qpn());
            let adapter = side.qp.adapter;
            let qpn = side.qp.qpn();
            // From here on readers find it without a lock.
            assert!(adapter.qp(qpn).is_some());
            let (reads, is_reading) = channel();
            let (leave, leaves) = channel();
            let reader = std::thread::spawn(move || {
                let _inside = fork::enter_library().unwrap();
                let _reading = ForkReader::enter().unwrap();
                reads.send(()).unwrap();
                leaves.recv().unwrap();
            });
            is_reading.recv().unwrap();
            let qp = side.qp.clone();
            let destruction = std::thread::spawn(move || qp.destroy());
            eventually("its number is free", || adapter.qp(qpn).is_none());
            assert!(side.qp.inner.try_lock_for(Duration::from_millis(500)).is_some());
            leave.send(()).unwrap();
            reader.join().unwrap();
            destruction.join().unwrap().unwrap();
        });
    }
}
