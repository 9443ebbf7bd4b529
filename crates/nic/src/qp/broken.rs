//! What becomes of a QP in whose work a panic, a bug of this library, has unwound: its state machine stays half changed, so
//! nothing is sent or received from that state. Its requests are flushed if that can still be done.

use super::fabric::Listing;
use super::{Qp, QpEnv};
use ferroce_parts::Ah;
use ferroce_proto::{Env, QpEvent};
use ferroce_types::{Error, Instant, QpState, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Unwind guard: marks the QP broken if the section panics. Call `mem::forget` on success.
pub(super) struct EndsOnPanic<'a>(pub(super) &'a Arc<Qp>);

impl Drop for EndsOnPanic<'_> {
    fn drop(&mut self) {
        let Self(qp) = self;
        qp.broken.store(true, Ordering::Relaxed);
        qp.state.store(QpState::Err as u8, Ordering::Release);
        // The QP's next turn flushes its requests.
        qp.adapter.enqueue(qp);
    }
}

impl Qp {
    #[inline]
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// # Errors
    /// [`Error::Dead`] for a broken QP.
    pub(super) fn check_whole(&self) -> Result<()> {
        if self.is_broken() {
            return Err(Error::Dead("an internal error has ended the queue pair: destroy it".into()));
        }
        Ok(())
    }
}

/// The turn of a broken QP, instead of the transport's. What it has is flushed, what comes for it is lost, no other process
/// finds it, and nothing is left in the buffers for the QP that works next.
#[cold]
pub(super) fn work(
    flushed: &mut bool,
    proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
    listing: &mut Listing,
    env: &mut QpEnv<'_>,
    now: Instant,
) {
    flush(flushed, proto, env, now);
    env.waiting.clear();
    (env.work.overrun, env.work.blocked, env.work.blocked_on) = (false, false, None);
    listing.withdraw(env.qp.qpn());
}

