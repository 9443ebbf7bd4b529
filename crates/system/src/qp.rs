//! Queue pairs.

use crate::cq::SystemCq;
use crate::device::SystemDomain;
use crate::elements::elements;
use crate::library;
use crate::srq::SystemSrq;
use ferroce_abi::verbs::*;
use ferroce_buffers::{ConnectedTo, Error, QpAttributes, QpService};
use ferroce_proto::{DataRef, SendOp, SendRequest};
use ferroce_types::{BindMw, Sge};
use std::ffi::c_int;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::Arc;

/// A queue pair. It is destroyed with its handle.
pub struct SystemQp {
    qp: NonNull<ibv_qp>,
    qpn: u32,
    psn: u32,
    gid_index: u8,
    gid: [u8; 16],
    init: QpAttributes,
    domain: SystemDomain,
    /// They exist for at least as long.
    _cqs: [SystemCq; 2],
    _srq: Option<SystemSrq>,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for SystemQp {}
// SAFETY: as above; the library locks what several threads use at once.
unsafe impl Sync for SystemQp {}

/// Attributes that name nothing.
fn no_attributes() -> ibv_qp_attr {
    // SAFETY: plain numbers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// The address vector of a peer.
fn vector(gid_index: u8, dgid: [u8; 16]) -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: dgid },
        sgid_index: gid_index,
        hop_limit: 64,
        ..ibv_global_route::default()
    };
    ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() }
}

/// The way to a queue pair that receives datagrams.
pub struct SystemAddress {
    ah: NonNull<ibv_ah>,
    qpn: u32,
    qkey: u32,
    domain: SystemDomain,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for SystemAddress {}
// SAFETY: its members are only read.
unsafe impl Sync for SystemAddress {}

impl Drop for SystemAddress {
    fn drop(&mut self) {
        let context = self.domain.context();
        if context.maker.is_here() {
            // SAFETY: requests that name it have a handle in their slots, so none is left.
            unsafe { (context.library.ibv_destroy_ah)(self.ah.as_ptr()) };
        }
    }
}

impl fmt::Debug for SystemAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SystemAddress({:#x})", self.qpn)
    }
}

impl SystemDomain {
    /// The way to a queue pair.
    ///
    /// # Errors
    /// This device can't reach its address.
    pub fn address(&self, gid: [u8; 16], qpn: u32, qkey: u32) -> Result<SystemAddress, Error> {
        let context = self.context();
        context.maker.check("address")?;
        let (gid_index, _) = self.gid()?;
        let mut attr = vector(gid_index, gid);
        // SAFETY: a domain, and attributes.
        let ah = unsafe { (context.library.ibv_create_ah)(self.pd(), &raw mut attr) };
        let ah = NonNull::new(ah).ok_or_else(|| library::last_error("address", "ibv_create_ah"))?;
        Ok(SystemAddress { ah, qpn, qkey, domain: self.clone() })
    }

    /// Makes a queue pair in INIT.
    ///
    /// # Errors
    /// The other queues are of another device, or the device can't do what `init` asks for.
    pub fn qp(
        &self,
        [send_cq, recv_cq]: [&SystemCq; 2],
        srq: Option<&SystemSrq>,
        mut init: QpAttributes,
    ) -> Result<SystemQp, Error> {
        let context = self.context();
        if ![send_cq, recv_cq].iter().all(|cq| Arc::ptr_eq(cq.context(), context)) {
            return Err(Error::invalid("build", "the completion queue is of another device"));
        }
        if srq.is_some_and(|srq| !srq.domain().is(self)) {
            return Err(Error::invalid("build", "the shared receive queue is of another domain"));
        }
        context.maker.check("build")?;
        let (gid_index, gid) = self.gid()?;
        init.mtu = init.mtu.min(self.mtu()?);
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.get(),
            recv_cq: recv_cq.get(),
            srq: srq.map_or(null_mut(), SystemSrq::get),
            cap: ibv_qp_cap {
                max_send_wr: init.send_depth,
                max_recv_wr: init.recv_depth,
                max_send_sge: init.parts,
                max_recv_sge: init.parts,
                max_inline_data: init.inline,
            },
            qp_type: match init.service {
                QpService::Reliable => IBV_QPT_RC,
                QpService::Unreliable => IBV_QPT_UC,
                QpService::Datagram => IBV_QPT_UD,
            },
            sq_sig_all: 0,
        };
        // SAFETY: a domain, and queues of its device.
        let qp = unsafe { (context.library.ibv_create_qp)(self.pd(), &raw mut attr) };
        let qp = NonNull::new(qp).ok_or_else(|| library::last_error("build", "ibv_create_qp"))?;
        // SAFETY: the library has initialised it, and doesn't change its number.
        let qpn = unsafe { (*qp.as_ptr()).qp_num };
        context.failures.watch(qpn);
        // The keys of a new hasher are random.
        let psn = RandomState::new().hash_one(qpn) as u32 & 0xff_ffff;
        let (domain, cqs) = (self.clone(), [send_cq.clone(), recv_cq.clone()]);
        let srq = srq.cloned();
        let qp = SystemQp { qp, qpn, psn, gid_index, gid, init, domain, _cqs: cqs, _srq: srq };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        let (rights, mask) = match init.service {
            QpService::Reliable => {
                let rights = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
                (rights, mask | IBV_QP_ACCESS_FLAGS)
            }
            QpService::Unreliable => (IBV_ACCESS_REMOTE_WRITE, mask | IBV_QP_ACCESS_FLAGS),
            QpService::Datagram => (0, mask | IBV_QP_QKEY),
        };
        let attr =
            ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qp_access_flags: rights, ..no_attributes() };
        qp.modify("build", attr, mask)?;
        Ok(qp)
    }
}

