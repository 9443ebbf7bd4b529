//! Posting: ibv_post_send(3), ibv_post_recv(3).

use super::broken::EndsOnPanic;
use super::one_sided::MOST;
use super::plain::ring_bell;
use super::{LockedQp, Path, Qp, look};
use crate::adapter::ThreadBuffers;
use ferroce_hostlink::Link;
use ferroce_os::clock;
use ferroce_parts::Ah;
use ferroce_proto::{DataRef, PostError, SendOp, SendRequest, SendWr};
use ferroce_types::{Error, QpState, RecvWqe, Result, invalid};
use ferroce_wire::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Posts send requests of a queue pair, which is locked meanwhile.
pub struct Poster<'a> {
    qp: &'a Arc<Qp>,
    inner: &'a mut LockedQp,
    /// Takes packets to the network; none: a packet leaves alone.
    work: Option<&'a mut ThreadBuffers>,
    /// A cell was published: the peer is to be woken.
    sent: bool,
    /// Requests that were carried out without a place in the send queue.
    passed: u32,
    /// A completion had no room.
    overrun: bool,
    /// A request was left to the general way, which takes all that follow.
    queued: bool,
}

impl<'a> Poster<'a> {
    pub(super) fn new(
        qp: &'a Arc<Qp>,
        inner: &'a mut LockedQp,
        work: Option<&'a mut ThreadBuffers>,
        queued: bool,
    ) -> Self {
        Self { qp, inner, work, sent: false, passed: 0, overrun: false, queued }
    }

    /// Posts a request.
    ///
    /// # Errors
    /// The request wasn't taken.
    #[inline]
    pub fn post(&mut self, mut request: SendRequest<'_, Arc<Ah>>) -> Result<()> {
        if self.send_at_once(&mut request) {
            return Ok(());
        }
        self.check(&request, 0)?;
        self.queue(&request)
    }

    /// Whether the adapter takes a request after others, of which so many are signaled. The transport has its own checks.
    fn check(&self, request: &SendRequest<'_, Arc<Ah>>, signaled: u32) -> Result<()> {
        self.qp.check_send(request)?;
        self.qp.check_room(self.inner, request, signaled)
    }

    /// Puts a request into the send queue.
    fn queue(&mut self, request: &SendRequest<'_, Arc<Ah>>) -> Result<()> {
        self.queued = true;
        self.inner.proto.post_send(request).map_err(|e| self.qp.post_error(e))
    }

    /// Sends a request, or carries it out, at once. False, and nothing has happened: the general way has to take it, and what comes after.
    #[inline(always)]
    pub fn send_at_once(&mut self, request: &mut SendRequest<'_, Arc<Ah>>) -> bool {
        request.signaled |= self.qp.sq_sig_all;
        let (qp, len) = (self.qp, request.data.len());
        let fits = match request.data {
            DataRef::Sges(_) => qp.cap.max_send_sge > 0,
            DataRef::Inline(_) => len <= u64::from(qp.cap.max_inline_data),
        };
        if self.queued || self.overrun || !fits || qp.service != Service::Rc {
            return false;
        }
        let sent = match request.op {
            SendOp::Send | SendOp::SendWithImmediate { .. } => {
                qp.send_plain(self.inner, request, len) || self.send_packet(request, len)
            }
            SendOp::Write { .. } | SendOp::Read { .. } if (1..=MOST).contains(&len) => {
                // Others wait for the queue pair as long as for a full send queue at most.
                let may = self.passed < qp.cap.max_send_wr;
                if may && qp.reach(self.inner, request, &mut self.overrun) {
                    self.passed += 1;
                    return true;
                }
                match request.op {
                    SendOp::Write { .. } => self.send_packet(request, len),
                    _ => may && qp.send_fetch(self.inner, request) || self.ask(request),
                }
            }
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
                qp.send_fetch(self.inner, request) || self.ask(request)
            }
            _ => false,
        };
        self.sent |= sent;
        sent
    }

    /// As [`Self::send_packet`], of a READ or an atomic.
    fn ask(&mut self, request: &SendRequest<'_, Arc<Ah>>) -> bool {
        self.qp.ask(self.inner, self.work.as_deref_mut(), request)
    }

    /// Sends a request as a packet to the network, in one with those that the poster has sent before, or alone.
    #[inline(always)]
    fn send_packet(&mut self, request: &SendRequest<'_, Arc<Ah>>, len: u64) -> bool {
        match self.work.as_deref_mut() {
            Some(work) => self.qp.send_packet(self.inner, work, request, len),
            None => self.qp.send_alone(self.inner, request, len),
        }
    }
}