/// Flushes what a broken QP has, once.
fn flush(
    flushed: &mut bool,
    proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
    env: &mut QpEnv<'_>,
    now: Instant,
) {
    if std::mem::replace(flushed, true) {
        return;
    }
    tracing::error!(qpn = env.qp.qpn(), "an internal error has ended a queue pair: this is a bug in Ferroce");
    let done = catch_unwind(AssertUnwindSafe(|| {
        env.event(QpEvent::Fatal);
        proto.set_state(QpState::Err, env);
        proto.transmit(now, env, 0);
    }));
    if done.is_err() {
        tracing::error!(qpn = env.qp.qpn(), "its requests can't be flushed either");
    }
    env.abandon_acknowledgements();
    env.publish(u64::MAX);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::ThreadBuffers;
    use crate::namespace::in_namespace;
    use crate::side::{QKEY, Side, cap, open};
    use crate::{Context, Poll as _, create_ah};
    use ferroce_host::frame;
    use ferroce_os::{clock, sys};
    use ferroce_parts::{QpAttr, mask};
    use ferroce_proto::{Data, SendOp, SendWr, UdTarget};
    use ferroce_queues::Cq;
    use ferroce_types::{AsyncEvent, WcStatus};
    use ferroce_wire::Service;

    /// Two queue pairs, connected with one another.
    fn pair(context: &Arc<Context>, service: Service, bytes: usize) -> [Side; 2] {
        let [a, b] = [(); 2].map(|()| Side::new(context, service, bytes));
        a.connect(b.qp.qpn());
        b.connect(a.qp.qpn());
        [a, b]
    }

    fn break_it(side: &Side) {
        let panics =
            || side.qp.adapter.with_work(|work| side.qp.work(work, clock::now(), |_, _| panic!("injected")));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    }

    /// As posting, by buffers at hand.
    fn send(side: &Side, work: &mut ThreadBuffers, wr_id: u64, ud: Option<UdTarget<Arc<Ah>>>) {
        let data = Data::Sges([side.sge(0, 8)].into_iter().collect());
        let op = SendOp::Send;
        let wr =
            SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false, ud, remote_srqn: 0 };
        let mut inner = side.qp.inner.lock();
        inner.proto.post_send(&wr.request()).unwrap();
        side.qp.work_locked(&mut inner, work, clock::now(), |_, _| ());
    }

    #[test]
    fn queue_pair_after_a_panic_is_flushed_and_sends_nothing() {
        const NAME: &str = "qp::broken::tests::queue_pair_after_a_panic_is_flushed_and_sends_nothing";
        in_namespace(NAME, || {
            let context = open();
            let [a, b] = pair(&context, Service::Rc, 64);
            // The peer has no receive: the request stays under way.
            a.send(1, SendOp::Send, a.sge(0, 8), None);
            a.recv(2, a.sge(8, 8));
            break_it(&a);

            let mut flushed = [a.wait(), a.wait()].map(|completion| (completion.wr_id, completion.status));
            flushed.sort_unstable_by_key(|(wr_id, _)| *wr_id);
            assert_eq!(flushed, [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
            let raised: Vec<_> = std::iter::from_fn(|| context.async_events().take()).collect();
            assert!(raised.iter().any(|event| matches!(event, AsyncEvent::QpFatal(_))), "{raised:?}");
            assert_eq!(a.qp.query().unwrap().state, QpState::Err);
            b.recv(3, b.sge(0, 8));
            let refused = a.post(4, SendOp::Send, a.sge(0, 8), None).unwrap_err();
            assert_eq!(refused.errno(), libc::EIO);
            let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
            assert_eq!(a.qp.modify(&reset, mask::STATE).unwrap_err().errno(), libc::EIO);
            // What comes for it is as good as lost.
            b.send(5, SendOp::Send, b.sge(0, 8), None);
            assert!(b.cq.poll(1, |wc| panic!("{wc:?}")).is_ok());
            context.async_events().take();
            a.close();
            b.close();
        });
    }

    #[test]
    fn what_is_sent_to_a_queue_pair_after_a_panic_is_lost() {
        const NAME: &str = "qp::broken::tests::what_is_sent_to_a_queue_pair_after_a_panic_is_lost";
        in_namespace(NAME, || {
            const LEN: usize = 1 << 20;
            let [a, b] = pair(&open(), Service::Uc, LEN);
            break_it(&b);
            // Each is more than a ring holds.
            for wr_id in 0..3 {
                a.send(wr_id, SendOp::Send, a.sge(0, LEN), None);
                assert_eq!(a.wait().status, WcStatus::Success);
            }
            a.close();
            b.close();
        });
    }

    #[test]
    fn a_flush_after_a_panic_leaves_nothing_to_the_next_queue_pair() {
        const NAME: &str = "qp::broken::tests::a_flush_after_a_panic_leaves_nothing_to_the_next_queue_pair";
        in_namespace(NAME, || {
            let context = open();
            let small = Cq::create(&context, 1, None, 0).unwrap();
            let a = Side::with_cq(&context, Service::Rc, 64, small);
            let b = Side::new(&context, Service::Rc, 64);
            a.connect(b.qp.qpn());
            for wr_id in 0..cap().max_recv_wr {
                a.recv(wr_id.into(), a.sge(0, 8));
            }
            a.qp.adapter.with_work(|work| {
                let mut inner = a.qp.inner.lock();
                inner.listing = Listing::Listed;
                let panics = || a.qp.work_locked(&mut inner, work, clock::now(), |_, _| panic!("injected"));
                assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
                work.blocked = true;
                a.qp.work_locked(&mut inner, work, clock::now(), |_, _| ());
                assert!(!work.overrun && !work.blocked && work.blocked_on.is_none());
                assert_eq!(inner.listing, Listing::Withdrawn);
            });
            let taken = a.cq.poll(usize::MAX, |_| ()).unwrap();
            assert!(taken > 0 && a.cq.poll(1, |_| ()).is_err(), "the flush was to find no room");
            a.close();
            b.close();
        });
    }

    #[test]
    fn a_panic_keeps_no_other_queue_pair_waiting() {
        const NAME: &str = "qp::broken::tests::a_panic_keeps_no_other_queue_pair_waiting";
        in_namespace(NAME, || {
            let context = open();
            let [a, b] = pair(&context, Service::Uc, 64);
            let datagrams = Side::new(&context, Service::Ud, 64);
            datagrams.connect(0);
            b.recv(1, b.sge(0, 64));
            let address = create_ah(&datagrams.pd, datagrams.av()).unwrap();
            // In no slot of this process: the way there is unknown.
            let qpn = a.qp.qpn() ^ 1 << 23;
            let ud = UdTarget { address: address.clone(), qpn, qkey: QKEY };
            let panics = || {
                a.qp.adapter.with_work(|work| {
                    send(&a, work, 2, None);
                    send(&datagrams, work, 3, Some(ud));
                    assert!(work.left_here && !work.unresolved.is_empty());
                    panic!("injected");
                });
            };
            assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
            assert_eq!(b.wait().wr_id, 1);
            assert_eq!(datagrams.wait().wr_id, 3);
            address.destroy();
            for side in [a, b, datagrams] {
                side.close();
            }
        });
    }

    #[test]
    fn a_queue_pair_after_a_panic_waits_for_no_other_process_and_none_for_it() {
        const NAME: &str =
            "qp::broken::tests::a_queue_pair_after_a_panic_waits_for_no_other_process_and_none_for_it";
        in_namespace(NAME, || {
            let [a, b] = pair(&open(), Service::Rc, 64);
            let [connection, other] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
            {
                let mut inner = a.qp.inner.lock();
                // As what executes another process's requests, none of which is acknowledged.
                inner.xrc_target.acknowledged = 0;
                // As a target whose requests another process executes.
                let process = a.qp.adapter.xrc.await_answer(&a.qp, 1, connection).unwrap();
                inner.xrc_target.srq_processes.push(process);
            }
            a.recv(1, a.sge(0, 8));
            b.send(2, SendOp::Send, b.sge(0, 8), None);
            assert_eq!(b.wait().wr_id, 2);
            assert!(a.cq.poll(1, |wc| panic!("{wc:?}")).is_ok());

            break_it(&a);
            let received = a.wait();
            assert_eq!((received.wr_id, received.status), (1, WcStatus::Success));
            let (len, _) = frame::receive(other.checked(), &mut [0; 64]).unwrap();
            assert_eq!(len, 0, "the connection has ended");
            a.close();
            b.close();
        });
    }
}
