//! What becomes of a QP in whose work a panic, a bug of this library, has unwound: its state machine stays half changed, so
//! nothing is sent or received from that state. Its requests are flushed if that can still be done.

use super::{Qp, QpEnv};
use crate::ah::Ah;
use crate::error::{Error, Result};
use ferroce_proto::{Env, Instant, QpEvent, QpState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Dropped by unwinding, it ends the QP; whoever comes through forgets it.
pub(super) struct EndsOnPanic<'a>(pub(super) &'a Arc<Qp>);

impl Drop for EndsOnPanic<'_> {
    fn drop(&mut self) {
        let Self(qp) = self;
        qp.broken.store(true, Ordering::Relaxed);
        qp.state.store(QpState::Err as u8, Ordering::Release);
        // Its turn to flush what it has.
        qp.engine.enqueue(qp);
    }
}

impl Qp {
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

/// Flushes what a broken QP has, once.
#[cold]
pub(super) fn flush(
    flushed: &mut bool,
    proto: &mut ferroce_proto::Qp<Arc<Ah>>,
    env: &mut QpEnv<'_>,
    now: Instant,
) {
    if std::mem::replace(flushed, true) {
        return;
    }
    tracing::error!(qpn = env.qp.qpn(), "an internal error has ended a queue pair: this is a bug in Ferroce");
    let done = catch_unwind(AssertUnwindSafe(|| {
        env.event(QpEvent::Fatal);
        proto.set_state(QpState::Err, now, env);
        proto.transmit(now, env, 0);
    }));
    if done.is_err() {
        tracing::error!(qpn = env.qp.qpn(), "its requests can't be flushed either");
    }
    env.publish();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::in_namespace;
    use crate::qp::{QpAttr, mask};
    use crate::side::{Side, open};
    use crate::{AsyncEvent, SendOp, Service, WcStatus, clock};

    #[test]
    fn queue_pair_after_a_panic_is_flushed_and_sends_nothing() {
        const NAME: &str = "qp::broken::tests::queue_pair_after_a_panic_is_flushed_and_sends_nothing";
        in_namespace(NAME, || {
            let context = open();
            let [a, b] = [(); 2].map(|()| Side::new(&context, Service::Rc, 64));
            a.connect(b.qp.qpn());
            b.connect(a.qp.qpn());
            // The peer has no receive: the request stays under way.
            a.send(1, SendOp::Send, a.sge(0, 8), None);
            a.recv(2, a.sge(8, 8));

            let panics =
                || a.qp.engine.with_work(|work| a.qp.work(work, clock::now(), |_, _| panic!("injected")));
            assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());

            let mut flushed = [a.wait(), a.wait()].map(|completion| (completion.wr_id, completion.status));
            flushed.sort_unstable_by_key(|(wr_id, _)| *wr_id);
            assert_eq!(flushed, [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
            let raised: Vec<_> = std::iter::from_fn(|| context.async_events().take()).collect();
            assert!(raised.iter().any(|event| matches!(event, AsyncEvent::QpFatal(_))), "{raised:?}");
            assert_eq!(a.qp.query().state, QpState::Err);
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
}
