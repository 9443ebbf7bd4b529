//! Queue pairs.

use crate::cq::NativeCq;
use crate::device::NativeDomain;
use crate::srq::NativeSrq;
use crate::{failures, library};
use ferroce_buffers::{ConnectedTo, Error, QpAttributes, QpService, Segments};
use ferroce_nic::qp::{QpCap, QpInit};
use ferroce_nic::{Qp, create_ah};
use ferroce_parts::{AddressVector, Ah, QpAttr, mask};
use ferroce_proto::{SendRequest, UdTarget};
use ferroce_types::{Access, QpState, RecvWqe};
use ferroce_wire::Service;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

/// A queue pair. It is destroyed with its handle.
pub struct NativeQp {
    qp: Arc<Qp>,
    psn: u32,
    gid_index: u8,
    gid: [u8; 16],
    init: QpAttributes,
    domain: NativeDomain,
    /// They exist for at least as long.
    _cqs: [NativeCq; 2],
    _srq: Option<NativeSrq>,
}

/// The way to a queue pair that receives datagrams.
pub struct NativeAddress {
    target: UdTarget<Arc<Ah>>,
    domain: NativeDomain,
}

impl Drop for NativeAddress {
    fn drop(&mut self) {
        if let Ok(_inside) = library::enter("address") {
            self.target.address.destroy();
        }
    }
}

impl fmt::Debug for NativeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeAddress({:#x})", self.target.qpn)
    }
}

/// The address vector of a peer.
fn vector(gid_index: u8, dgid: [u8; 16]) -> AddressVector {
    AddressVector {
        is_global: true,
        dgid,
        sgid_index: gid_index,
        hop_limit: 64,
        port_num: 1,
        ..AddressVector::default()
    }
}

