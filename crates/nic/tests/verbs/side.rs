//! One side of a connection: a QP with its memory and completion queue.

use ferroce_mem::{Mr, MrAccess, MrInit, Pd};
use ferroce_nic::qp::{QpCap, QpInit};
use ferroce_nic::{Context, OfContext as _, Poll as _, Qp, devices};
use ferroce_parts::{AddressVector, Ah, QpAttr, mask};
use ferroce_proto::{Data, SendOp, SendWr, UdTarget};
use ferroce_queues::{Cq, Srq};
use ferroce_types::{Access, Completion, QpState, RecvWqe, Sge};
use ferroce_wire::Service;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The Q_Key of each side of UD.
pub const QKEY: u32 = 0x1111_1111;
const LIMIT: Duration = Duration::from_secs(20);

/// One side: a QP with memory of its own.
pub struct Side {
    /// Its queue pair.
    pub qp: Arc<Qp>,
    /// Where sends and receives complete.
    pub cq: Arc<Cq>,
    /// The domain of queue pair and region.
    pub pd: Arc<Pd>,
    /// The region of all of `memory`.
    pub mr: Arc<Mr>,
    /// What messages are sent from and received into.
    pub memory: Box<[u8]>,
    /// The device.
    pub context: Arc<Context>,
}

/// Registers memory of the test, which outlives the region, and which the test and the region access in turns.
pub fn register(pd: &Arc<Pd>, init: MrInit) -> ferroce_types::Result<Arc<Mr>> {
    // SAFETY: see above.
    unsafe { Mr::register(pd, init) }
}

/// The first device.
pub fn open() -> Arc<Context> {
    devices().unwrap()[0].open().unwrap()
}

/// The sizes of a side's queues.
pub fn cap() -> QpCap {
    QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 256 }
}

impl Side {
    /// A side with `bytes` of memory and a completion queue of its own.
    pub fn new(context: &Arc<Context>, service: Service, bytes: usize) -> Self {
        Self::with_cq(context, service, bytes, Cq::create(context, 256, None, 0).unwrap())
    }

    /// As `new`, completing into `cq`.
    pub fn with_cq(context: &Arc<Context>, service: Service, bytes: usize, cq: Arc<Cq>) -> Self {
        Self::of(&Pd::alloc(context).unwrap(), service, bytes, cq, None)
    }

    /// A side of these parts.
    pub fn of(pd: &Arc<Pd>, service: Service, bytes: usize, cq: Arc<Cq>, srq: Option<Arc<Srq>>) -> Self {
        let memory = vec![0u8; bytes].into_boxed_slice();
        let addr = memory.as_ptr() as u64;
        let access = MrAccess::ALL;
        let mr = register(pd, MrInit { addr, length: bytes as u64, iova: addr, access }).unwrap();
        let init = QpInit {
            service,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq,
            cap: cap(),
            sq_sig_all: true,
            user_handle: 0,
        };
        let qp = Qp::create(pd, init).unwrap();
        let context = pd.context();
        Self { qp, cq, pd: pd.clone(), mr, memory, context }
    }

    /// The first byte of the memory.
    pub fn addr(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// `length` bytes of the memory from `offset` on.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.addr() + offset as u64, length: length as u32, lkey: self.mr.key() }
    }

    /// The way to a queue pair of this device.
    pub fn av(&self) -> AddressVector {
        let dgid = self.context.gid(1).unwrap().gid;
        AddressVector {
            is_global: true,
            dgid,
            sgid_index: 1,
            hop_limit: 64,
            port_num: 1,
            ..Default::default()
        }
    }

    /// Takes the queue pair to RESET.
    pub fn reset(&self) {
        let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        self.qp.modify(&attr, mask::STATE).unwrap();
    }

    /// Takes the queue pair to RTS, connected to the one with number `peer`.
    pub fn connect(&self, peer: u32) {
        self.connect_with(peer, |_| ());
    }

