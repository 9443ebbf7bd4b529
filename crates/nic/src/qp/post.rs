//! Posting: ibv_post_send(3), ibv_post_recv(3).

use super::{Inner, PlainSender, Qp, env, look};
use crate::adapter::Work;
use crate::ah::Ah;
use ferroce_os::clock;
use ferroce_proto::{Data, Fetch, OneSided, PlainRequest, PostError, QpState, RecvWqe, SendOp, SendWr};
use ferroce_queues::Wc;
use ferroce_types::{Error, Result, invalid};
use ferroce_wire::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Qp {
    /// Posts send requests, as many as `next` gives, and rings once (ibv_post_send(3)).
    ///
    /// # Errors
    /// The first request that wasn't taken; those before it are posted.
    pub fn post_send(self: &Arc<Self>, next: impl FnMut() -> Option<Result<SendWr<Arc<Ah>>>>) -> Result<()> {
        self.post_list(|_| (), next)
    }

    /// As [`Qp::post_send`], of a list of which `plain` sends the first requests the short way, and `next` gives the others.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    pub fn post_list(
        self: &Arc<Self>,
        plain: impl FnOnce(&mut PlainSender<'_>),
        mut next: impl FnMut() -> Option<Result<SendWr<Arc<Ah>>>>,
    ) -> Result<()> {
        if self.is_target() {
            return invalid!("an XRC target has no send queue");
        }
        self.adapter.with_work(|work| {
            let mut inner = self.inner.lock();
            self.check_whole()?;
            if self.is_inherited() {
                self.fail_inherited(&mut inner, work);
            }
            if self.send_all_plain(&mut inner, plain) {
                self.work_locked(&mut inner, work, clock::now(), |_, env| env.note_overrun());
            }
            let (mut result, mut any) = (Ok(()), false);
            while let Some(wr) = next() {
                any = true;
                let posted = wr.and_then(|mut wr| {
                    self.check_send(&mut wr)?;
                    self.check_room(&inner.proto, &wr, 0)?;
                    inner.proto.post_send(wr).map_err(|e| self.post_error(e))
                });
                if posted.is_err() {
                    result = posted;
                    break;
                }
            }
            if any {
                self.work_locked(&mut inner, work, clock::now(), |_, _| ());
            }
            result
        })
    }

    /// Posts all of these requests, or none, and rings once.
    ///
    /// # Errors
    /// That of the first request that can't be taken.
    pub(super) fn post_all(self: &Arc<Self>, requests: &mut Vec<SendWr<Arc<Ah>>>) -> Result<()> {
        self.adapter.with_work(|work| {
            let mut inner = self.inner.lock();
            self.check_whole()?;
            if self.is_inherited() {
                self.fail_inherited(&mut inner, work);
            }
            let mut signaled = 0;
            for (before, request) in requests.iter_mut().enumerate() {
                self.check_send(request)?;
                self.check_room(&inner.proto, request, signaled)?;
                signaled += u32::from(request.signaled);
                inner.proto.check_post(request, before as u32).map_err(|e| self.post_error(e))?;
            }
            let mut sent = 0;
            let overrun = self.send_all_plain(&mut inner, |sender| {
                let takes = |request: &&SendWr<_>| match request.op {
                    SendOp::Write { .. } | SendOp::Read { .. } => {
                        OneSided::of(*request).is_some_and(|request| sender.reach(&request))
                    }
                    SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
                        Fetch::of(*request).is_some_and(|fetch| sender.fetch(&fetch))
                    }
                    _ => PlainRequest::of(*request).is_some_and(|request| sender.send(&request)),
                };
                sent = requests.iter().take_while(takes).count();
            });
            if overrun {
                self.work_locked(&mut inner, work, clock::now(), |_, env| env.note_overrun());
            }
            if sent == requests.len() {
                return Ok(());
            }
            for request in requests.drain(..).skip(sent) {
                inner.proto.post_send(request).map_err(|e| self.post_error(e))?;
            }
            self.work_locked(&mut inner, work, clock::now(), |_, _| ());
            Ok(())
        })
    }

    /// Send requests that are under way and name this local key.
    pub(crate) fn sends_naming(&self, lkey: u32) -> usize {
        self.inner.lock().proto.sends_naming(lkey)
    }

    /// All of its send requests have ended; false also while somebody is at work there.
    #[must_use]
    pub fn has_nothing_under_way(&self) -> bool {
        self.inner.try_lock().is_some_and(|inner| inner.proto.sq_len() == 0)
    }

    /// In the child of a fork the QP is in ERR (its peer belongs to the parent).
    fn fail_inherited(self: &Arc<Self>, inner: &mut Inner, work: &mut Work) {
        if inner.proto.state() != QpState::Err {
            inner.path = None;
            let now = clock::now();
            self.work_locked(inner, work, now, |proto, env| proto.set_state(QpState::Err, env));
        }
    }

    fn check_send(&self, wr: &mut SendWr<Arc<Ah>>) -> Result<()> {
        match &wr.data {
            Data::Sges(sges) if sges.len() > self.cap.max_send_sge as usize => {
                return invalid!("{} gather elements, the queue takes {}", sges.len(), self.cap.max_send_sge);
            }
            // Its 8 bytes are part of the request.
            Data::Inline(_) if matches!(wr.op, SendOp::AtomicWrite { .. }) => {}
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
            (Some(ud), Service::Ud) if ud.address.pd().id() != self.pd.id() => {
                return invalid!("the address handle is of another protection domain");
            }
            (None, Service::Ud) => return invalid!("a UD send without an address handle"),
            _ => {}
        }
        wr.signaled |= self.sq_sig_all;
        Ok(())
    }

    /// Whether a request may end before the program polls, and then has no room for its completion, after those of
    /// signaled requests under way. An adapter's send queue would have been full by then, as it counts what hasn't been polled.
    #[inline]
    pub(super) fn may_overrun(&self, under_way: u32, signaled: bool) -> bool {
        signaled && self.shares_memory_with_peer() && !self.send_cq.has_room(under_way + 1)
    }

    /// See [`Qp::may_overrun`], after `before` other signaled requests. Requests that will be flushed need no
    /// CQ entry.
    fn check_room(
        &self,
        proto: &ferroce_proto::Qp<Arc<Ah>>,
        wr: &SendWr<Arc<Ah>>,
        before: u32,
    ) -> Result<()> {
        let one_sided = matches!(
            wr.op,
            SendOp::Write { .. } | SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
        );
        let executes = || matches!(proto.state(), QpState::Rts | QpState::Sqd);
        if one_sided && self.may_overrun(proto.signaled_len() + before, wr.signaled) && executes() {
            return Err(Error::NoMemory(
                "the completion queue may be full when the request ends: poll first".into(),
            ));
        }
        Ok(())
    }

    fn post_error(&self, e: PostError) -> Error {
        match e {
            PostError::QueueFull => {
                Error::NoMemory(format!("the send queue of {} work requests is full", self.cap.max_send_wr))
            }
            PostError::State(state) => {
                Error::Invalid(format!("a send request in state {state}: the QP takes them from RTS on"))
            }
            PostError::Operation => Error::Invalid(format!(
                "a QP of type {} doesn't have this operation, or the request lacks its address handle or memory",
                look::service_name(self.service)
            )),
            PostError::Length { len, most } if self.service == Service::Ud => {
                Error::Invalid(format!("{len} bytes exceed the path MTU of {most}: a datagram is one packet"))
            }
            PostError::Length { len, most } => {
                Error::Invalid(format!("{len} bytes exceed the longest message, {most} bytes"))
            }
        }
    }

    /// Posts a receive request (ibv_post_recv(3)).
    ///
    /// # Errors
    /// [`Error::Invalid`] in RESET, with an SRQ, or for too many elements; [`Error::NoMemory`] when the queue is full.
    pub fn post_recv(self: &Arc<Self>, wqe: RecvWqe) -> Result<()> {
        if self.service == Service::Xrc {
            return invalid!("an XRC queue pair has no receive queue: post to a shared one of its domain");
        }
        if self.srq.is_some() {
            return invalid!("the queue pair receives from a shared receive queue: post there");
        }
        let mut rq = self.rq.lock();
        match self.state.load(Ordering::Acquire) {
            s if s == QpState::Reset as u8 => {
                invalid!("a receive request in state RESET: the QP takes them from INIT on")
            }
            s if s == QpState::Err as u8 || self.is_inherited() => {
                let wr_id = wqe.wr_id;
                // Checked as if it were queued, then flushed at once, in order with the queue's other flushes.
                rq.push(wqe)?;
                rq.clear();
                drop(rq);
                let _order = self.inner.lock();
                let completion = env::flushed_recv(wr_id, self.reason.load(Ordering::Relaxed));
                self.observe_receive(&completion);
                // In ERR already, the QP has nothing to add to what an overrun queue says.
                let _ = self.recv_cq.push(Wc::new(self.qpn, completion));
                Ok(())
            }
            _ => rq.push(wqe),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use crate::{Ah, Data, Poll as _, SendOp, SendWr, Service, WcStatus};
    use std::sync::Arc;

    fn send(side: &Side, wr_id: u64, elements: usize) -> SendWr<Arc<Ah>> {
        let data = Data::Sges(std::iter::repeat_n(side.sge(0, 1), elements).collect());
        let op = SendOp::Send;
        SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false, ud: None, remote_srqn: 0 }
    }

    #[test]
    fn requests_are_posted_together_or_not_at_all() {
        in_namespace("qp::post::tests::requests_are_posted_together_or_not_at_all", || {
            let context = open();
            let [side, peer] = [(); 2].map(|()| Side::new(&context, Service::Rc, 64));
            side.connect(peer.qp.qpn());
            peer.connect(side.qp.qpn());
            let mut with_bad: Vec<_> = [1, 5, 1].map(|elements| send(&side, 0, elements)).into();
            side.qp.post_all(&mut with_bad).unwrap_err();
            let mut too_many: Vec<_> = (0..65).map(|n| send(&side, n, 1)).collect();
            side.qp.post_all(&mut too_many).unwrap_err();
            assert!(side.qp.has_nothing_under_way());
            (0..3).for_each(|n| peer.recv(n, peer.sge(0, 8)));
            side.qp.post_all(&mut (0..3).map(|n| send(&side, n, 1)).collect()).unwrap();
            for n in 0..3 {
                assert_eq!((side.wait().wr_id, peer.wait().wr_id), (n, n));
            }
            assert_eq!(side.cq.poll(1, |_| ()).unwrap(), 0);
            assert!(side.qp.has_nothing_under_way());
            side.qp.post_all(&mut vec![send(&side, 3, 1)]).unwrap();
            assert!(!side.qp.has_nothing_under_way(), "the peer has no receive");
            peer.recv(3, peer.sge(0, 8));
            assert_eq!((side.wait().wr_id, peer.wait().status), (3, WcStatus::Success));
        });
    }
}
