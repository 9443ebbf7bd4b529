//! Queue pairs: ibv_create_qp(3), ibv_create_qp_ex(3), ibv_modify_qp(3), ibv_query_qp(3), ibv_destroy_qp(3),
//! ibv_query_ece(3), ibv_query_qp_data_in_order(3). Posting is in `post`.

use std::ffi::{c_int, c_uint};
use std::mem::zeroed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferroce_nic as nic;
use nic::qp::{QpAttr, QpCap, QpInit};

use crate::abi::*;
use crate::ah;
use crate::call::{self, Outcome, Refusal, at, at_mut, entry, put};
use crate::cq::CqBlock;
use crate::memory::PdBlock;
use crate::object::{Headed, next_handle};
use crate::srq::SrqBlock;

/// What a peer may be allowed.
const REMOTE_RIGHTS: c_uint = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// All have room for the extended part.
#[repr(C)]
pub(crate) struct QpBlock {
    c: ibv_qp_ex,
    nic: Arc<nic::Qp>,
    /// The access flags as they were set: those for local access mean nothing to the adapter, but are given back.
    access: AtomicU32,
}

// SAFETY: `repr(C)` with an `ibv_qp_ex` first, whose first field is an `ibv_qp`.
unsafe impl Headed for QpBlock {
    type C = ibv_qp;
    const WHAT: &'static str = "qp";
}

impl QpBlock {
    pub(crate) fn nic(&self) -> &Arc<nic::Qp> {
        &self.nic
    }
}

fn cap_of(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

fn c_cap(cap: QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// What both forms of the attributes have in common.
struct Init<'a> {
    pd: *mut ibv_pd,
    qp_context: *mut std::ffi::c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    cap: &'a mut ibv_qp_cap,
    qp_type: c_int,
    sq_sig_all: c_int,
}

/// # Safety
/// The objects that `init` names are null or valid.
unsafe fn create(init: Init<'_>) -> Outcome<*mut ibv_qp> {
    let service = match init.qp_type {
        IBV_QPT_RC => nic::Service::Rc,
        IBV_QPT_UC => nic::Service::Uc,
        IBV_QPT_UD => nic::Service::Ud,
        other => return Err(Refusal::unsupported(format!("qp_type {other}: only RC, UC and UD"))),
    };
    // SAFETY: the caller's promise.
    let (domain, send_cq, recv_cq, srq) = unsafe {
        let srq = if init.srq.is_null() { None } else { Some(SrqBlock::of(init.srq)?.nic().clone()) };
        let queue = |cq: *mut ibv_cq, what: &'static str| {
            CqBlock::of(cq).map(|cq| cq.nic().clone()).map_err(|_| Refusal::invalid(what))
        };
        (
            PdBlock::of(init.pd)?,
            queue(init.send_cq, "send_cq is NULL")?,
            queue(init.recv_cq, "recv_cq is NULL")?,
            srq,
        )
    };
    QpBlock::allocate(|cookie| {
        let nic = nic::Qp::create(
            domain.nic(),
            QpInit {
                service,
                send_cq,
                recv_cq,
                srq,
                cap: cap_of(init.cap),
                sq_sig_all: init.sq_sig_all != 0,
                cookie,
            },
        )?;
        *init.cap = c_cap(nic.cap());
        // SAFETY: numbers, pointers, nullable function pointers and pthread objects, for all of which zeros are valid.
        let mut c: ibv_qp_ex = unsafe { zeroed() };
        c.qp_base.context = domain.context();
        c.qp_base.qp_context = init.qp_context;
        c.qp_base.pd = init.pd;
        c.qp_base.send_cq = init.send_cq;
        c.qp_base.recv_cq = init.recv_cq;
        c.qp_base.srq = init.srq;
        c.qp_base.handle = next_handle();
        c.qp_base.qp_num = nic.qpn();
        c.qp_base.state = IBV_QPS_RESET;
        c.qp_base.qp_type = init.qp_type;
        Ok(QpBlock { c, nic, access: AtomicU32::new(0) })
    })
}

entry! {
    fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> pointer ibv_qp, {
        // SAFETY: by the man page a domain and the caller's attributes, which name valid objects.
        unsafe {
            let init = at_mut(init, "qp_init_attr")?;
            create(Init {
                pd,
                qp_context: init.qp_context,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                cap: &mut init.cap,
                qp_type: init.qp_type,
                sq_sig_all: init.sq_sig_all,
            })
        }
    }
}