impl SystemQp {
    /// Its number.
    #[must_use]
    pub const fn qpn(&self) -> u32 {
        self.qpn
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

    fn modify(&self, verb: &'static str, mut attr: ibv_qp_attr, mask: c_int) -> Result<(), Error> {
        let context = self.domain.context();
        context.maker.check(verb)?;
        // SAFETY: a queue pair, and attributes.
        let returned = unsafe { (context.library.ibv_modify_qp)(self.qp.as_ptr(), &raw mut attr, mask) };
        library::check(verb, "ibv_modify_qp", returned)
    }

    /// Connects it, and takes it to RTS. Its first request has the PSN `psn`, or that of [`SystemQp::psn`].
    ///
    /// # Errors
    /// The peer's address can't be reached from this device.
    pub fn connect(&self, peer: &ConnectedTo, psn: Option<u32>) -> Result<(), Error> {
        let &ConnectedTo { gid, qpn, psn: rq_psn, mtu, reads } = peer;
        let Self { init, gid_index, .. } = self;
        let reliable = init.service == QpService::Reliable;
        let of_reliable = |bits: c_int| if reliable { bits } else { 0 };
        let to_rtr = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | of_reliable(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            // 1 is 256.
            path_mtu: init.mtu.min(mtu).ilog2() as c_int - 7,
            dest_qp_num: qpn,
            rq_psn,
            max_dest_rd_atomic: init.peer_reads,
            min_rnr_timer: init.rnr_timer,
            ah_attr: vector(*gid_index, gid),
            ..no_attributes()
        };
        self.modify("connect", attr, to_rtr)?;
        let to_rts = IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | of_reliable(IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: psn.unwrap_or(self.psn),
            timeout: init.timeout,
            retry_cnt: init.retries,
            rnr_retry: init.rnr_retries,
            max_rd_atomic: init.reads.min(reads),
            ..no_attributes()
        };
        self.modify("connect", attr, to_rts)
    }

    /// Lets it send, and receive datagrams with this Q_Key.
    ///
    /// # Errors
    /// The device refuses.
    pub fn activate(&self, qkey: u32) -> Result<(), Error> {
        let attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, qkey, ..no_attributes() };
        self.modify("activate", attr, IBV_QP_STATE | IBV_QP_QKEY)?;
        let attr = ibv_qp_attr { qp_state: IBV_QPS_RTS, sq_psn: self.psn, ..no_attributes() };
        self.modify("activate", attr, IBV_QP_STATE | IBV_QP_SQ_PSN)
    }

    /// Whether it sends to this address.
    #[must_use]
    pub fn takes(&self, to: &SystemAddress) -> bool {
        to.domain.is(&self.domain)
    }

    /// Whether it binds windows to this region.
    #[must_use]
    pub fn lends(&self, region: u64) -> bool {
        let mr = std::ptr::with_exposed_provenance::<ibv_mr>(region as usize);
        // SAFETY: 0, which is that of other backends' regions, or a region of the library that the caller's buffer keeps registered.
        !mr.is_null() && unsafe { (*mr).pd } == self.domain.pd()
    }

    /// Posts a request for which the queue has room. `region` is what a window is bound to. False: the library has refused it, and the
    /// queue pair has failed.
    #[inline(always)]
    pub fn post(&self, request: &SendRequest<'_, ()>, to: Option<&SystemAddress>, region: u64) -> bool {
        let context = self.domain.context();
        let of_bytes;
        let sges = match request.data {
            DataRef::Sges(sges) => sges,
            DataRef::Inline([]) => &[],
            DataRef::Inline(bytes) => {
                let addr = bytes.as_ptr().expose_provenance() as u64;
                of_bytes = Sge { addr, length: bytes.len() as u32, lkey: 0 };
                slice::from_ref(&of_bytes)
            }
        };
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        let send_flags = flag(request.signaled, IBV_SEND_SIGNALED)
            | flag(request.solicited, IBV_SEND_SOLICITED)
            | flag(request.fence, IBV_SEND_FENCE)
            | flag(matches!(request.data, DataRef::Inline(_)), IBV_SEND_INLINE);
        // SAFETY: plain numbers and pointers, for which zero is a value.
        let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        (wr.wr_id, wr.send_flags) = (request.wr_id, send_flags);
        (wr.sg_list, wr.num_sge) = elements(sges);
        let is_known = describe(&mut wr, &request.op, region);
        if let Some(to) = to {
            wr.wr.ud = ibv_send_wr_ud { ah: to.ah.as_ptr(), remote_qpn: to.qpn, remote_qkey: to.qkey };
        }
        let mut bad = null_mut();
        let posted = is_known
            && context.maker.is_here()
            // SAFETY: a queue pair, whose context's functions the library has set, and a request whose elements are there. The memory
            // that it names is in a slot, which keeps it until the request has ended; inline data are read by the call.
            && unsafe {
                let post = (*context.get()).ops.post_send;
                post.is_some_and(|post| post(self.qp.as_ptr(), &raw mut wr, &raw mut bad) == 0)
            };
        posted || self.refused()
    }

