//! Threads that have everything in common: one PD, one CQ, one SRQ, one QP; and make and end others on them meanwhile.

use crate::namespace::in_namespace;
use crate::pair::over_sockets;
use crate::side::{Side, open};
use ferroce_mem::Pd;
use ferroce_nic::{Context, Poll as _, create_ah};
use ferroce_proto::SendOp;
use ferroce_queues::{Cq, CqInit, NewSize, Srq, SrqAttr};
use ferroce_types::{AsyncEvent, Completion, RecvWqe, Sge, WcOpcode, WcStatus};
use ferroce_wire::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const THREADS: usize = 8;
const DURATION: Duration = Duration::from_millis(1500);
/// A thread that waits longer for its completion has lost it.
const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of a message, and of a receive.
const MESSAGE: usize = 16;
const MAX_POSTED: u32 = 4096;
/// Receives go to one place after the other; there are many more than can be posted.
const PLACES: usize = 8 * MAX_POSTED as usize;
/// Work request ids below are sends of threads, from here on receives by place.
const RECEIVES: u64 = 1 << 32;

/// What all threads use.
struct Common {
    context: Arc<Context>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    srq: Arc<Srq>,
    near: Side,
    far: Side,
    next_place: AtomicUsize,
    sent: [AtomicBool; THREADS],
    /// How many messages of each thread came by way of the common QP, and the sum of their numbers.
    came: [(AtomicU64, AtomicU64); THREADS],
    stop: AtomicBool,
}

