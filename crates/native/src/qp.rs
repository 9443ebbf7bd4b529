//! Queue pairs.

use crate::cq::NativeCq;
use crate::device::NativeDomain;
use crate::{failures, library};
use ferroce_buffers::{ConnectedTo, Error, Kind, QpAttributes};
use ferroce_nic::qp::{AddressVector, QpAttr, QpCap, QpInit, mask};
use ferroce_nic::{Access, MAX_MESSAGE, Qp, QpState, RecvWqe, SendRequest, Service, SgeList};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

/// An RC queue pair. It is destroyed with its handle.
pub struct NativeQp {
    qp: Arc<Qp>,
    psn: u32,
    gid_index: u8,
    gid: [u8; 16],
    init: QpAttributes,
    _domain: NativeDomain,
    /// They exist for at least as long.
    _cqs: [NativeCq; 2],
}

impl NativeDomain {
    /// Makes an RC queue pair in INIT.
    ///
    /// # Errors
    /// The completion queues are of another device, or a limit is reached.
    pub fn rc(
        &self,
        send_cq: &NativeCq,
        recv_cq: &NativeCq,
        mut init: QpAttributes,
    ) -> Result<NativeQp, Error> {
        if ![send_cq, recv_cq].iter().all(|cq| cq.domain().shares_device_with(self)) {
            return Err(Error::invalid("build", "the completion queue is of another device"));
        }
        let _inside = library::enter("build")?;
        let (gid_index, gid) = self.gid()?;
        init.mtu = init.mtu.min(self.mtu());
        let cap = QpCap {
            max_send_wr: init.send_depth,
            max_recv_wr: init.recv_depth,
            max_send_sge: init.parts,
            max_recv_sge: init.parts,
            max_inline_data: init.inline,
        };
        let of_nic = QpInit {
            service: Service::Rc,
            send_cq: send_cq.inner().clone(),
            recv_cq: recv_cq.inner().clone(),
            srq: None,
            cap,
            sq_sig_all: false,
            user_handle: 0,
        };
        let qp = Qp::create(self.pd(), of_nic).map_err(|error| library::error("build", &error))?;
        failures::watch(qp.qpn());
        // The keys of a new hasher are random.
        let psn = RandomState::new().hash_one(qp.qpn()) as u32 & 0xff_ffff;
        let (domain, cqs) = (self.clone(), [send_cq.clone(), recv_cq.clone()]);
        let qp = NativeQp { qp, psn, gid_index, gid, init, _domain: domain, _cqs: cqs };
        qp.modify("build", mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS, |attr| {
            attr.state = QpState::Init;
            attr.port_num = 1;
            attr.access =
                Access { remote_write: true, remote_read: true, remote_atomic: true, ..Access::default() };
        })?;
        Ok(qp)
    }
}

impl NativeQp {
    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.qp.qpn()
    }

    /// The PSN of its first request.
    #[must_use]
    pub const fn psn(&self) -> u32 {
        self.psn
    }

    /// The address of its device.
    #[must_use]
    pub const fn gid(&self) -> [u8; 16] {
        self.gid
    }

    /// Bytes of payload that its packets may carry.
    #[must_use]
    pub const fn mtu(&self) -> u32 {
        self.init.mtu
    }

    fn modify(&self, verb: &'static str, bits: u32, change: impl FnOnce(&mut QpAttr)) -> Result<(), Error> {
        let mut attr = QpAttr::default();
        change(&mut attr);
        self.qp.modify(&attr, bits | mask::STATE).map_err(|error| library::error(verb, &error))
    }

    /// Connects it, and takes it to RTS. Its first request has the PSN `psn`, or that of [`NativeQp::psn`].
    ///
    /// # Errors
    /// The peer's address can't be reached from this device.
    pub fn connect(&self, peer: &ConnectedTo, psn: Option<u32>) -> Result<(), Error> {
        let _inside = library::enter("connect")?;
        let &ConnectedTo { gid, qpn, psn: rq_psn, mtu, reads } = peer;
        let Self { init, gid_index, .. } = self;
        let to_rtr = mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        self.modify("connect", to_rtr, |attr| {
            attr.state = QpState::Rtr;
            // 1 is 256.
            attr.path_mtu = (init.mtu.min(mtu).ilog2() - 7) as u8;
            (attr.dest_qpn, attr.rq_psn) = (qpn, rq_psn);
            attr.max_dest_rd_atomic = init.peer_reads;
            attr.min_rnr_timer = init.rnr_timer;
            attr.av = AddressVector {
                is_global: true,
                dgid: gid,
                sgid_index: *gid_index,
                hop_limit: 64,
                port_num: 1,
                ..AddressVector::default()
            };
        })?;
        let to_rts =
            mask::SQ_PSN | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
        self.modify("connect", to_rts, |attr| {
            attr.state = QpState::Rts;
            attr.sq_psn = psn.unwrap_or(self.psn);
            (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (init.timeout, init.retries, init.rnr_retries);
            attr.max_rd_atomic = init.reads.min(reads);
        })
    }

    /// Whether [`NativeQp::post`] takes a message of so many bytes.
    ///
    /// # Errors
    /// It doesn't.
    #[inline]
    pub fn check(&self, len: u64) -> Result<(), Error> {
        if len > u64::from(MAX_MESSAGE) {
            let why = format!("{len} bytes, at most {MAX_MESSAGE} fit a message");
            return Err(Error::new(Kind::TooLong, "post", why));
        }
        Ok(())
    }

    /// Posts a request that [`NativeQp::check`] has accepted.
    #[inline]
    pub fn post(&self, request: &SendRequest<'_, ()>) {
        let &SendRequest { wr_id, op, data, signaled, solicited, fence, remote_srqn, .. } = request;
        let request = SendRequest { wr_id, op, data, signaled, solicited, fence, ud: None, remote_srqn };
        let posted = library::enter("post").map(|_inside| self.qp.post_send(request));
        if !matches!(posted, Ok(Ok(()))) {
            self.refused();
        }
    }

    /// Posts a receive.
    #[inline]
    pub fn receive(&self, wr_id: u64, sges: SgeList) {
        let posted = library::enter("recv").map(|_inside| self.qp.post_recv(RecvWqe { wr_id, sges }));
        if !matches!(posted, Ok(Ok(()))) {
            self.refused();
        }
    }

    /// The adapter has refused a request for another reason than what it asks for: a bug has stopped the queue pair, or the process
    /// can't use the adapter. The request keeps its memory until the queue pair is destroyed.
    #[cold]
    fn refused(&self) {
        self.abort();
    }

    /// Takes it to ERR: all requests are flushed.
    pub fn abort(&self) {
        library::until_done("abort", || {
            self.qp.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, mask::STATE)
        });
    }

    /// Whether it has failed, or was aborted.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let Ok(_inside) = library::enter("is_dead") else { return true };
        // A thread that is at work for it hasn't found it dead.
        self.qp.query().is_ok_and(|attr| attr.state == QpState::Err)
    }
}

impl Drop for NativeQp {
    fn drop(&mut self) {
        library::until_done("destroy", || self.qp.destroy());
        if let Ok(_inside) = library::enter("destroy") {
            failures::forget(self.qp.qpn());
        }
    }
}

impl fmt::Debug for NativeQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeQp({:#x})", self.qp.qpn())
    }
}
