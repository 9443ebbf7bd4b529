//! Attributes and state: ibv_modify_qp(3), ibv_query_qp(3).

use super::{LockedQp, Path, Qp, QpAttr, next_connection};
use crate::adapter;
use crate::device::OfContext as _;
use ferroce_os::fork::{self, OwnTurn};
use ferroce_os::sync::{MutexGuard, class};
use ferroce_os::{clock, sys};
use ferroce_parts::{UnreadRecords, check, check_rate, limit_of, mask, stricter};
use ferroce_proto::{LEAST_ACK_TIMEOUT, RateLimit};
use ferroce_types::{Error, QpState, Result, invalid};
use ferroce_wire::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The longest that a thread waits for others which change the same QP: longer than to find an address at which a peer is reached.
const CHANGE: Duration = Duration::from_secs(5);
/// The longest that a call waits for a thread that works for the QP.
pub(crate) const HELD_UP: Duration = Duration::from_secs(1);

/// Waits until no thread works for the queue pair with this number, for a second at most. What such a thread has acknowledged to the peer
/// is in the completion queues then.
pub fn wait_for_work(qpn: u32) {
    if let Some(qp) = adapter::current().and_then(|adapter| adapter.qp(qpn)) {
        drop(qp.lock_in_time());
    }
}

impl Qp {
    /// Present attributes (ibv_query_qp(3)).
    ///
    /// # Errors
    /// [`Error::Busy`] when a thread is held up in its work for the queue pair.
    pub fn query(&self) -> Result<QpAttr> {
        let inner = self.lock_in_time()?;
        let state = if self.is_inherited() || self.is_broken() { QpState::Err } else { inner.proto.state() };
        self.explain_timeout(&inner.attr);
        Ok(QpAttr {
            state,
            cur_state: state,
            sq_draining: state == QpState::Sqd && inner.proto.sq_len() > 0,
            ..inner.attr
        })
    }