    /// As `connect`, with other attributes of the way to RTS.
    pub fn connect_with(&self, peer: u32, change: impl FnOnce(&mut QpAttr)) {
        self.connect_over(peer, self.av(), change);
    }

    /// As `connect`, with another address vector too.
    pub fn connect_over(&self, peer: u32, av: AddressVector, change: impl FnOnce(&mut QpAttr)) {
        self.connect_to_rtr(peer, av);
        self.to_rts(change);
    }

    /// The first part of `connect_over`.
    pub fn connect_to_rtr(&self, peer: u32, av: AddressVector) {
        let ud = self.qp.service() == Service::Ud;
        let rc = matches!(self.qp.service(), Service::Rc | Service::Xrc);
        let attr = QpAttr {
            state: QpState::Init,
            port_num: 1,
            qkey: QKEY,
            access: Access {
                remote_write: true,
                remote_read: rc,
                remote_atomic: rc,
                flush: ferroce_types::Placement { global: rc, persistent: false },
            },
            ..QpAttr::default()
        };
        let bits = mask::STATE | mask::PKEY_INDEX | mask::PORT;
        self.qp.modify(&attr, bits | if ud { mask::QKEY } else { mask::ACCESS_FLAGS }).unwrap();
        let attr = QpAttr {
            state: QpState::Rtr,
            path_mtu: 3,
            dest_qpn: peer,
            rq_psn: 0xff_fff0,
            av,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            ..QpAttr::default()
        };
        let connected = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        let bits = match self.qp.service() {
            Service::Rc | Service::Xrc => connected | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER,
            Service::Uc => connected,
            _ => 0,
        };
        self.qp.modify(&attr, bits | mask::STATE).unwrap();
    }

    fn to_rts(&self, change: impl FnOnce(&mut QpAttr)) {
        let rc = matches!(self.qp.service(), Service::Rc | Service::Xrc);
        let mut attr = QpAttr {
            state: QpState::Rts,
            sq_psn: 0xff_fff0,
            // Two seconds and more until retries are used up: a busy machine may stop for a while.
            timeout: 16,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            ..QpAttr::default()
        };
        change(&mut attr);
        let bits =
            if rc { mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC } else { 0 };
        self.qp.modify(&attr, bits | mask::STATE | mask::SQ_PSN).unwrap();
    }

    /// Posts a receive.
    pub fn recv(&self, wr_id: u64, sge: Sge) {
        self.qp.post_recv(RecvWqe { wr_id, sges: [sge].into_iter().collect() }).unwrap();
    }

    /// Posts a send request.
    ///
    /// # Errors
    /// As `ibv_post_send`.
    pub fn post(
        &self,
        wr_id: u64,
        op: SendOp,
        sge: Sge,
        ud: Option<UdTarget<Arc<Ah>>>,
    ) -> ferroce_types::Result<()> {
        let data = Data::Sges([sge].into_iter().collect());
        let wr =
            SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false, ud, remote_srqn: 0 };
        self.qp.post_send(wr.request())
    }

    /// As `post`, of a request that is taken.
    pub fn send(&self, wr_id: u64, op: SendOp, sge: Sge, ud: Option<UdTarget<Arc<Ah>>>) {
        self.post(wr_id, op, sge, ud).unwrap();
    }

    /// Ends its objects, whatever they are doing.
    pub fn close(self) {
        self.qp.destroy().unwrap();
        self.mr.deregister().unwrap();
        self.cq.destroy().unwrap();
        self.pd.check_unused().unwrap();
    }

    /// The next completion; panics when none comes.
    pub fn wait(&self) -> Completion {
        let start = Instant::now();
        loop {
            let mut got = None;
            self.cq.poll(1, |wc| got = Some(*wc)).unwrap();
            if let Some(wc) = got {
                assert_eq!(wc.qp_num, self.qp.qpn());
                return wc;
            }
            assert!(start.elapsed() < LIMIT, "no completion came");
        }
    }
}
