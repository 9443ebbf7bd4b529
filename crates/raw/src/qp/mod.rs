//! The queue pairs, with the packet sockets and the flows that they have frames from.

mod create;
mod flow;
mod pace;
mod port;
mod ports;
mod send;

pub use create::RawInit;
pub use flow::{FlowInit, FlowKind, SteeringFlow};
pub use send::RawSend;

use crate::frame::IncomingFrame;
use crate::rss::Rss;
use crate::wq::{Wq, WqPhase};
use ferroce_engine::Deadline;
use ferroce_mem::Pd;
use ferroce_nic::Adapter;
use ferroce_nic::qp::{GatheredWrs, QpCap, WrSession};
use ferroce_os::sync::{Mutex, class};
use ferroce_parts::{AttrRules, QpAttr, check, mask};
use ferroce_queues::late::{self, Late};
use ferroce_queues::{Cq, Unacked};
use ferroce_types::{AsyncEvent, Error, QpState, RecvWqe, Result, Users, invalid};
use pace::SendPace;
use port::PacketPort;
use ports::RAW_QPS;
use std::collections::VecDeque;
use std::sync::Arc;

/// Where received frames go.
enum FrameTarget {
    Queue(Arc<Wq>),
    Spread(Rss),
}

struct RawState {
    state: QpState,
    port_num: u8,
    queue: VecDeque<RawSend>,
    /// Frames of the first request that have gone.
    gone: usize,
    pace: SendPace,
}

/// A raw packet QP.
pub struct RawQp {
    qpn: u32,
    pd: Arc<Pd>,
    send_cq: Option<Arc<Cq>>,
    receive: FrameTarget,
    port: Arc<PacketPort>,
    cap: QpCap,
    sq_sig_all: bool,
    block_self_multicast: bool,
    max_tso_header: u16,
    user_handle: usize,
    adapter: &'static Adapter,
    send: Mutex<class::RawQp, RawState>,
    wr_session: WrSession<RawSend>,
    /// When it may send again.
    deadline: Deadline,
    flows: Users,
    unacked_async: Unacked,
}

impl std::fmt::Debug for RawQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawQp").field("qpn", &self.qpn).finish_non_exhaustive()
    }
}

impl RawQp {
    /// Its number, 24 bits.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Sizes of its queues.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Bytes of headers that a request to segment may have.
    #[must_use]
    pub fn max_tso_header(&self) -> u16 {
        self.max_tso_header
    }

    /// Every send request is signaled.
    #[must_use]
    pub fn sq_sig_all(&self) -> bool {
        self.sq_sig_all
    }

    /// Asynchronous events that the program has to acknowledge.
    #[must_use]
    pub fn unacked_async(&self) -> &Unacked {
        &self.unacked_async
    }

    /// The critical region of its posting threads (ibv_wr_post(3)).
    #[must_use]
    pub fn wr_session(&self) -> &WrSession<RawSend> {
        &self.wr_session
    }

    /// Posts what a critical region has gathered, or nothing.
    ///
    /// # Errors
    /// That of the first request that isn't taken.
    pub fn post_gathered(self: &Arc<Self>, gathered: &mut GatheredWrs<RawSend>) -> Result<()> {
        let requests = gathered.finish()?;
        let mut send = self.send.lock();
        let before = send.queue.len();
        for request in requests {
            let checked = self.check_send(&send, request).inspect_err(|_| send.queue.truncate(before))?;
            send.queue.push_back(checked);
        }
        self.transmit(&mut send);
        Ok(())
    }

    fn port(&self) -> &PacketPort {
        &self.port
    }

    /// Present attributes (ibv_query_qp(3)).
    ///
    /// # Errors
    /// [`Error::NotSupported`] with receive-side scaling: there are no states.
    pub fn query(&self) -> Result<QpAttr> {
        self.queue()?;
        let send = self.send.lock();
        let state = self.state_of(&send);
        let sq_draining = state == QpState::Sqd && !send.queue.is_empty();
        Ok(QpAttr {
            state,
            cur_state: state,
            sq_draining,
            port_num: send.port_num,
            rate_limit: send.pace.kbps(),
            ..QpAttr::default()
        })
    }

    /// The receive queue of its own.
    fn queue(&self) -> Result<&Arc<Wq>> {
        match &self.receive {
            FrameTarget::Queue(wq) => Ok(wq),
            FrameTarget::Spread(_) => Err(Error::NotSupported(
                "a queue pair with an indirection table has no state of its own".into(),
            )),
        }
    }

