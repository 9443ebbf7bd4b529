//! Raw packet queue pairs: their creation, and posting to them by calls (ibv_wr_post(3)).

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ferroce_nic as nic;
use ferroce_proto::Data;
use ferroce_raw::{RawInit, RawQp, RawSend, Rss, Tso};
use nic::qp::GatheredWrs;
use smallvec::SmallVec;

use super::attr::{c_cap, cap_of};
use super::create::{Init, head};
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal};
use ferroce_objects::{CqBlock, Headed, PdBlock, QpBlock, QpObject};
use ferroce_work::post;

/// # Safety
/// The objects that `init` names are null or valid.
pub(super) unsafe fn create(init: Init<'_>, rss: Option<Rss>) -> Outcome<*mut ibv_qp> {
    if !init.srq.is_null() {
        return Err(Refusal::unsupported("a shared receive queue for a raw packet queue pair"));
    }
    if let Some(ops) = init.send_ops
        && ops & !(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO) != 0
    {
        return Err(Refusal::unsupported(format!("send_ops_flags {ops:#x} of raw packet queue pairs")));
    }
    let known = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB | IBV_QP_CREATE_CVLAN_STRIPPING;
    if init.create_flags & !known != 0 {
        return Err(Refusal::unsupported(format!("create_flags {:#x}", init.create_flags)));
    }
    // SAFETY: the caller's promise.
    let (domain, send_cq, recv_cq) = unsafe {
        let queue = |cq: *mut ibv_cq| {
            if cq.is_null() { Ok(None) } else { CqBlock::checked(cq).map(|cq| Some(cq.nic().clone())) }
        };
        (PdBlock::checked(init.pd)?, queue(init.send_cq)?, queue(init.recv_cq)?)
    };
    QpBlock::allocate(|user_handle| {
        let nic = RawQp::create(
            domain.nic(),
            RawInit {
                send_cq,
                recv_cq,
                rss,
                cap: cap_of(init.cap),
                sq_sig_all: init.sq_sig_all != 0,
                cvlan_stripping: init.create_flags & IBV_QP_CREATE_CVLAN_STRIPPING != 0,
                block_self_multicast: init.create_flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
                max_tso_header: init.max_tso_header,
                user_handle,
            },
        )?;
        *init.cap = c_cap(nic.cap());
        let mut c = head(&init, domain.context(), nic.qpn());
        if init.send_ops.is_some() {
            fill(&mut c);
        }
        Ok(QpBlock {
            c,
            kind: QpObject::Raw(nic),
            send_ops: init.send_ops,
            access: AtomicU32::new(0),
            watch: None,
        })
    })
}

/// Sets the functions that inline code of the header calls. Frames can be sent, and segments; everything else is refused.
fn fill(c: &mut ibv_qp_ex) {
    c.wr_send = Some(wr_send);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    c.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    c.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    c.wr_bind_mw = Some(wr_bind_mw);
    c.wr_local_inv = Some(wr_local_inv);
    c.wr_rdma_read = Some(wr_rdma_read);
    c.wr_rdma_write = Some(wr_rdma_write);
    c.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    c.wr_send_imm = Some(wr_send_imm);
    c.wr_send_inv = Some(wr_send_inv);
    c.wr_send_tso = Some(wr_send_tso);
    c.wr_atomic_write = Some(wr_atomic_write);
    c.wr_flush = Some(wr_flush);
    c.wr_set_ud_addr = Some(wr_set_ud_addr);
    c.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
}

