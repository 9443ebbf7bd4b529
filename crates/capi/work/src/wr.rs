//! Posting by calls: ibv_wr_post(3). What the calls ask for is gathered by the adapter, and posted when the critical
//! region is left.

use std::ffi::c_void;
use std::sync::Arc;

use ferroce_nic as nic;
use ferroce_proto::{Data, SendOp};
use ferroce_wire::Service;
use smallvec::SmallVec;

use crate::mw;
use crate::post;
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal, at};
use ferroce_objects::{AhBlock, Headed, QpBlock};

/// What every service can send.
const SENDS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
/// What connected services have besides.
const CONNECTED: u64 = SENDS
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW;
/// What reliable services have besides.
const RELIABLE: u64 = CONNECTED
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_SEND_WITH_INV;
/// What RC has besides.
const RC: u64 = RELIABLE | IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_FLUSH;

/// Checks `send_ops_flags`.
///
/// # Errors
/// EOPNOTSUPP for an operation that the service doesn't have.
pub fn check_ops(service: Service, ops: u64) -> Outcome<()> {
    let offered = match service {
        Service::Ud => SENDS,
        Service::Uc => CONNECTED,
        Service::Rc => RC,
        _ => RELIABLE,
    };
    match ops & !offered {
        0 => Ok(()),
        beyond => Err(Refusal::unsupported(format!("send_ops_flags {beyond:#x} of {service:?} queue pairs"))),
    }
}

/// Sets the functions that inline code of the header calls. All are set: one that `send_ops_flags` didn't ask for
/// makes the call fail with a reason, where programs would otherwise call NULL.
pub fn fill(c: &mut ibv_qp_ex) {
    c.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    c.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    c.wr_bind_mw = Some(wr_bind_mw);
    c.wr_local_inv = Some(wr_local_inv);
    c.wr_rdma_read = Some(wr_rdma_read);
    c.wr_rdma_write = Some(wr_rdma_write);
    c.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    c.wr_send = Some(wr_send);
    c.wr_send_imm = Some(wr_send_imm);
    c.wr_send_inv = Some(wr_send_inv);
    c.wr_send_tso = Some(wr_send_tso);
    c.wr_set_ud_addr = Some(wr_set_ud_addr);
    c.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_atomic_write = Some(wr_atomic_write);
    c.wr_flush = Some(wr_flush);
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let _ = call::contain("ibv_wr_start", || {
        // SAFETY: by the man page a queue pair.
        unsafe { QpBlock::of(qp.cast()) }?.nic()?.wr_session().enter();
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> i32 {
    call::to_errno(call::contain("ibv_wr_complete", || {
        // SAFETY: by the man page a queue pair, in whose critical region this thread is.
        unsafe {
            let nic = QpBlock::of(qp.cast())?.nic()?;
            nic.wr_session().complete(|gathered| nic.post_gathered(gathered))?;
        }
        Ok(())
    }))
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    let _ = call::contain("ibv_wr_abort", || {
        // SAFETY: by the man page a queue pair, in whose critical region this thread is.
        unsafe { QpBlock::of(qp.cast())?.nic()?.wr_session().complete(|_| Ok(()))? };
        Ok(())
    });
}

/// Changes the gathered requests; ibv_wr_complete returns the errors.
///
/// # Safety
/// `qp` is an extended queue pair.
unsafe fn gather(
    qp: *mut ibv_qp_ex,
    call: &'static str,
    f: impl FnOnce(&QpBlock, &Arc<nic::Qp>, &mut nic::qp::GatheredWrs<post::SendWr>) -> Outcome<()>,
) {
    let _ = call::contain(call, || {
        // SAFETY: the caller's promise.
        unsafe {
            let block = QpBlock::of(qp.cast())?;
            let nic = block.nic()?;
            nic.wr_session().gather(|gathered| {
                let outcome = f(block, nic, gathered);
                if let Err(refusal) = &outcome {
                    gathered.fail(refusal.to_nic());
                }
                outcome
            })?
        }
    });
}

/// Begins a request.
///
/// # Safety
/// As [`gather`].
unsafe fn begin(qp: *mut ibv_qp_ex, call: &'static str, kind: u64, op: SendOp) {
    // SAFETY: the caller's promise.
    unsafe { begin_with(qp, call, kind, || Ok((op, Data::Sges(SmallVec::new())))) }
}

/// Begins a request that may be wrong, or has its data already.
///
/// # Safety
/// As [`gather`].
unsafe fn begin_with(
    qp: *mut ibv_qp_ex,
    call: &'static str,
    kind: u64,
    make: impl FnOnce() -> Outcome<(SendOp, Data)>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        gather(qp, call, |block, _, gathered| {
            if !block.has_op(kind) {
                return Err(Refusal::invalid(format!("{call} wasn't asked for by send_ops_flags")));
            }
            let flags = (*qp).wr_flags;
            // Some programs pass on their flags for ibv_post_send(3). IBV_SEND_INLINE is ignored: the setters decide what goes inline.
            let known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
            if flags & !known != 0 {
                return Err(Refusal::invalid(format!("wr_flags {:#x} aren't supported", flags & !known)));
            }
            let (op, data) = make()?;
            gathered.begin(post::SendWr {
                wr_id: (*qp).wr_id,
                op,
                data,
                signaled: flags & IBV_SEND_SIGNALED != 0,
                solicited: flags & IBV_SEND_SOLICITED != 0,
                fence: flags & IBV_SEND_FENCE != 0,
                ud: None,
                remote_srqn: 0,
            });
            Ok(())
        });
    }
}

macro_rules! builders {
    ($($name:ident($($arg:ident: $ty:ty),*) = $kind:ident, $op:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $ty)*) {
            // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread.
            unsafe { begin(qp, concat!("ibv_", stringify!($name)), $kind, $op) }
        }
    )*};
}