    /// An error of either queue is one of the QP.
    fn state_of(&self, send: &RawState) -> QpState {
        let failed = matches!(&self.receive, FrameTarget::Queue(wq) if wq.phase() == WqPhase::Error);
        if failed || self.port.is_inherited() { QpState::Err } else { send.state }
    }

    /// Changes attributes and state (ibv_modify_qp(3)). `bits` are those of [`mask`].
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the attribute; [`Error::NotSupported`] with receive-side scaling.
    pub fn modify(self: &Arc<Self>, attr: &QpAttr, bits: u32) -> Result<()> {
        let wq = self.queue()?;
        let mut send = self.send.lock();
        let to = check(AttrRules::RAW, self.state_of(&send), attr, bits)?;
        if self.port.is_inherited() && !matches!(to, QpState::Err | QpState::Reset) {
            return Err(Error::Dead("the queue pair belongs to the process before the fork".into()));
        }
        if bits & mask::PORT != 0 {
            send.port_num = attr.port_num;
        }
        if bits & mask::RATE_LIMIT != 0 {
            send.pace.limit(attr.rate_limit, 0);
        }
        send.state = to;
        match to {
            QpState::Reset => {
                send.port_num = 0;
                self.reset(&mut send);
            }
            QpState::Err => self.fail(&mut send),
            QpState::Init => wq.enter(WqPhase::Init),
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe => wq.enter(WqPhase::Ready),
        }
        self.transmit(&mut send);
        Ok(())
    }

    fn reset(&self, send: &mut RawState) {
        send.state = QpState::Reset;
        send.queue.clear();
        send.gone = 0;
        send.pace = SendPace::default();
        if let FrameTarget::Queue(wq) = &self.receive {
            wq.enter(WqPhase::Reset);
        }
        if let Some(cq) = &self.send_cq {
            cq.forget_qp(self.qpn);
        }
    }

    fn fail_receive_queue(&self) {
        if let FrameTarget::Queue(wq) = &self.receive {
            wq.enter(WqPhase::Error);
        }
    }

    /// Posts a receive request (ibv_post_recv(3)).
    ///
    /// # Errors
    /// [`Error::Invalid`] in RESET, with receive-side scaling, or for too many elements; [`Error::NoMemory`] when the queue
    /// is full.
    pub fn post_recv(&self, wqe: RecvWqe) -> Result<()> {
        match &self.receive {
            FrameTarget::Queue(wq) => wq.post(wqe),
            FrameTarget::Spread(_) => invalid!("the queue pair receives into work queues: post there"),
        }
    }

    /// Takes a frame that a flow has steered here.
    fn receive(&self, frame: &IncomingFrame<'_>, flow_tag: u32) {
        if self.block_self_multicast && frame.sender == Some(self.qpn) && frame.is_multicast() {
            return;
        }
        match &self.receive {
            FrameTarget::Queue(wq) => wq.receive(frame, flow_tag),
            FrameTarget::Spread(rss) => rss.pick(frame).receive(frame, flow_tag),
        }
    }

    fn raise_fatal(&self) {
        self.pd.owner().raise(AsyncEvent::QpFatal(self.user_handle));
    }

    fn hold(&self) {
        self.flows.hold();
    }

    fn release(&self) {
        self.flows.release();
    }

    /// Its context is closed while it exists (ibv_close_device(3)): it sends and receives nothing any more.
    fn end_with_context(self: &Arc<Self>) {
        self.reset(&mut self.send.lock());
        self.adapter.free_qpn(self.qpn);
        RAW_QPS.remove(self);
    }

    /// Ends the QP (ibv_destroy_qp(3)): no completion of it is left in its queues, nothing touches memory through it.
    ///
    /// # Errors
    /// [`Error::Busy`] while a flow steers to it.
    pub fn destroy(self: &Arc<Self>) -> Result<()> {
        self.flows.check_none("the queue pair still has flows")?;
        self.reset(&mut self.send.lock());
        match &self.receive {
            FrameTarget::Queue(wq) => wq.end(),
            FrameTarget::Spread(rss) => rss.table.release(),
        }
        self.adapter.free_qpn(self.qpn);
        RAW_QPS.remove(self);
        self.pd.owner().withdraw(self.user_handle);
        self.unacked_async.wait(|count| late::tell(Late::OfQp, count));
        if let Some(cq) = &self.send_cq {
            cq.release();
        }
        self.pd.release();
        Ok(())
    }
}