/// # Safety
/// `qp` is an extended raw queue pair.
unsafe fn of<'a>(qp: *mut ibv_qp_ex) -> Outcome<&'a Arc<RawQp>> {
    // SAFETY: the caller's promise.
    unsafe { QpBlock::of(qp.cast()) }?.raw()
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let _ = call::contain("ibv_wr_start", || {
        // SAFETY: by the man page a queue pair.
        unsafe { of(qp) }?.wr_session().enter();
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> i32 {
    call::to_errno(call::contain("ibv_wr_complete", || {
        // SAFETY: by the man page a queue pair, in whose critical region this thread is.
        unsafe {
            let nic = of(qp)?;
            nic.wr_session().complete(|gathered| nic.post_gathered(gathered))?;
        }
        Ok(())
    }))
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    let _ = call::contain("ibv_wr_abort", || {
        // SAFETY: by the man page a queue pair, in whose critical region this thread is.
        unsafe { of(qp)?.wr_session().complete(|_| Ok(()))? };
        Ok(())
    });
}

/// Changes what has been gathered; ibv_wr_complete returns the error.
///
/// # Safety
/// `qp` is an extended raw queue pair.
unsafe fn gather(
    qp: *mut ibv_qp_ex,
    call: &'static str,
    f: impl FnOnce(&RawQp, &mut GatheredWrs<RawSend>) -> Outcome<()>,
) {
    let _ = call::contain(call, || {
        // SAFETY: the caller's promise.
        unsafe {
            let nic = of(qp)?;
            nic.wr_session().gather(|gathered| {
                let outcome = f(nic, gathered);
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
unsafe fn begin(
    qp: *mut ibv_qp_ex,
    call: &'static str,
    kind: u64,
    tso: impl FnOnce(&RawQp) -> Outcome<Option<Box<Tso>>>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        gather(qp, call, |nic, gathered| {
            if !QpBlock::of(qp.cast())?.has_op(kind) {
                return Err(Refusal::invalid(format!("{call} wasn't asked for by send_ops_flags")));
            }
            let flags = (*qp).wr_flags;
            post::check_flags(flags, post::KNOWN | IBV_SEND_IP_CSUM)?;
            gathered.begin(RawSend {
                wr_id: (*qp).wr_id,
                data: Data::Sges(SmallVec::new()),
                signaled: flags & IBV_SEND_SIGNALED != 0,
                checksums: flags & IBV_SEND_IP_CSUM != 0,
                tso: tso(nic)?,
            });
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread.
    unsafe { begin(qp, "ibv_wr_send", IBV_QP_EX_WITH_SEND, |_| Ok(None)) }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) {
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread, with a header of that length.
    unsafe {
        begin(qp, "ibv_wr_send_tso", IBV_QP_EX_WITH_TSO, |nic| {
            post::segmentation(nic, hdr, hdr_sz, mss).map(Some)
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread.
    unsafe {
        gather(qp, "ibv_wr_set_sge", |_, gathered| {
            gathered.last()?.data = Data::Sges(post::sges(&[ibv_sge { addr, length, lkey }]));
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, list: *const ibv_sge) {
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread, with a list of that length.
    unsafe {
        gather(qp, "ibv_wr_set_sge_list", |nic, gathered| {
            let count = i32::try_from(num_sge).unwrap_or(i32::MAX);
            let elements = post::elements(list, count, nic.cap().max_send_sge)?;
            gathered.last()?.data = Data::Sges(post::sges(elements));
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread, with readable memory.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const buffer) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: usize, list: *const ibv_data_buf) {
    // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread, with readable memory and a list of
    // that length.
    unsafe {
        gather(qp, "ibv_wr_set_inline_data_list", |nic, gathered| {
            let buffers = post::buffers(list, num_buf)?;
            gathered.last()?.data = post::inline_data(buffers, nic.cap().max_inline_data)?;
            Ok(())
        });
    }
}

macro_rules! not_raw {
    ($($name:ident($($ty:ty),*);)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, _: $ty)*) {
            // SAFETY: by the man page between ibv_wr_start and ibv_wr_complete of this thread.
            unsafe {
                gather(qp, concat!("ibv_", stringify!($name)), |_, _| {
                    Err(Refusal::invalid("a raw packet queue pair sends frames and nothing else"))
                })
            };
        }
    )*};
}

not_raw! {
    wr_atomic_cmp_swp(u32, u64, u64, u64);
    wr_atomic_fetch_add(u32, u64, u64);
    wr_atomic_write(u32, u64, *const c_void);
    wr_flush(u32, u64, usize, u8, u8);
    wr_bind_mw(*mut ibv_mw, u32, *const ibv_mw_bind_info);
    wr_local_inv(u32);
    wr_rdma_read(u32, u64);
    wr_rdma_write(u32, u64);
    wr_rdma_write_imm(u32, u64, u32);
    wr_send_imm(u32);
    wr_send_inv(u32);
    wr_set_ud_addr(*mut ibv_ah, u32, u32);
    wr_set_xrc_srqn(u32);
}