/// The slot behind `ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    call::pointer("ibv_create_qp_ex", || {
        // SAFETY: by the man page the caller's attributes.
        let init = unsafe { at_mut(init, "qp_init_attr_ex") }?;
        let beyond = init.comp_mask & !(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS);
        if beyond != 0 {
            return Err(Refusal::unsupported(format!("comp_mask {beyond:#x} of an extended queue pair")));
        }
        if init.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && init.create_flags != 0 {
            return Err(Refusal::unsupported(format!("create_flags {:#x}", init.create_flags)));
        }
        if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
            return Err(Refusal::invalid("no protection domain (IBV_QP_INIT_ATTR_PD)"));
        }
        // SAFETY: by the man page the attributes name valid objects.
        unsafe {
            create(Init {
                pd: init.pd,
                qp_context: init.qp_context,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                cap: &mut init.cap,
                qp_type: init.qp_type,
                sq_sig_all: init.sq_sig_all,
            })
        }
    })
}

entry! {
    /// The extended form of a queue pair, which none here has yet.
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> pointer ibv_qp_ex, {
        // SAFETY: by the man page a queue pair.
        unsafe { QpBlock::of(qp) }?;
        Err(Refusal::unsupported("the queue pair wasn't created with send_ops_flags"))
    }
}

fn state_of(number: c_int, what: &str) -> Outcome<nic::QpState> {
    use nic::QpState as S;
    let states = [S::Reset, S::Init, S::Rtr, S::Rts, S::Sqd, S::Sqe, S::Err];
    usize::try_from(number)
        .ok()
        .and_then(|n| states.get(n).copied())
        .ok_or_else(|| Refusal::invalid(format!("{what} {number} isn't a state")))
}

/// The attributes as the adapter takes them. What the mask doesn't name may be uninitialised nonsense.
fn attr_of(attr: &ibv_qp_attr, mask: c_int) -> Outcome<QpAttr> {
    let has = |bit: c_int| mask & bit != 0;
    let mut to = QpAttr::default();
    if has(IBV_QP_STATE) {
        to.state = state_of(attr.qp_state, "qp_state")?;
    }
    if has(IBV_QP_CUR_STATE) {
        to.cur_state = state_of(attr.cur_qp_state, "cur_qp_state")?;
    }
    if has(IBV_QP_PATH_MTU) {
        to.path_mtu = u8::try_from(attr.path_mtu)
            .map_err(|_| Refusal::invalid(format!("path_mtu {} isn't an enum ibv_mtu", attr.path_mtu)))?;
    }
    if has(IBV_QP_PATH_MIG_STATE) {
        to.path_mig_state = u8::try_from(attr.path_mig_state)
            .map_err(|_| Refusal::invalid(format!("path_mig_state {}", attr.path_mig_state)))?;
    }
    let access = attr.qp_access_flags;
    let rights =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    if has(IBV_QP_ACCESS_FLAGS) && access & !(rights | IBV_ACCESS_OPTIONAL_RANGE) != 0 {
        return Err(Refusal::invalid(format!("qp_access_flags {access:#x}: unknown bits")));
    }
    to.access = nic::Access {
        remote_write: access & IBV_ACCESS_REMOTE_WRITE != 0,
        remote_read: access & IBV_ACCESS_REMOTE_READ != 0,
        remote_atomic: access & IBV_ACCESS_REMOTE_ATOMIC != 0,
    };
    to.qkey = attr.qkey;
    to.rq_psn = attr.rq_psn;
    to.sq_psn = attr.sq_psn;
    to.dest_qpn = attr.dest_qp_num;
    to.av = ah::vector_of(&attr.ah_attr);
    to.pkey_index = attr.pkey_index;
    to.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
    to.max_rd_atomic = attr.max_rd_atomic;
    to.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    to.min_rnr_timer = attr.min_rnr_timer;
    to.port_num = attr.port_num;
    to.timeout = attr.timeout;
    to.retry_cnt = attr.retry_cnt;
    to.rnr_retry = attr.rnr_retry;
    Ok(to)
}

fn c_attr(attr: &QpAttr, cap: QpCap) -> ibv_qp_attr {
    let right = |granted: bool, bit: c_uint| if granted { bit } else { 0 };
    // SAFETY: numbers only.
    let mut to: ibv_qp_attr = unsafe { zeroed() };
    to.qp_state = attr.state as c_int;
    to.cur_qp_state = attr.cur_state as c_int;
    to.path_mtu = attr.path_mtu.into();
    to.path_mig_state = attr.path_mig_state.into();
    to.qkey = attr.qkey;
    to.rq_psn = attr.rq_psn;
    to.sq_psn = attr.sq_psn;
    to.dest_qp_num = attr.dest_qpn;
    to.qp_access_flags = right(attr.access.remote_write, IBV_ACCESS_REMOTE_WRITE)
        | right(attr.access.remote_read, IBV_ACCESS_REMOTE_READ)
        | right(attr.access.remote_atomic, IBV_ACCESS_REMOTE_ATOMIC);
    to.cap = c_cap(cap);
    to.ah_attr = ah::attr_of(&attr.av);
    to.pkey_index = attr.pkey_index;
    to.en_sqd_async_notify = attr.en_sqd_async_notify.into();
    to.sq_draining = attr.sq_draining.into();
    to.max_rd_atomic = attr.max_rd_atomic;
    to.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    to.min_rnr_timer = attr.min_rnr_timer;
    to.port_num = attr.port_num;
    to.timeout = attr.timeout;
    to.retry_cnt = attr.retry_cnt;
    to.rnr_retry = attr.rnr_retry;
    to
}