    /// Locks it for a call of the program. A thread that works for the queue pair can be held up for any time by a page of the program's
    /// memory.
    ///
    /// # Errors
    /// [`Error::Busy`] after a second.
    pub(super) fn lock_in_time(&self) -> Result<MutexGuard<'_, class::Qp, LockedQp>> {
        self.lock_within(HELD_UP)
    }

    /// As [`Qp::lock_in_time`], with another bound.
    ///
    /// # Errors
    /// [`Error::Busy`] at its end.
    pub(super) fn lock_within(&self, bound: Duration) -> Result<MutexGuard<'_, class::Qp, LockedQp>> {
        if let Some(locked) = self.inner.try_lock() {
            return Ok(locked);
        }
        self.callers.fetch_add(1, Ordering::Relaxed);
        let locked = self.inner.try_lock_for(bound);
        self.callers.fetch_sub(1, Ordering::Relaxed);
        locked.ok_or_else(|| {
            Error::Busy(
                "a thread is held up in its work for the queue pair (by memory that isn't there?)".into(),
            )
        })
    }

    /// Gives calls that wait for the queue pair some time to lock it. A thread that copies a long message locks it again as soon as it has
    /// unlocked it: a call that has to wake up first would wait for the end of all messages.
    pub(super) fn let_callers_in(&self) {
        const OFFERED: Duration = Duration::from_micros(100);
        if self.callers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let end = clock::now().after(OFFERED);
        while self.callers.load(Ordering::Relaxed) != 0 && clock::now() < end {
            sys::yield_processor();
        }
    }

    /// Changes attributes and state (ibv_modify_qp(3)). `bits` are those of [`mask`].
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the attribute.
    pub fn modify(self: &Arc<Self>, attr: &QpAttr, bits: u32) -> Result<()> {
        self.check_whole()?;
        let bits = self.rules().known(bits);
        let _turn = self.wait_for_turn()?;
        // Asking another process can take a while: not with the QP locked.
        let path = self.new_path(attr, bits)?;
        self.unlist()?;
        let result = self.modify_unlisted(attr, bits, path);
        // Whether the change was made doesn't depend on it.
        self.list_again();
        result
    }

    fn modify_unlisted(self: &Arc<Self>, attr: &QpAttr, bits: u32, path: Option<(Path, u32)>) -> Result<()> {
        if bits & mask::STATE != 0 && self.has_to_take_before(attr.state)? {
            self.adapter.take_what_has_come(self, HELD_UP)?;
        }
        self.modify_with(attr, bits, path)
    }

    /// One thread at a time changes or ends a QP: no process accesses memory through it in the middle.
    ///
    /// # Errors
    /// [`Error::Busy`] when others change it for longer than [`CHANGE`]; [`Error::Invalid`] when it has ended.
    pub(super) fn wait_for_turn(&self) -> Result<OwnTurn<'_>> {
        let pause = |round| fork::outside_library(|| sys::pause(round));
        match self.changing.wait(CHANGE, pause) {
            Some(_) if self.ended.load(Ordering::Relaxed) => invalid!("the queue pair is being destroyed"),
            Some(turn) => Ok(turn),
            None => Err(Error::Busy("other threads change the queue pair, or end it".into())),
        }
    }

    /// What has come until now is for the connection, and the state, that `to` ends.
    ///
    /// # Errors
    /// [`Error::Busy`] when a thread is held up in its work for the queue pair.
    pub(super) fn has_to_take_before(&self, to: QpState) -> Result<bool> {
        if self.is_inherited() {
            // It has come for the parent.
            return Ok(false);
        }
        let inner = self.lock_in_time()?;
        let from = inner.proto.state();
        Ok(match to {
            QpState::Reset => from != QpState::Reset,
            QpState::Rtr => inner.was_reset && from == QpState::Init,
            QpState::Err => !matches!(from, QpState::Reset | QpState::Init | QpState::Err),
            _ => false,
        })
    }

    fn modify_with(self: &Arc<Self>, attr: &QpAttr, bits: u32, path: Option<(Path, u32)>) -> Result<()> {
        self.adapter.with_work(|work| {
            let mut inner = self.lock_in_time()?;
            let from = inner.proto.state();
            let to = check(self.rules(), from, attr, bits)?;
            if self.is_inherited() && !matches!(to, QpState::Err | QpState::Reset) {
                return Err(Error::Dead("the queue pair belongs to the process before the fork".into()));
            }
            let has = |bit: u32| bits & bit != 0;
            if to == QpState::Reset {
                inner.attr = QpAttr::default();
                inner.connection = next_connection();
                inner.was_reset = true;
                inner.path = None;
                inner.waiting.clear();
                self.return_receive(&mut inner);
                inner.unread = UnreadRecords::default();
                inner.ece = None;
                self.reset_xrc_target(&mut inner);
            } else {
                merge(&mut inner.attr, attr, bits);
            }
            if let Some((path, mtu)) = path {
                let params = inner.proto.params_mut();
                params.path_mtu = mtu;
                params.lossless = Self::is_lossless(&path);
                inner.path = Some(path);
                self.peer_uses_shm.store(false, Ordering::Relaxed);
                self.peer_connection.store(0, Ordering::Relaxed);
                self.last_answer.store(0, Ordering::Relaxed);
                self.not_waiting.store(0, Ordering::Relaxed);
            } else if self.service == Service::Ud {
                inner.proto.params_mut().path_mtu = self.pd.context().port().active_mtu;
            }
            if has(mask::TIMEOUT) {
                self.explain_timeout(&inner.attr);
            }
            self.notify_drained.store(inner.attr.en_sqd_async_notify, Ordering::Relaxed);
            self.set_params(&mut inner);
            if has(mask::STATE) && (to != from || to == QpState::Reset) {
                if matches!(to, QpState::Reset | QpState::Rts) {
                    self.forget_failure();
                }
                if to == QpState::Reset {
                    self.rq.lock().clear();
                    self.send_cq.forget_qp(self.qpn);
                    self.recv_cq.forget_qp(self.qpn);
                }
                let now = ferroce_os::clock::now();
                self.work_locked(&mut inner, work, now, |proto, env| proto.set_state(to, env));
            }
            let using = matches!(to, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
            self.adapter.listen(self.qpn, using && !self.peer_uses_shm(), inner.path.as_ref());
            Ok(())
        })
    }

    /// The QP is about to be reset: the receive of a message that hasn't ended goes back to its shared receive queue. The specification
    /// permits that it is lost (IBTA, Destroy Queue Pair).
    pub(super) fn return_receive(&self, inner: &mut LockedQp) {
        let of_target = match inner.xrc_target.receiving_srq {
            Some(_) => inner.xrc_target.receiving_srq.take(),
            None => None,
        };
        if let Some(srq) = of_target.as_ref().or(self.srq.as_ref())
            && let Some(receive) = inner.proto.take_unfinished_receive()
        {
            srq.put_back(receive);
        }
    }

    /// Logs the ACK timeout that counts, where it is longer than the program's attribute. Queries return the attribute as it was set.
    fn explain_timeout(&self, attr: &QpAttr) {
        if (1..LEAST_ACK_TIMEOUT).contains(&(attr.timeout & 31)) {
            tracing::info!(
                qpn = self.qpn,
                "a local ACK timeout of {} counts as {LEAST_ACK_TIMEOUT} (4.2 ms): no software answers sooner for sure",
                attr.timeout
            );
        }
    }

    fn set_params(&self, inner: &mut LockedQp) {
        let attr = inner.attr;
        let params = inner.proto.params_mut();
        params.access = attr.access;
        params.qkey = attr.qkey;
        params.dest_qpn = attr.dest_qpn;
        params.wire_mtu = 128 << attr.path_mtu;
        params.rq_psn = attr.rq_psn;
        params.sq_psn = attr.sq_psn;
        params.max_rd_atomic = attr.max_rd_atomic;
        params.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        params.min_rnr_timer = attr.min_rnr_timer;
        params.timeout = attr.timeout;
        params.retry_cnt = attr.retry_cnt;
        params.rnr_retry = attr.rnr_retry;
        params.srq = self.srq.is_some() || self.is_target();
        params.tags = self.srq.as_ref().is_some_and(|srq| srq.matches_tags());
        // Datagrams have an address each, and its limit.
        let of_path = if self.service == Service::Ud { None } else { limit_of(attr.av.static_rate) };
        let of_program = RateLimit::new(attr.rate_limit, attr.max_burst);
        inner.proto.limit_rate(stricter(of_program, of_path));
    }

    /// Limits what the QP sends (ibv_modify_qp_rate_limit(3)): thousands of bits a second, 0 for no limit, and bytes at
    /// once, 0 for the adapter's choice.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rate above `MAX_RATE`, a burst without a rate, and in a state where nothing is sent.
    pub fn limit_rate(self: &Arc<Self>, rate_limit: u32, max_burst: u32) -> Result<()> {
        check_rate(rate_limit, max_burst)?;
        self.adapter.with_work(|work| {
            let mut inner = self.lock_in_time()?;
            let state = inner.proto.state();
            if !matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd) || self.is_inherited() {
                return invalid!("a rate limit in state {state}");
            }
            inner.attr.rate_limit = rate_limit;
            inner.attr.max_burst = max_burst;
            self.set_params(&mut inner);
            // What waited for the old limit waits no longer.
            self.work_locked(&mut inner, work, ferroce_os::clock::now(), |_, _| ());
            Ok(())
        })
    }
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
        RATE_LIMIT => rate_limit;
    }
    to.rq_psn &= 0xff_ffff;
    to.sq_psn &= 0xff_ffff;
    to.dest_qpn &= 0xff_ffff;
}

#[cfg(test)]
mod tests {
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use ferroce_wire::Service;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    #[test]
    fn a_wait_for_work_ends_with_the_work() {
        in_namespace("qp::modify::tests::a_wait_for_work_ends_with_the_work", || {
            let side = Side::new(&open(), Service::Rc, 64);
            let qpn = side.qp.qpn();
            let (end, ended) = channel();
            let (waiter, ended) = side.qp.while_busy(move || {
                let waiter = std::thread::spawn(move || {
                    crate::wait_for_work(qpn);
                    end.send(()).unwrap();
                });
                assert_eq!(ended.recv_timeout(Duration::from_millis(200)), Err(RecvTimeoutError::Timeout));
                (waiter, ended)
            });
            ended.recv().unwrap();
            waiter.join().unwrap();
            side.close();
            // There is none with this number any more.
            crate::wait_for_work(qpn);
        });
    }
}
