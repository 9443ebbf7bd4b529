//! The one place where a QP's lock is taken to let the transport work.

use super::broken::{self, EndsOnPanic};
use super::fabric::Listing;
use super::{LockedQp, Path, Qp, QpEnv};
use crate::adapter::ThreadBuffers;
use ferroce_os::clock;
use ferroce_parts::Ah;
use ferroce_proto::{Env, QpEvent};
use ferroce_types::{Instant, QpState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes a QP may send in one go before others get their turn.
const BUDGET: u32 = 64 * 1024;
/// How long a thread that makes progress for all QPs waits for the lock of one.
const MOMENT: Duration = Duration::from_millis(1);
/// When a QP looks for its memory again that a thread is bringing.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// When it tries again.
const PUT_OFF: Duration = Duration::from_millis(10);

impl Qp {
    /// Lets the transport work, with the QP locked; then sends what came of it, publishes completions, sets timers.
    pub(crate) fn work(
        self: &Arc<Self>,
        work: &mut ThreadBuffers,
        now: Instant,
        f: impl FnOnce(&mut ferroce_proto::QpProtocol<Arc<Ah>>, &mut QpEnv<'_>),
    ) {
        let mut inner = self.inner.lock();
        self.work_locked(&mut inner, work, now, f);
    }

    /// As [`Qp::work`], unless another thread holds the QP's lock: then it returns false.
    pub(crate) fn try_work(
        self: &Arc<Self>,
        work: &mut ThreadBuffers,
        now: Instant,
        f: impl FnOnce(&mut ferroce_proto::QpProtocol<Arc<Ah>>, &mut QpEnv<'_>),
    ) -> bool {
        let Some(mut inner) = self.inner.try_lock() else { return false };
        self.work_locked(&mut inner, work, now, f);
        true
    }

    /// As [`Qp::work`], for a thread that makes progress for all QPs. A page of the program's memory can hold a thread up in its work for this one
    /// for any time: then the turn is put off, and comes again by the QP's deadline.
    pub(crate) fn work_in_turn(
        self: &Arc<Self>,
        work: &mut ThreadBuffers,
        now: Instant,
        f: impl FnOnce(&mut ferroce_proto::QpProtocol<Arc<Ah>>, &mut QpEnv<'_>),
    ) {
        // Many QPs may be held up: each is waited for once.
        let was_held_up = self.is_held_up.load(Ordering::Relaxed);
        let locked = if was_held_up { self.inner.try_lock() } else { self.inner.try_lock_for(MOMENT) };
        if was_held_up != locked.is_none() {
            self.is_held_up.store(locked.is_none(), Ordering::Relaxed);
        }
        match locked {
            Some(mut inner) => self.work_locked(&mut inner, work, now, f),
            // The lock that this otherwise needs keeps one thread from overwriting the deadline of another: here either is early enough.
            None => self.adapter.schedule(self, clock::now().after(PUT_OFF)),
        }
    }

    /// Ends the QP for good: nothing of it gets in or out any more. If a thread is held up in its work for the QP for longer than `within`,
    /// another thread ends the QP later.
    pub(crate) fn fail(self: &Arc<Self>, within: Duration) {
        if !self.fail_within(within) {
            self.repeat_in_thread(|qp| qp.fail_within(Duration::ZERO));
        }
    }

    fn fail_within(self: &Arc<Self>, within: Duration) -> bool {
        self.adapter.with_work(|work| {
            let Ok(mut inner) = self.lock_within(within) else { return false };
            inner.path = None;
            inner.waiting.clear();
            self.work_locked(&mut inner, work, clock::now(), end);
            true
        })
    }

    pub(super) fn work_locked(
        self: &Arc<Self>,
        inner: &mut LockedQp,
        work: &mut ThreadBuffers,
        now: Instant,
        f: impl FnOnce(&mut ferroce_proto::QpProtocol<Arc<Ah>>, &mut QpEnv<'_>),
    ) {
        let unwinding = EndsOnPanic(self);
        let dead = self.unconfirmed_link(inner).is_some_and(|link| link.is_dead());
        // The peer may have refused the link late, or it uses another link. If UDP fails too, packets are lost, and the QP tries
        // again in its next turn.
        let falls_back = dead && !std::mem::take(&mut inner.udp_failed);
        if falls_back {
            work.falling_back.push(self.clone());
        }
        let ecn = inner.is_ecn_capable();
        let LockedQp {
            connection,
            flushed,
            proto,
            path,
            listing,
            owes,
            xrc_target,
            unacked_pace,
            unread,
            held,
            waiting,
            kept,
            ..
        } = inner;
        let mut env = QpEnv {
            qp: self,
            connection: *connection,
            path: path.as_ref(),
            work,
            meta: None,
            listed: *listing == Listing::Listed,
            falls_back,
            xrc_target,
            now,
            unacked_pace,
            unread,
            held,
            waiting,
            kept,
            ecn,
        };
        if self.is_broken() {
            broken::work(flushed, proto, listing, &mut env, now);
            self.note_owing(owes, false);
            return std::mem::forget(unwinding);
        }
        if !env.waiting.is_empty() {
            env.handle_waiting(proto, now);
        }
        f(proto, &mut env);
        let more = proto.wants_transmit() && proto.transmit(now, &mut env, BUDGET);
        proto.flush_acks(&mut env);
        env.work.send(self.adapter);
        if proto.state() == QpState::Err {
            env.waiting.clear();
            // Withdraw before flushing: after a flush completion the program owns its buffers again.
            listing.withdraw(self.qpn);
        }
        let unacknowledged_from = match proto.state() {
            // A NAK that waits for room leaves later.
            QpState::Err => u64::MAX,
            _ => proto.unacknowledged_from(),
        };
        match proto.state() {
            QpState::Reset => env.held.clear(),
            _ => env.publish(unacknowledged_from),
        }
        env.report_acknowledged(unacknowledged_from);
        if std::mem::take(&mut env.work.overrun) {
            // A completion queue had no room for a completion of this QP. The requests that are flushed now complete in the
            // queues that have room.
            proto.note_overrun(&mut env);
            end(proto, &mut env);
            listing.withdraw(self.qpn);
            env.publish(u64::MAX);
            env.work.overrun = false;
        }
        let owes_answers = proto.owes_answers() || env.xrc_target.has_backlog() || env.waiting.has_requests();
        self.note_owing(owes, matches!(path, Some(Path::Shm { .. })) && owes_answers);
        let state = proto.state();
        self.state.store(state as u8, Ordering::Release);
        let waits = env.work.blocked_on.take().is_some_and(|link| self.wait_for_room(&link, now));
        let blocked = std::mem::take(&mut env.work.blocked) && !waits;
        let looks_at = std::mem::take(&mut env.work.awaits_memory).then(|| now.after(LOOK_AGAIN));
        if let Some(at) = proto.next_timeout().into_iter().chain(looks_at).min() {
            self.adapter.schedule(self, at);
        }
        if more || blocked {
            self.adapter.enqueue(self);
        }
        std::mem::forget(unwinding);
    }
}

/// The QP can't be used any more: raises `QpEvent::Fatal` and flushes the requests.
#[cold]
fn end(proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>, env: &mut QpEnv<'_>) {
    if !matches!(proto.state(), QpState::Reset | QpState::Err) {
        env.event(QpEvent::Fatal);
        proto.set_state(QpState::Err, env);
    }
}