builders! {
    wr_send() = IBV_QP_EX_WITH_SEND, SendOp::Send;
    wr_send_imm(imm: u32) = IBV_QP_EX_WITH_SEND_WITH_IMM,
        SendOp::SendWithImmediate { immediate: imm.to_ne_bytes() };
    wr_send_inv(rkey: u32) = IBV_QP_EX_WITH_SEND_WITH_INV, SendOp::SendWithInvalidate { rkey };
    wr_rdma_write(rkey: u32, va: u64) = IBV_QP_EX_WITH_RDMA_WRITE, SendOp::Write { va, rkey };
    wr_rdma_write_imm(rkey: u32, va: u64, imm: u32) = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        SendOp::WriteWithImmediate { va, rkey, immediate: imm.to_ne_bytes() };
    wr_rdma_read(rkey: u32, va: u64) = IBV_QP_EX_WITH_RDMA_READ, SendOp::Read { va, rkey };
    wr_atomic_cmp_swp(rkey: u32, va: u64, compare: u64, swap: u64) = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        SendOp::CompareSwap { va, rkey, compare, swap };
    wr_atomic_fetch_add(rkey: u32, va: u64, add: u64) = IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        SendOp::FetchAdd { va, rkey, add };
    wr_local_inv(rkey: u32) = IBV_QP_EX_WITH_LOCAL_INV, SendOp::LocalInvalidate { rkey };
}

unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, va: u64, bytes: *const c_void) {
    let make = || {
        if bytes.is_null() {
            return Err(Refusal::invalid("the value of an atomic write is NULL"));
        }
        // SAFETY: ibv_wr_atomic_write takes 8 readable bytes.
        let value = unsafe { bytes.cast::<[u8; 8]>().read_unaligned() };
        Ok((SendOp::AtomicWrite { va, rkey }, Data::Inline(SmallVec::from_slice(&value))))
    };
    // SAFETY: between ibv_wr_start and ibv_wr_complete of this thread.
    unsafe { begin_with(qp, "ibv_wr_atomic_write", IBV_QP_EX_WITH_ATOMIC_WRITE, make) }
}