impl Qp {
    /// Posts a send request (ibv_post_send(3)).
    ///
    /// # Errors
    /// The request wasn't taken.
    #[inline(always)]
    pub fn post_send(self: &Arc<Self>, mut request: SendRequest<'_, Arc<Ah>>) -> Result<()> {
        if self.shares_memory_with_peer() && !self.is_inherited() {
            let mut inner = self.inner.lock();
            let unwinding = EndsOnPanic(self);
            let mut poster = Poster::new(self, &mut inner, None, false);
            let done = poster.send_at_once(&mut request);
            let Poster { sent, overrun, .. } = poster;
            let left_here = sent && ring_bell(&inner);
            std::mem::forget(unwinding);
            drop(inner);
            if left_here {
                self.adapter.take_what_was_left();
            }
            if overrun {
                self.end_overrun();
            }
            if done {
                return Ok(());
            }
        }
        self.post_queued(request)
    }

    /// As [`Qp::post_send`], the general way.
    #[inline(never)]
    fn post_queued(self: &Arc<Self>, mut request: SendRequest<'_, Arc<Ah>>) -> Result<()> {
        if !self.shares_memory_with_peer() && self.post_alone(&mut request) {
            return Ok(());
        }
        // What goes by shared memory has tried the short way.
        self.post_with(self.shares_memory_with_peer(), |poster| poster.post(request))
    }