impl NativeDomain {
    /// Makes a queue pair in INIT.
    ///
    /// # Errors
    /// The other queues are of another device, or a limit is reached.
    pub fn qp(
        &self,
        [send_cq, recv_cq]: [&NativeCq; 2],
        srq: Option<&NativeSrq>,
        mut init: QpAttributes,
    ) -> Result<NativeQp, Error> {
        if ![send_cq, recv_cq].iter().all(|cq| cq.domain().shares_device_with(self)) {
            return Err(Error::invalid("build", "the completion queue is of another device"));
        }
        if srq.is_some_and(|srq| !srq.domain().is(self)) {
            return Err(Error::invalid("build", "the shared receive queue is of another domain"));
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
        let service = match init.service {
            QpService::Reliable => Service::Rc,
            QpService::Unreliable => Service::Uc,
            QpService::Datagram => Service::Ud,
        };
        let of_nic = QpInit {
            service,
            send_cq: send_cq.inner().clone(),
            recv_cq: recv_cq.inner().clone(),
            srq: srq.map(|srq| srq.inner().clone()),
            cap,
            sq_sig_all: false,
            user_handle: 0,
        };
        let qp = Qp::create(self.pd(), of_nic).map_err(|error| library::error("build", &error))?;
        failures::watch(qp.qpn());
        // The keys of a new hasher are random.
        let psn = RandomState::new().hash_one(qp.qpn()) as u32 & 0xff_ffff;
        let (domain, cqs) = (self.clone(), [send_cq.clone(), recv_cq.clone()]);
        let qp = NativeQp { qp, psn, gid_index, gid, init, domain, _cqs: cqs, _srq: srq.cloned() };
        let rights = if init.service == QpService::Datagram { mask::QKEY } else { mask::ACCESS_FLAGS };
        qp.modify("build", mask::PKEY_INDEX | mask::PORT | rights, |attr| {
            attr.state = QpState::Init;
            attr.port_num = 1;
            let reliable = init.service == QpService::Reliable;
            attr.access = Access {
                remote_write: true,
                remote_read: reliable,
                remote_atomic: reliable,
                ..Access::default()
            };
        })?;
        Ok(qp)
    }

    /// The way to a queue pair.
    ///
    /// # Errors
    /// This device can't reach its address.
    pub fn address(&self, gid: [u8; 16], qpn: u32, qkey: u32) -> Result<NativeAddress, Error> {
        let _inside = library::enter("address")?;
        let (gid_index, _) = self.gid()?;
        let address = create_ah(self.pd(), vector(gid_index, gid));
        let address = address.map_err(|error| library::error("address", &error))?;
        Ok(NativeAddress { target: UdTarget { address, qpn, qkey }, domain: self.clone() })
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
        let reliable = init.service == QpService::Reliable;
        let of_reliable = |bits: u32| if reliable { bits } else { 0 };
        let to_rtr = mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | of_reliable(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER);
        self.modify("connect", to_rtr, |attr| {
            attr.state = QpState::Rtr;
            // 1 is 256.
            attr.path_mtu = (init.mtu.min(mtu).ilog2() - 7) as u8;
            (attr.dest_qpn, attr.rq_psn) = (qpn, rq_psn);
            attr.max_dest_rd_atomic = init.peer_reads;
            attr.min_rnr_timer = init.rnr_timer;
            attr.av = vector(*gid_index, gid);
        })?;
        let to_rts = mask::SQ_PSN
            | of_reliable(mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC);
        self.modify("connect", to_rts, |attr| {
            attr.state = QpState::Rts;
            attr.sq_psn = psn.unwrap_or(self.psn);
            (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (init.timeout, init.retries, init.rnr_retries);
            attr.max_rd_atomic = init.reads.min(reads);
        })
    }

    /// Lets it send, and receive datagrams with this Q_Key.
    ///
    /// # Errors
    /// The adapter refuses.
    pub fn activate(&self, qkey: u32) -> Result<(), Error> {
        let _inside = library::enter("activate")?;
        self.modify("activate", mask::QKEY, |attr| {
            attr.state = QpState::Rtr;
            attr.qkey = qkey;
        })?;
        self.modify("activate", mask::SQ_PSN, |attr| {
            attr.state = QpState::Rts;
            attr.sq_psn = self.psn;
        })
    }

    /// Whether it sends to this address.
    #[must_use]
    pub fn takes(&self, to: &NativeAddress) -> bool {
        to.domain.is(&self.domain)
    }

    /// Posts a request for which the queue has room; `build` gets the way to its target. False: the adapter has refused it, and the
    /// queue pair has failed.
    #[inline(always)]
    pub fn post<'a>(
        &self,
        build: impl FnOnce(Option<&'a UdTarget<Arc<Ah>>>) -> SendRequest<'a, Arc<Ah>>,
        to: Option<&'a NativeAddress>,
    ) -> bool {
        let request = build(to.map(|to| &to.target));
        // A refusal ends the queue pair, which waits: outside, so that a fork doesn't wait for it.
        let posted = {
            let Ok(_inside) = library::enter("post") else { return self.refused() };
            self.qp.post_send(request)
        };
        self.taken(posted)
    }

    /// Posts a receive. False: as [`NativeQp::post`].
    #[inline(always)]
    pub fn receive(&self, wr_id: u64, segments: Segments) -> bool {
        let posted = {
            let Ok(_inside) = library::enter("recv") else { return self.refused() };
            self.qp.post_recv(RecvWqe { wr_id, sges: segments.into_list() })
        };
        self.taken(posted)
    }

    /// Whether the adapter has taken a request.
    #[inline(always)]
    fn taken(&self, posted: ferroce_types::Result<()>) -> bool {
        match posted {
            Ok(()) => true,
            Err(error) => {
                // Moved here, so that a success has nothing to drop.
                drop(error);
                self.refused()
            }
        }
    }

    /// The adapter has refused a request for another reason than what it asks for: a bug has stopped the queue pair, or the process
    /// can't use the adapter. The request keeps its memory until the queue pair is destroyed.
    #[cold]
    fn refused(&self) -> bool {
        self.abort();
        false
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
