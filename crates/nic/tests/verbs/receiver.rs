//! What tests of XRC share: an SRQ with what belongs to it, and a target connected with an initiator.

use crate::side::{Side, register};
use ferroce_mem::{Mr, MrAccess, MrInit, Pd};
use ferroce_nic::{Poll as _, XrcTarget, Xrcd};
use ferroce_parts::{QpAttr, mask};
use ferroce_proto::{Data, SendOp, SendWr};
use ferroce_queues::{Cq, Srq, SrqAttr};
use ferroce_types::{Access, Completion, QpState, RecvWqe};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An SRQ with a domain, a completion queue and memory of its own.
pub struct Receiver {
    pub pd: Arc<Pd>,
    pub cq: Arc<Cq>,
    pub srq: Arc<Srq>,
    pub mr: Arc<Mr>,
    pub memory: Box<[u8]>,
}

impl Receiver {
    pub fn new(xrcd: &Arc<Xrcd>, user_handle: usize) -> Self {
        let (context, memory) = (xrcd.context(), vec![0; 1 << 18].into_boxed_slice());
        let (pd, addr) = (Pd::alloc(context).unwrap(), memory.as_ptr() as u64);
        let access = MrAccess::ALL;
        let init = MrInit { addr, length: memory.len() as u64, iova: addr, access };
        let mr = register(&pd, init).unwrap();
        let cq = Cq::create(context, 64, None, 0).unwrap();
        let attr = SrqAttr { max_wr: 16, max_sge: 1, limit: 0 };
        let srq = xrcd.create_srq(&pd, &cq, attr, user_handle).unwrap();
        Self { pd, cq, srq, mr, memory }
    }

    pub fn recv(&self, wr_id: u64) {
        let (addr, length) = (self.memory.as_ptr() as u64, self.memory.len() as u32);
        let sge = ferroce_types::Sge { addr, length, lkey: self.mr.key() };
        self.srq.post(RecvWqe { wr_id, sges: [sge].into_iter().collect() }).unwrap();
    }

    pub fn wait(&self) -> (u32, Completion) {
        let start = Instant::now();
        loop {
            let mut got = None;
            self.cq.poll(1, |wc| got = Some((wc.qp_num, *wc))).unwrap();
            if let Some(got) = got {
                return got;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no completion came");
        }
    }

    pub fn close(self) {
        self.srq.destroy().unwrap();
        self.cq.destroy().unwrap();
        self.mr.deregister().unwrap();
        self.pd.check_unused().unwrap();
    }
}

pub fn send(a: &Side, srqn: u32, wr_id: u64, op: SendOp, len: usize) {
    let data = Data::Sges([a.sge(0, len)].into_iter().collect());
    let wr = SendWr {
        wr_id,
        op,
        data,
        signaled: true,
        solicited: false,
        fence: false,
        ud: None,
        remote_srqn: srqn,
    };
    a.qp.post_send(wr.request()).unwrap();
}

/// Connects an initiator with a target.
pub fn connect(a: &Side, target: &XrcTarget) {
    a.connect(target.qp().qpn());
    accept(a, target);
}

/// Connects a target with an initiator that is connected.
pub fn accept(a: &Side, target: &XrcTarget) {
    let all = Access { remote_write: true, remote_read: true, remote_atomic: true, ..Access::default() };
    let attr = QpAttr {
        state: QpState::Init,
        port_num: 1,
        access: all,
        path_mtu: 3,
        dest_qpn: a.qp.qpn(),
        rq_psn: 0xff_fff0,
        sq_psn: 0xff_fff0,
        av: a.av(),
        max_dest_rd_atomic: 16,
        min_rnr_timer: 1,
        timeout: 16,
        ..QpAttr::default()
    };
    target.modify(&attr, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS).unwrap();
    let bits = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
    let bits = bits | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER | mask::STATE;
    target.modify(&QpAttr { state: QpState::Rtr, ..attr }, bits).unwrap();
    let bits = mask::STATE | mask::TIMEOUT | mask::SQ_PSN;
    target.modify(&QpAttr { state: QpState::Rts, ..attr }, bits).unwrap();
}
