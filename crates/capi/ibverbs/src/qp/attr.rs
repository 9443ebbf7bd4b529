//! ibv_modify_qp(3), ibv_query_qp(3), and the conversion of what they take and give.

use std::ffi::{c_int, c_uint};
use std::mem::zeroed;
use std::sync::atomic::Ordering;

use ferroce_nic as nic;
use ferroce_parts::QpAttr;
use nic::qp::QpCap;

use crate::ah;
use crate::memory;
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal, at, entry, put};
use ferroce_objects::{Headed, QpBlock, QpWork};

/// What a peer may be allowed.
const REMOTE_RIGHTS: c_uint = IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_FLUSH_GLOBAL
    | IBV_ACCESS_FLUSH_PERSISTENT;

pub(super) fn cap_of(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(super) fn c_cap(cap: QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

fn state_of(number: c_int, what: &str) -> Outcome<ferroce_types::QpState> {
    use ferroce_types::QpState as S;
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
    // Programs pass on the flags of their regions; those of the peer's rights count.
    if has(IBV_QP_ACCESS_FLAGS) && access & !(memory::KNOWN_ACCESS | IBV_ACCESS_OPTIONAL_RANGE) != 0 {
        return Err(Refusal::invalid(format!("qp_access_flags {access:#x}: unknown bits")));
    }
    to.access = ferroce_types::Access {
        remote_write: access & IBV_ACCESS_REMOTE_WRITE != 0,
        remote_read: access & IBV_ACCESS_REMOTE_READ != 0,
        remote_atomic: access & IBV_ACCESS_REMOTE_ATOMIC != 0,
        flush: ferroce_types::Placement {
            global: access & IBV_ACCESS_FLUSH_GLOBAL != 0,
            persistent: access & IBV_ACCESS_FLUSH_PERSISTENT != 0,
        },
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
    to.rate_limit = attr.rate_limit;
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
        | right(attr.access.remote_atomic, IBV_ACCESS_REMOTE_ATOMIC)
        | right(attr.access.flush.global, IBV_ACCESS_FLUSH_GLOBAL)
        | right(attr.access.flush.persistent, IBV_ACCESS_FLUSH_PERSISTENT);
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
    to.rate_limit = attr.rate_limit;
    to
}

entry! {
    pub fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> errno {
        // SAFETY: by the man page a queue pair and the caller's attributes.
        unsafe {
            let block = QpBlock::checked(qp)?;
            let c_attr = at(attr, "attr")?;
            let attr = attr_of(c_attr, attr_mask)?;
            block.modify(&attr, attr_mask as u32)?;
            if attr_mask & IBV_QP_ACCESS_FLAGS != 0 {
                block.access.store(c_attr.qp_access_flags, Ordering::Relaxed);
            }
            if attr_mask & IBV_QP_STATE != 0 {
                if attr.state == ferroce_types::QpState::Reset {
                    block.access.store(0, Ordering::Relaxed);
                }
                (&raw mut (*qp).state).write(attr.state as c_int);
            }
        }
        Ok(())
    }
}

/// The slot behind ibv_modify_qp_rate_limit(3). Packets count as they are, whatever their typical size.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    call::errno_value("ibv_modify_qp_rate_limit", || {
        // SAFETY: by the man page a queue pair and the caller's attributes.
        let (block, attr) = unsafe { (QpBlock::checked(qp)?, at(attr, "attr")?) };
        if attr.comp_mask != 0 {
            return Err(Refusal::invalid(format!("comp_mask {:#x}: unknown bits", attr.comp_mask)));
        }
        if attr.rate_limit == 0 && attr.typical_pkt_sz != 0 {
            return Err(Refusal::invalid("a typical packet size without a rate"));
        }
        match block.work() {
            QpWork::Transport(nic) => nic.limit_rate(attr.rate_limit, attr.max_burst_sz)?,
            QpWork::Raw(nic) => nic.limit_rate(attr.rate_limit, attr.max_burst_sz)?,
        }
        Ok(())
    })
}

entry! {
    pub fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        _attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> errno {
        // SAFETY: by the man page a queue pair and the caller's structures.
        unsafe {
            let block = QpBlock::checked(qp)?;
            let (cap, sq_sig_all) = match block.work() {
                QpWork::Transport(nic) => (nic.cap(), nic.sq_sig_all()),
                QpWork::Raw(nic) => (nic.cap(), nic.sq_sig_all()),
            };
            let now = block.query()?;
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
                sq_sig_all: sq_sig_all.into(),
            };
            put(init_attr, "init_attr", init)?;
            (&raw mut (*qp).state).write(now.state as c_int);
        }
        Ok(())
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
        assert_eq!(attr_of(&attr, IBV_QP_STATE).expect("a state").state, ferroce_types::QpState::Rtr);
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