    /// Posts a receive. False: as [`SystemQp::post`].
    #[inline(always)]
    pub fn receive(&self, wr_id: u64, sges: &[Sge]) -> bool {
        let context = self.domain.context();
        let (sg_list, num_sge) = elements(sges);
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge };
        let mut bad = null_mut();
        let posted = context.maker.is_here()
            // SAFETY: as in `post`.
            && unsafe {
                let post = (*context.get()).ops.post_recv;
                post.is_some_and(|post| post(self.qp.as_ptr(), &raw mut wr, &raw mut bad) == 0)
            };
        posted || self.refused()
    }

    #[cold]
    fn refused(&self) -> bool {
        self.abort();
        false
    }

    /// Takes it to ERR: all requests are flushed. A request that the library has refused keeps its memory until the queue pair is
    /// destroyed.
    pub fn abort(&self) {
        let attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..no_attributes() };
        // If that fails, it is the parent's of a fork, or the device is gone.
        let _ = self.modify("abort", attr, IBV_QP_STATE);
    }

    /// Whether it has failed, or was aborted.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let context = self.domain.context();
        let mut attr = no_attributes();
        // SAFETY: plain numbers and pointers, for which zero is a value.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        !context.maker.is_here()
            // SAFETY: a queue pair, and places for its attributes.
            || unsafe {
                let query = context.library.ibv_query_qp;
                query(self.qp.as_ptr(), &raw mut attr, IBV_QP_STATE, &raw mut init) != 0
            }
            || attr.qp_state == IBV_QPS_ERR
    }
}

/// Writes what a request asks for. False: no request of this API does.
#[inline(always)]
fn describe(wr: &mut ibv_send_wr, op: &SendOp, region: u64) -> bool {
    wr.opcode = match *op {
        SendOp::Send => IBV_WR_SEND,
        SendOp::SendWithImmediate { immediate } => {
            wr.imm_data = u32::from_ne_bytes(immediate);
            IBV_WR_SEND_WITH_IMM
        }
        SendOp::Write { va, rkey } => {
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: va, rkey };
            IBV_WR_RDMA_WRITE
        }
        SendOp::WriteWithImmediate { va, rkey, immediate } => {
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: va, rkey };
            wr.imm_data = u32::from_ne_bytes(immediate);
            IBV_WR_RDMA_WRITE_WITH_IMM
        }
        SendOp::Read { va, rkey } => {
            wr.wr.rdma = ibv_send_wr_rdma { remote_addr: va, rkey };
            IBV_WR_RDMA_READ
        }
        SendOp::CompareSwap { va, rkey, compare, swap } => {
            wr.wr.atomic = ibv_send_wr_atomic { remote_addr: va, compare_add: compare, swap, rkey };
            IBV_WR_ATOMIC_CMP_AND_SWP
        }
        SendOp::FetchAdd { va, rkey, add } => {
            wr.wr.atomic = ibv_send_wr_atomic { remote_addr: va, compare_add: add, swap: 0, rkey };
            IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        SendOp::SendWithInvalidate { rkey } => {
            wr.imm_data = rkey;
            IBV_WR_SEND_WITH_INV
        }
        SendOp::BindMw(BindMw { window, rkey, va, length, access, .. }) => {
            let right = |has: bool, flag: u32| if has { flag } else { 0 };
            let mw_access_flags = right(access.remote_read, IBV_ACCESS_REMOTE_READ)
                | right(access.remote_write, IBV_ACCESS_REMOTE_WRITE)
                | right(access.remote_atomic, IBV_ACCESS_REMOTE_ATOMIC);
            let mr = std::ptr::with_exposed_provenance_mut(region as usize);
            let bind_info = ibv_mw_bind_info { mr, addr: va, length, mw_access_flags };
            let mw = std::ptr::with_exposed_provenance_mut(window as usize);
            wr.last.bind_mw = ibv_send_wr_bind_mw { mw, rkey, bind_info };
            IBV_WR_BIND_MW
        }
        _ => return false,
    };
    true
}

impl Drop for SystemQp {
    fn drop(&mut self) {
        let context = self.domain.context();
        if context.maker.is_here() {
            context.failures.forget(self.qpn);
            // SAFETY: it exists until the call succeeds, after which there is no other.
            library::end("ibv_destroy_qp", || unsafe { (context.library.ibv_destroy_qp)(self.qp.as_ptr()) });
        }
    }
}

impl fmt::Debug for SystemQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SystemQp({:#x})", self.qpn)
    }
}