    /// Posts send requests, which `post` gives to the poster, and rings once.
    ///
    /// # Errors
    /// That of `post`; the requests that it has posted before are posted.
    pub fn post_list<E: From<Error>>(
        self: &Arc<Self>,
        post: impl FnOnce(&mut Poster<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.post_with(false, post)
    }

    /// As [`Qp::post_list`]. `queued`: all of them take the general way.
    fn post_with<E: From<Error>>(
        self: &Arc<Self>,
        queued: bool,
        post: impl FnOnce(&mut Poster<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if self.is_target() {
            return Err(Error::Invalid("an XRC target has no send queue".into()).into());
        }
        self.adapter.with_work(|work| {
            let mut inner = self.inner.lock();
            self.check_whole()?;
            if self.is_inherited() {
                self.fail_inherited(&mut inner, work);
            }
            let unwinding = EndsOnPanic(self);
            let mut poster = Poster::new(self, &mut inner, Some(work), queued);
            let result = post(&mut poster);
            let Poster { sent, overrun, queued, .. } = poster;
            work.left_here |= sent && ring_bell(&inner);
            std::mem::forget(unwinding);
            if overrun {
                self.work_locked(&mut inner, work, clock::now(), |_, env| env.note_overrun());
            } else if queued && !inner.proto.may_wait_for_more() {
                self.work_locked(&mut inner, work, clock::now(), |_, _| ());
            } else {
                work.send(self.adapter);
            }
            result
        })
    }

    /// Posts all of these requests, or none, and rings once.
    ///
    /// # Errors
    /// That of the first request that can't be taken.
    pub(super) fn post_all(self: &Arc<Self>, requests: &[SendWr<Arc<Ah>>]) -> Result<()> {
        self.post_list(|poster| {
            let mut signaled = 0;
            for (request, before) in requests.iter().zip(0..) {
                let mut request = request.request();
                request.signaled |= self.sq_sig_all;
                poster.check(&request, signaled)?;
                let checked = poster.inner.proto.check_post(&request, before);
                checked.map_err(|e| self.post_error(e))?;
                signaled += u32::from(request.signaled);
            }
            for request in requests {
                let mut request = request.request();
                if !poster.send_at_once(&mut request) {
                    poster.queue(&request)?;
                }
            }
            Ok(())
        })
    }

    /// The number of outstanding send requests that name this local key.
    pub(crate) fn sends_naming(&self, lkey: u32) -> usize {
        self.inner.lock().proto.sends_naming(lkey)
    }

    /// All of its send requests have ended; also false while another thread holds the QP's lock.
    #[must_use]
    pub fn has_nothing_under_way(&self) -> bool {
        self.inner.try_lock().is_some_and(|inner| inner.proto.sq_len() == 0)
    }

    /// In the child of a fork the QP is in ERR (its peer belongs to the parent).
    fn fail_inherited(self: &Arc<Self>, inner: &mut LockedQp, work: &mut ThreadBuffers) {
        if inner.proto.state() != QpState::Err {
            inner.path = None;
            inner.waiting.clear();
            let now = clock::now();
            self.work_locked(inner, work, now, |proto, env| proto.set_state(QpState::Err, env));
        }
    }

    fn check_send(&self, wr: &SendRequest<'_, Arc<Ah>>) -> Result<()> {
        match wr.data {
            DataRef::Sges(sges) if sges.len() > self.cap.max_send_sge as usize => {
                return invalid!("{} gather elements, the queue takes {}", sges.len(), self.cap.max_send_sge);
            }
            // Its 8 bytes are part of the request.
            DataRef::Inline(_) if matches!(wr.op, SendOp::AtomicWrite { .. }) => {}
            DataRef::Inline(bytes) if bytes.len() > self.cap.max_inline_data as usize => {
                return invalid!(
                    "{} bytes inline, the queue takes {}",
                    bytes.len(),
                    self.cap.max_inline_data
                );
            }
            DataRef::Inline(_)
                if matches!(
                    wr.op,
                    SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
                ) =>
            {
                return invalid!("READ and atomics have nothing to send inline");
            }
            _ => {}
        }
        match (wr.ud, self.service) {
            (Some(ud), Service::Ud) if ud.address.pd().id() != self.pd.id() => {
                return invalid!("the address handle is of another protection domain");
            }
            (None, Service::Ud) => return invalid!("a UD send without an address handle"),
            _ => {}
        }
        Ok(())
    }

    /// Whether a request may end before the program polls, and then has no room for its completion, after those of
    /// signaled requests under way. An adapter's send queue would have been full by then, as it counts what hasn't been polled. Within a
    /// process the queue overruns: a program can find out what happens then.
    #[inline]
    pub(super) fn may_overrun(&self, link: &Link, under_way: u32, signaled: bool) -> bool {
        let refuses = signaled && self.shares_memory_with_peer() && !link.is_to_itself();
        refuses && !self.send_cq.has_room(under_way + 1)
    }

    /// See [`Qp::may_overrun`], after `before` other signaled requests. Requests that will be flushed need no
    /// CQ entry.
    fn check_room(&self, inner: &LockedQp, wr: &SendRequest<'_, Arc<Ah>>, before: u32) -> Result<()> {
        let LockedQp { proto, path: Some(Path::Shm { link, .. }), .. } = inner else { return Ok(()) };
        let one_sided = matches!(
            wr.op,
            SendOp::Write { .. } | SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
        );
        let executes = || matches!(proto.state(), QpState::Rts | QpState::Sqd);
        if one_sided && self.may_overrun(link, proto.signaled_len() + before, wr.signaled) && executes() {
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
    #[inline]
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
                let completion = self.flushed_recv(wr_id);
                self.observe_receive(&completion);
                // The QP is in ERR already: an overrun, which the queue itself reports by an event, changes nothing about it.
                let _ = self.recv_cq.push(completion);
                Ok(())
            }
            _ => rq.push(wqe),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Poll as _;
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use ferroce_parts::Ah;
    use ferroce_proto::{Data, SendOp, SendWr};
    use ferroce_types::WcStatus;
    use ferroce_wire::Service;
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
            let with_bad: Vec<_> = [1, 5, 1].map(|elements| send(&side, 0, elements)).into();
            side.qp.post_all(&with_bad).unwrap_err();
            let too_many: Vec<_> = (0..65).map(|n| send(&side, n, 1)).collect();
            side.qp.post_all(&too_many).unwrap_err();
            assert!(side.qp.has_nothing_under_way());
            (0..3).for_each(|n| peer.recv(n, peer.sge(0, 8)));
            side.qp.post_all(&[0, 1, 2].map(|n| send(&side, n, 1))).unwrap();
            for n in 0..3 {
                assert_eq!((side.wait().wr_id, peer.wait().wr_id), (n, n));
            }
            assert_eq!(side.cq.poll(1, |_| ()).unwrap(), 0);
            assert!(side.qp.has_nothing_under_way());
            side.qp.post_all(&[send(&side, 3, 1)]).unwrap();
            assert!(!side.qp.has_nothing_under_way(), "the peer has no receive");
            peer.recv(3, peer.sge(0, 8));
            assert_eq!((side.wait().wr_id, peer.wait().status), (3, WcStatus::Success));
        });
    }
}