unsafe extern "C" fn wr_flush(qp: *mut ibv_qp_ex, rkey: u32, va: u64, len: usize, kind: u8, level: u8) {
    let make = || {
        let placement = ferroce_types::Placement::from_bits(kind)
            .ok_or_else(|| Refusal::invalid(format!("placement type {kind:#x} of a flush")))?;
        let whole_region = match level {
            IBV_FLUSH_RANGE => false,
            IBV_FLUSH_MR => true,
            other => return Err(Refusal::invalid(format!("selectivity level {other} of a flush"))),
        };
        let len = u32::try_from(len).ok().filter(|len| *len <= nic::MAX_MESSAGE).ok_or_else(|| {
            Refusal::invalid(format!("a flush of {len} bytes: at most {}", nic::MAX_MESSAGE))
        })?;
        Ok((SendOp::Flush { va, rkey, len, placement, whole_region }, Data::Sges(SmallVec::new())))
    };
    // SAFETY: between ibv_wr_start and ibv_wr_complete of this thread.
    unsafe { begin_with(qp, "ibv_wr_flush", IBV_QP_EX_WITH_FLUSH, make) }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    window: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    let call = "ibv_wr_bind_mw";
    // SAFETY: by the man page a window and the caller's structure, with a region or none in it.
    match call::contain(call, || unsafe { mw::posted(window, rkey, at(info, "bind_info")?) }) {
        // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread.
        Ok(op) => unsafe { begin(qp, call, IBV_QP_EX_WITH_BIND_MW, op) },
        // SAFETY: as above; it has been reported.
        Err(refusal) => unsafe {
            gather(qp, call, |_, _, gathered| {
                gathered.fail(refusal.to_nic());
                Ok(())
            });
        },
    }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _hdr: *mut c_void, _hdr_sz: u16, _mss: u16) {
    let refuse = || Err(Refusal::unsupported("TCP segmentation"));
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread.
    unsafe { gather(qp, "ibv_wr_send_tso", |_, _, _| refuse()) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread, with an address handle.
    unsafe {
        gather(qp, "ibv_wr_set_ud_addr", |_, nic, gathered| {
            if nic.service() != Service::Ud {
                return Err(Refusal::invalid("an address handle for a connected queue pair"));
            }
            let address = AhBlock::of(ah)?.nic().clone();
            gathered.last()?.ud =
                Some(ferroce_proto::UdTarget { address, qpn: remote_qpn, qkey: remote_qkey });
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread.
    unsafe {
        gather(qp, "ibv_wr_set_xrc_srqn", |_, nic, gathered| {
            if nic.service() != Service::Xrc {
                return Err(Refusal::invalid("an SRQ number for a queue pair that isn't an XRC_SEND one"));
            }
            gathered.last()?.remote_srqn = remote_srqn;
            Ok(())
        });
    }
}

/// Gathers bytes for the last request.
///
/// # Safety
/// As [`gather`]; the buffers are readable if they aren't more than the queue takes.
unsafe fn set_inline<'a>(
    qp: *mut ibv_qp_ex,
    call: &'static str,
    buffers: impl Fn() -> Outcome<&'a [ibv_data_buf]>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        gather(qp, call, |_, nic, gathered| {
            let (last, buffers) = (gathered.last()?, buffers()?);
            let max = nic.cap().max_inline_data;
            last.data = post::inline_data(buffers, max)?;
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = [ibv_data_buf { addr, length }];
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread, with readable memory.
    unsafe { set_inline(qp, "ibv_wr_set_inline_data", || Ok(&buffer)) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: usize, list: *const ibv_data_buf) {
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread, with readable memory and a list of
    // that length.
    unsafe { set_inline(qp, "ibv_wr_set_inline_data_list", || post::buffers(list, num_buf)) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread.
    unsafe {
        gather(qp, "ibv_wr_set_sge", |_, _, gathered| {
            gathered.last()?.data = Data::Sges(post::sges(&[ibv_sge { addr, length, lkey }]));
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, list: *const ibv_sge) {
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread, with a list of that length.
    unsafe {
        gather(qp, "ibv_wr_set_sge_list", |_, nic, gathered| {
            let count = i32::try_from(num_sge).unwrap_or(i32::MAX);
            let elements = post::elements(list, count, nic.cap().max_send_sge)?;
            gathered.last()?.data = Data::Sges(post::sges(elements));
            Ok(())
        });
    }
}