entry! {
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> errno {
        // SAFETY: by the man page a queue pair and the caller's attributes.
        unsafe {
            let block = QpBlock::of(qp)?;
            let c_attr = at(attr, "attr")?;
            let attr = attr_of(c_attr, attr_mask)?;
            block.nic.modify(&attr, attr_mask as u32)?;
            if attr_mask & IBV_QP_ACCESS_FLAGS != 0 {
                block.access.store(c_attr.qp_access_flags, Ordering::Relaxed);
            }
            if attr_mask & IBV_QP_STATE != 0 {
                if attr.state == nic::QpState::Reset {
                    block.access.store(0, Ordering::Relaxed);
                }
                (&raw mut (*qp).state).write(attr.state as c_int);
            }
        }
        Ok(())
    }
}

entry! {
    fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        _attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> errno {
        // SAFETY: by the man page a queue pair and the caller's structures.
        unsafe {
            let block = QpBlock::of(qp)?;
            let now = block.nic.query();
            let cap = block.nic.cap();
            let mut queried = c_attr(&now, cap);
            queried.qp_access_flags |= block.access.load(Ordering::Relaxed) & !REMOTE_RIGHTS;
            put(attr, "attr", queried)?;
            let init = ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: c_cap(cap),
                qp_type: (*qp).qp_type,
                sq_sig_all: block.nic.sq_sig_all().into(),
            };
            put(init_attr, "init_attr", init)?;
            (&raw mut (*qp).state).write(now.state as c_int);
        }
        Ok(())
    }
}

entry! {
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> errno {
        // SAFETY: by the man page a queue pair that the caller gives up. When its destruction returns, no event of it
        // is left anywhere.
        unsafe {
            QpBlock::of(qp)?.nic.destroy()?;
            QpBlock::free(qp);
        }
        Ok(())
    }
}

entry! {
    /// There is nothing to agree on: no vendor, no options.
    fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> errno {
        // SAFETY: by the man page a queue pair and the caller's structure.
        unsafe {
            QpBlock::of(qp)?;
            put(ece, "ece", ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 })?;
        }
        Err(Refusal::unsupported("enhanced connection establishment"))
    }
}

entry! {
    fn ibv_set_ece(qp: *mut ibv_qp, _ece: *mut ibv_ece) -> errno {
        // SAFETY: by the man page a queue pair.
        unsafe { QpBlock::of(qp) }?;
        Err(Refusal::unsupported("enhanced connection establishment"))
    }
}

entry! {
    /// Data may arrive in any order: 0.
    fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_int, _flags: u32) -> value c_int = 0, {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_the_mask_does_not_name_are_not_looked_at() {
        // SAFETY: numbers only.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = IBV_QPS_RTR;
        attr.cur_qp_state = 0x5555_5555;
        attr.path_mtu = -1;
        attr.qp_access_flags = !0;
        assert_eq!(attr_of(&attr, IBV_QP_STATE).expect("a state").state, nic::QpState::Rtr);
        for bit in [IBV_QP_CUR_STATE, IBV_QP_PATH_MTU, IBV_QP_ACCESS_FLAGS] {
            assert_eq!(attr_of(&attr, bit).expect_err("nonsense").errno, libc::EINVAL);
        }
        attr.qp_state = IBV_QPS_UNKNOWN;
        assert_eq!(attr_of(&attr, IBV_QP_STATE).expect_err("no state").errno, libc::EINVAL);
    }

    #[test]
    fn queried_attributes_are_those_that_were_set() {
        // SAFETY: numbers only.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = IBV_QPS_RTS;
        attr.cur_qp_state = IBV_QPS_RTS;
        attr.path_mtu = IBV_MTU_2048;
        attr.qkey = 1;
        attr.rq_psn = 2;
        attr.sq_psn = 3;
        attr.dest_qp_num = 4;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.sgid_index = 5;
        attr.max_rd_atomic = 6;
        attr.timeout = 14;
        attr.rnr_retry = 7;
        let mask = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_PATH_MTU | IBV_QP_ACCESS_FLAGS;
        let cap =
            QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 };
        let back = c_attr(&attr_of(&attr, mask).expect("valid"), cap);
        assert_eq!(format!("{attr:?}"), format!("{back:?}"));
    }
}