impl Common {
    fn new() -> Self {
        let context = open();
        let pd = Pd::alloc(&context).unwrap();
        let init = CqInit {
            cqe: 1 << 16,
            channel: None,
            user_handle: 0,
            pd: None,
            stamped: true,
            ignore_overrun: false,
        };
        let cq = Cq::create_as(&context, init).unwrap();
        let srq = Srq::create(&pd, SrqAttr { max_wr: MAX_POSTED, max_sge: 1, limit: 0 }, 1).unwrap();
        let near = Side::of(&pd, Service::Rc, THREADS * MESSAGE, cq.clone(), None);
        let far = Side::of(&pd, Service::Rc, PLACES * MESSAGE, cq.clone(), Some(srq.clone()));
        near.connect(far.qp.qpn());
        far.connect(near.qp.qpn());
        Self {
            context,
            pd,
            cq,
            srq,
            near,
            far,
            next_place: AtomicUsize::new(0),
            sent: [const { AtomicBool::new(true) }; THREADS],
            came: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; THREADS],
            stop: AtomicBool::new(false),
        }
    }

    /// Posts a receive; there may be too many.
    fn receive(&self) {
        let place = self.next_place.fetch_add(1, Ordering::Relaxed) % PLACES;
        let sge = self.far.sge(place * MESSAGE, MESSAGE);
        let wqe = RecvWqe { wr_id: RECEIVES + place as u64, sges: [sge].into_iter().collect() };
        if let Err(error) = self.srq.post(wqe) {
            assert_eq!(error.errno(), libc::ENOMEM);
        }
    }

    fn completed(&self, wc: &Completion) {
        let (near, far) = (self.near.qp.qpn(), self.far.qp.qpn());
        if ![near, far].contains(&wc.qp_num) {
            return;
        }
        assert_eq!(wc.status, WcStatus::Success);
        if wc.qp_num == near {
            self.sent[wc.wr_id as usize].store(true, Ordering::SeqCst);
            return;
        }
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::Recv, MESSAGE as u32));
        let place = (wc.wr_id - RECEIVES) as usize;
        let at = self.far.addr() as usize + place * MESSAGE;
        // SAFETY: within `far`'s memory, which isn't written to before the place comes round again.
        let [thread, number] = unsafe { (at as *const [u64; 2]).read_unaligned() };
        let (count, sum) = &self.came[thread as usize];
        count.fetch_add(1, Ordering::SeqCst);
        sum.fetch_add(number, Ordering::SeqCst);
    }

    fn poll(&self) {
        self.cq
            .poll_stamped(3, |wc, stamp| {
                assert!(stamp.clock > 0);
                self.completed(wc);
            })
            .unwrap();
    }

    /// A message by way of the common QP.
    fn say(&self, thread: usize, number: u64) {
        self.sent[thread].store(false, Ordering::SeqCst);
        let sge = self.near.sge(thread * MESSAGE, MESSAGE);
        // SAFETY: this thread's part of `near`'s memory; the last send from there has completed.
        unsafe { (sge.addr as *mut [u64; 2]).write_unaligned([thread as u64, number]) };
        self.receive();
        self.near.send(thread as u64, SendOp::Send, sge, None);
        let start = Instant::now();
        while !self.sent[thread].load(Ordering::SeqCst) {
            self.poll();
            assert!(start.elapsed() < LIMIT, "the completion of thread {thread} is lost");
        }
    }

    /// Objects from their creation to their end, with messages under way.
    fn live(&self, round: usize) {
        let srq = round.is_multiple_of(2).then(|| self.srq.clone());
        let a = Side::of(&self.pd, Service::Rc, 4096, self.cq.clone(), None);
        let b = Side::of(&self.pd, Service::Rc, 4096, self.cq.clone(), srq.clone());
        a.connect(b.qp.qpn());
        b.connect(a.qp.qpn());
        for _ in 0..3 {
            match srq {
                Some(_) => self.receive(),
                None => b.recv(0, b.sge(0, 4096)),
            }
            a.send(0, SendOp::Send, Sge { length: MESSAGE as u32, ..a.sge(0, MESSAGE) }, None);
        }
        self.poll();
        let ah = create_ah(&self.pd, a.av()).unwrap();
        let (first, second) = if round.is_multiple_of(3) { (a, b) } else { (b, a) };
        for side in [first, second] {
            side.qp.destroy().unwrap();
            side.mr.deregister().unwrap();
        }
        ah.destroy();
        self.cq.request_notify(round.is_multiple_of(2));
        self.cq.moderate((round % 5) as u16, Duration::from_micros(round as u64 % 200));
        self.cq.resize((1 << 16) + (round % 7) as u32).unwrap();
        let limit = (round % 3) as u32;
        self.srq.modify(Some(NewSize { max_wr: MAX_POSTED, max_sge: 1 }), Some(limit)).unwrap();
        let cq = Cq::create(&self.context, 16, None, 2).unwrap();
        cq.destroy().unwrap();
        let srq = Srq::create(&self.pd, SrqAttr { max_wr: 4, max_sge: 1, limit: 0 }, 3).unwrap();
        srq.destroy().unwrap();
    }

    fn take_events(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            match self.context.async_events().take() {
                Some(AsyncEvent::SrqLimitReached(1) | AsyncEvent::CommunicationEstablished(_)) => {}
                Some(AsyncEvent::QpLastWqeReached(_)) => {}
                Some(event) => panic!("{event:?}"),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

fn threads_have_everything_in_common() {
    let common = Common::new();
    let end = Instant::now() + DURATION;
    let rounds = std::thread::scope(|scope| {
        let common = &common;
        scope.spawn(|| common.take_events());
        let threads = std::array::from_fn::<_, THREADS, _>(|thread| {
            scope.spawn(move || {
                let mut round = 0;
                while Instant::now() < end || round == 0 {
                    common.say(thread, round);
                    common.live(thread + round as usize);
                    round += 1;
                }
                round
            })
        });
        let rounds = threads.map(|thread| thread.join());
        common.stop.store(true, Ordering::SeqCst);
        rounds.map(|rounds| rounds.expect("no thread fails"))
    });
    let start = Instant::now();
    let came = |thread: usize| common.came[thread].0.load(Ordering::SeqCst);
    while (0..THREADS).any(|thread| came(thread) < rounds[thread]) {
        common.poll();
        assert!(start.elapsed() < LIMIT, "messages are lost");
    }
    for (thread, (&rounds, (count, sum))) in rounds.iter().zip(&common.came).enumerate() {
        let numbers = (count.load(Ordering::SeqCst), sum.load(Ordering::SeqCst));
        assert_eq!(numbers, (rounds, (0..rounds).sum()), "thread {thread}: each message comes once");
    }
    let Common { near, far, cq, srq, pd, .. } = common;
    assert_eq!(cq.destroy().unwrap_err().errno(), libc::EBUSY);
    for side in [near, far] {
        side.qp.destroy().unwrap();
        side.mr.deregister().unwrap();
    }
    srq.destroy().unwrap();
    cq.destroy().unwrap();
    pd.check_unused().unwrap();
}

#[test]
fn threads_have_everything_in_common_within_a_process() {
    in_namespace("shared::threads_have_everything_in_common_within_a_process", || {
        threads_have_everything_in_common();
    });
}

#[test]
fn threads_have_everything_in_common_over_sockets() {
    in_namespace("shared::threads_have_everything_in_common_over_sockets", || {
        over_sockets();
        threads_have_everything_in_common();
    });
}
