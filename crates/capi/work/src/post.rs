//! Posting: ibv_post_send(3), ibv_post_recv(3), ibv_post_srq_recv(3). Of a list, everything before the first bad element
//! is posted, and `bad_wr` points to that element.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use ferroce_nic as nic;
use ferroce_raw::{RawQp, RawSend, Tso};
use smallvec::{Array, SmallVec};

use crate::mw;
use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal};
use ferroce_objects::{AhBlock, Headed, QpBlock, QpWork, SrqBlock, WqBlock};

/// The adapter's send request.
pub type SendWr = ferroce_proto::SendWr<Arc<ferroce_parts::Ah>>;

/// The elements of a list, at most `max`.
///
/// # Safety
/// `list` is valid for `count` elements if that is from 1 to `max`.
#[inline(always)]
pub unsafe fn elements<'a>(list: *const ibv_sge, count: c_int, max: u32) -> Outcome<&'a [ibv_sge]> {
    match u32::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(n) if n <= max && !list.is_null() => {
            // SAFETY: the caller's promise.
            Ok(unsafe { slice::from_raw_parts(list, n as usize) })
        }
        _ => Err(no_elements(list, count, max)),
    }
}

/// Why there are no [`elements`].
#[cold]
fn no_elements(list: *const ibv_sge, count: c_int, max: u32) -> Refusal {
    match count {
        1.. if list.is_null() => Refusal::invalid("sg_list is NULL"),
        _ => Refusal::invalid(format!("{count} scatter/gather elements, the queue takes {max}")),
    }
}

/// The elements in the adapter's terms.
pub fn sges(elements: &[ibv_sge]) -> ferroce_types::SgeList {
    let sge = |e: &ibv_sge| ferroce_types::Sge { addr: e.addr, length: e.length, lkey: e.lkey };
    match elements {
        [element] => ferroce_types::one_sge(sge(element)),
        _ => elements.iter().map(sge).collect(),
    }
}

/// Copies what is to be sent inline to `bytes`, which is empty.
///
/// # Safety
/// The elements are readable memory of the program, if they aren't more than `max` bytes.
#[inline]
unsafe fn inline<B: Array<Item = u8>>(
    elements: &[ibv_sge],
    max: u32,
    bytes: &mut SmallVec<B>,
) -> Outcome<()> {
    let length: u64 = elements.iter().map(|e| u64::from(e.length)).sum();
    if length > u64::from(max) {
        return Err(Refusal::invalid(format!("{length} bytes inline, the queue takes {max}")));
    }
    for element in elements.iter().filter(|e| e.length > 0) {
        if element.addr == 0 {
            return Err(Refusal::invalid("inline data at NULL"));
        }
        // SAFETY: the caller's promise; the lengths add up to no more than `max`.
        bytes.extend_from_slice(unsafe {
            slice::from_raw_parts(element.addr as *const u8, element.length as usize)
        });
    }
    Ok(())
}

/// The buffers of a list that is to be sent inline.
///
/// # Safety
/// `list` is valid for `count` buffers if these aren't more than any list has.
pub unsafe fn buffers<'a>(list: *const ibv_data_buf, count: usize) -> Outcome<&'a [ibv_data_buf]> {
    const MAX: usize = 1 << 16;
    match count {
        0 => Ok(&[]),
        _ if list.is_null() => Err(Refusal::invalid("buf_list is NULL")),
        _ if count > MAX => Err(Refusal::invalid(format!("{count} buffers inline, at most {MAX}"))),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { slice::from_raw_parts(list, count) }),
    }
}

/// Copies the buffers that are to be sent inline.
///
/// # Safety
/// The buffers are readable memory of the program, if they aren't more than `max` bytes.
pub unsafe fn inline_data(buffers: &[ibv_data_buf], max: u32) -> Outcome<ferroce_proto::Data> {
    let length = buffers.iter().fold(0usize, |sum, buffer| sum.saturating_add(buffer.length));
    if length > max as usize {
        return Err(Refusal::invalid(format!("{length} bytes inline, the queue takes {max}")));
    }
    let mut bytes = SmallVec::with_capacity(length);
    for buffer in buffers.iter().filter(|buffer| buffer.length > 0) {
        if buffer.addr.is_null() {
            return Err(Refusal::invalid("inline data at NULL"));
        }
        // SAFETY: the caller's promise; the lengths add up to no more than `max`.
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(buffer.addr.cast::<u8>(), buffer.length) });
    }
    Ok(ferroce_proto::Data::Inline(bytes))
}

/// What a send request asks for.
///
/// # Safety
/// The members of its unions that the opcode selects are valid.
#[inline(always)]
unsafe fn operation(wr: &ibv_send_wr) -> Outcome<ferroce_proto::SendOp> {
    use ferroce_proto::SendOp;
    let immediate = wr.imm_data.to_ne_bytes();
    // SAFETY: the caller's promise; all members are plain numbers.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let (va, rkey) = (rdma.remote_addr, rdma.rkey);
    Ok(match wr.opcode {
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_SEND_WITH_IMM => SendOp::SendWithImmediate { immediate },
        IBV_WR_SEND_WITH_INV => SendOp::SendWithInvalidate { rkey: wr.imm_data },
        IBV_WR_RDMA_WRITE => SendOp::Write { va, rkey },
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteWithImmediate { va, rkey, immediate },
        IBV_WR_RDMA_READ => SendOp::Read { va, rkey },
        IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite { va, rkey },
        IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
            va: atomic.remote_addr,
            rkey: atomic.rkey,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => {
            SendOp::FetchAdd { va: atomic.remote_addr, rkey: atomic.rkey, add: atomic.compare_add }
        }
        IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { rkey: wr.imm_data },
        // SAFETY: the caller's promise.
        IBV_WR_BIND_MW => unsafe {
            mw::posted(wr.last.bind_mw.mw, wr.last.bind_mw.rkey, &wr.last.bind_mw.bind_info)?
        },
        other => return Err(Refusal::invalid(format!("opcode {other} isn't supported"))),
    })
}

/// The data of a send request, copied: no memory of the program is read while its queue pair is locked, but for that of lists, which
/// has been read before.
struct Copied {
    /// The only element, if there is one.
    element: ferroce_types::Sge,
    sges: ferroce_types::SgeList,
    bytes: SmallVec<[u8; 256]>,
}

impl Copied {
    #[inline(always)]
    fn new() -> Self {
        let element = ferroce_types::Sge { addr: 0, length: 0, lkey: 0 };
        Self { element, sges: ferroce_types::SgeList::new(), bytes: SmallVec::new() }
    }

    /// Copies the data of a request, and returns where they lie.
    ///
    /// # Safety
    /// `wr` is as ibv_post_send(3) asks for a queue of these sizes.
    #[inline(always)]
    unsafe fn copy(&mut self, wr: &ibv_send_wr, cap: nic::qp::QpCap) -> Outcome<ferroce_proto::DataRef<'_>> {
        // SAFETY: the caller's promise.
        unsafe {
            let elements = elements(wr.sg_list, wr.num_sge, cap.max_send_sge)?;
            if wr.send_flags & IBV_SEND_INLINE != 0 {
                self.bytes.clear();
                inline(elements, cap.max_inline_data, &mut self.bytes)?;
                return Ok(ferroce_proto::DataRef::Inline(&self.bytes));
            }
            Ok(ferroce_proto::DataRef::Sges(match elements {
                &[ibv_sge { addr, length, lkey }] => {
                    self.element = ferroce_types::Sge { addr, length, lkey };
                    slice::from_ref(&self.element)
                }
                _ => {
                    self.sges = sges(elements);
                    &self.sges
                }
            }))
        }
    }
}

/// The target of a request of a UD queue pair.
///
/// # Safety
/// `wr` is as ibv_post_send(3) asks for a UD queue pair.
#[inline(never)]
unsafe fn target(wr: &ibv_send_wr) -> Outcome<ferroce_proto::UdTarget<Arc<ferroce_parts::Ah>>> {
    // The union holds no address otherwise.
    if !matches!(wr.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) {
        return Err(Refusal::invalid("UD can send, with immediate data or without"));
    }
    // SAFETY: the caller's promise.
    unsafe {
        let to = wr.wr.ud;
        let address = AhBlock::of(to.ah)?.nic().clone();
        Ok(ferroce_proto::UdTarget { address, qpn: to.remote_qpn, qkey: to.remote_qkey })
    }
}

/// The flags of a request to a queue pair that isn't of raw packets.
pub const KNOWN: u32 = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

/// Checks that `send_flags` has no flags but these.
#[inline]
pub fn check_flags(flags: u32, known: u32) -> Outcome<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Refusal::invalid(format!("send_flags {unknown:#x} aren't supported"))),
    }
}

/// Converts a send request, or returns why it can't be converted. A function's result would be copied.
macro_rules! request {
    ($wr:expr, $qp:expr, $copied:expr, $target:expr) => {{
        let (wr, qp): (&ibv_send_wr, &nic::Qp) = ($wr, $qp);
        check_flags(wr.send_flags, KNOWN)?;
        let op = operation(wr)?;
        let data = $copied.copy(wr, qp.cap())?;
        let ud = if qp.service() == ferroce_wire::Service::Ud {
            Some(&*$target.insert(target(wr)?))
        } else {
            None
        };
        let has = |flag| wr.send_flags & flag != 0;
        ferroce_proto::SendRequest {
            wr_id: wr.wr_id,
            op,
            data,
            signaled: has(IBV_SEND_SIGNALED),
            solicited: has(IBV_SEND_SOLICITED),
            fence: has(IBV_SEND_FENCE),
            ud,
            remote_srqn: wr.remote_srqn,
        }
    }};
}

/// Posts a send request.
///
/// # Safety
/// `wr` is as ibv_post_send(3) asks for `qp`.
#[inline(always)]
unsafe fn post_one(qp: &Arc<nic::Qp>, wr: &ibv_send_wr) -> Outcome<()> {
    let (mut copied, mut ud) = (Copied::new(), None);
    // SAFETY: the caller's promise.
    let request = unsafe { request!(wr, qp, copied, ud) };
    Ok(qp.post_send(request)?)
}

/// Posts a list of send requests to a queue pair that isn't of raw packets.
///
/// # Safety
/// `wr` is as ibv_post_send(3) asks for `qp`, `bad_wr` null or the caller's variable.
#[inline(always)]
unsafe fn post_sends(qp: &Arc<nic::Qp>, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        match wr.as_ref() {
            Some(one) if one.next.is_null() => post_one(qp, one).inspect_err(|_| report_bad(bad_wr, wr)),
            _ => post_list(qp, wr, bad_wr),
        }
    }
}

/// As [`post_sends`], of a list of several requests, or of none.
///
/// # Safety
/// As [`post_sends`].
#[inline(never)]
unsafe fn post_list(qp: &Arc<nic::Qp>, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> Outcome<()> {
    let (mut copied, mut ud) = (Copied::new(), None);
    // The pages of what is sent inline may come late: not with the queue pair locked.
    let mut next = wr;
    // SAFETY: the caller's promise.
    unsafe {
        while let Some(wr) = next.as_ref()
            && (wr.send_flags & IBV_SEND_INLINE == 0 || copied.copy(wr, qp.cap()).is_ok())
        {
            next = wr.next;
        }
    }
    // The element at hand; after an error, the bad one.
    let mut current = wr;
    let posted = qp.post_list(|poster| {
        // SAFETY: the caller's promise.
        unsafe {
            while let Some(wr) = current.as_ref() {
                poster.post(request!(wr, qp, copied, ud))?;
                current = wr.next;
            }
        }
        Ok(())
    });
    // SAFETY: the caller's promise.
    posted.inspect_err(|_: &Refusal| unsafe { report_bad(bad_wr, current) })
}

/// Reports to the program which element was bad.
///
/// # Safety
/// `bad_wr` is null or the caller's variable.
pub unsafe fn report_bad<T>(bad_wr: *mut *mut T, wr: *mut T) {
    if !bad_wr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *bad_wr = wr };
    }
}

/// How a request's bytes are to be segmented.
///
/// # Safety
/// The header is readable for that length.
pub unsafe fn segmentation(nic: &RawQp, hdr: *const c_void, hdr_sz: u16, mss: u16) -> Outcome<Box<Tso>> {
    if hdr.is_null() || hdr_sz > nic.max_tso_header() {
        let most = nic.max_tso_header();
        return Err(Refusal::invalid(format!(
            "a header of {hdr_sz} bytes at {hdr:p}: the queue takes {most}"
        )));
    }
    // SAFETY: the caller's promise.
    let header = unsafe { slice::from_raw_parts(hdr.cast::<u8>(), hdr_sz.into()) };
    Ok(Box::new(Tso::new(header, mss)?))
}

/// Converts a request to send a frame.
///
/// # Safety
/// `wr` is as ibv_post_send(3) asks for a raw packet queue pair.
unsafe fn raw_send(wr: &ibv_send_wr, qp: &RawQp) -> Outcome<RawSend> {
    check_flags(wr.send_flags, KNOWN | IBV_SEND_IP_CSUM)?;
    let tso = match wr.opcode {
        IBV_WR_SEND => None,
        // SAFETY: the caller's promise: the union contains the member of the opcode.
        IBV_WR_TSO => unsafe {
            let tso = wr.last.tso;
            Some(segmentation(qp, tso.hdr, tso.hdr_sz, tso.mss)?)
        },
        other => return Err(Refusal::invalid(format!("opcode {other} of a raw packet queue pair"))),
    };
    let cap = qp.cap();
    // SAFETY: the caller's promise.
    let data = unsafe {
        let elements = elements(wr.sg_list, wr.num_sge, cap.max_send_sge)?;
        if wr.send_flags & IBV_SEND_INLINE != 0 {
            let mut bytes = SmallVec::new();
            inline(elements, cap.max_inline_data, &mut bytes)?;
            ferroce_proto::Data::Inline(bytes)
        } else {
            ferroce_proto::Data::Sges(sges(elements))
        }
    };
    let has = |flag| wr.send_flags & flag != 0;
    let (signaled, checksums) = (has(IBV_SEND_SIGNALED), has(IBV_SEND_IP_CSUM));
    Ok(RawSend { wr_id: wr.wr_id, data, signaled, checksums, tso })
}

/// Posts a list of frames.
///
/// # Safety
/// `wr` is as ibv_post_send(3) asks for `qp`, `bad_wr` null or the caller's variable.
#[inline(never)]
unsafe fn post_frames(qp: &Arc<RawQp>, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> Outcome<()> {
    let mut next = wr;
    // The element at hand; after an error, the bad one.
    let mut current = wr;
    let mut refusal = None;
    let posted = qp.post_send(|| {
        current = NonNull::new(next)?.as_ptr();
        // SAFETY: the caller's promise.
        let frame = unsafe {
            next = (*current).next;
            raw_send(&*current, qp)
        };
        Some(frame.map_err(|why| {
            refusal = Some(why);
            ferroce_types::Error::Invalid(String::new())
        }))
    });
    let outcome = refusal.map_or_else(|| posted.map_err(Refusal::from), Err);
    // SAFETY: the caller's promise.
    outcome.inspect_err(|_| unsafe { report_bad(bad_wr, current) })
}

/// The slot behind ibv_post_send(3).
pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    call::to_errno(call::contain("ibv_post_send", || {
        // SAFETY: by the man page a queue pair, a list that stays valid during the call, and the caller's variable.
        unsafe {
            match QpBlock::of(qp).inspect_err(|_| report_bad(bad_wr, wr))?.work() {
                QpWork::Transport(qp) => post_sends(qp, wr, bad_wr),
                QpWork::Raw(qp) => post_frames(qp, wr, bad_wr),
            }
        }
    }))
}

/// Posts a list of receive requests one by one.
///
/// # Safety
/// `wr` is a list as ibv_post_recv(3) asks, `bad_wr` null or the caller's variable.
unsafe fn post_receives(
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    max_sge: u32,
    mut post: impl FnMut(ferroce_types::RecvWqe) -> ferroce_types::Result<()>,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        while let Some(element) = wr.as_ref() {
            elements(element.sg_list, element.num_sge, max_sge)
                .and_then(|list| Ok(post(ferroce_types::RecvWqe { wr_id: element.wr_id, sges: sges(list) })?))
                .inspect_err(|_| report_bad(bad_wr, wr))?;
            wr = element.next;
        }
    }
    Ok(())
}

/// The slot behind ibv_post_recv(3).
pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    call::to_errno(call::contain("ibv_post_recv", || {
        // SAFETY: by the man page a queue pair, a list, and the caller's variable.
        unsafe {
            let qp = match QpBlock::of(qp).inspect_err(|_| report_bad(bad_wr, wr))?.work() {
                QpWork::Transport(qp) => qp,
                QpWork::Raw(qp) => {
                    return post_receives(wr, bad_wr, qp.cap().max_recv_sge, |wqe| qp.post_recv(wqe));
                }
            };
            // A queue pair with an SRQ has no receive queue that limits the elements; `post_recv` refuses the request.
            let max_sge = if qp.srq().is_some() { ferroce_queues::MAX_SGE } else { qp.cap().max_recv_sge };
            post_receives(wr, bad_wr, max_sge, |wqe| qp.post_recv(wqe))
        }
    }))
}

/// The slot behind ibv_post_srq_recv(3).
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    call::to_errno(call::contain("ibv_post_srq_recv", || {
        // SAFETY: by the man page a queue, a list, and the caller's variable.
        unsafe {
            let srq = SrqBlock::of(srq).inspect_err(|_| report_bad(bad_wr, wr))?.nic();
            post_receives(wr, bad_wr, ferroce_queues::MAX_SGE, |wqe| srq.post(wqe))
        }
    }))
}

/// The slot behind ibv_post_wq_recv(3).
pub unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    call::to_errno(call::contain("ibv_post_wq_recv", || {
        // SAFETY: by the man page a work queue, a list, and the caller's variable.
        unsafe {
            let block = WqBlock::of(wq).inspect_err(|_| report_bad(bad_wr, wr))?;
            post_receives(wr, bad_wr, block.max_sge(), |wqe| block.nic().post(wqe))
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_elements_are_refused_before_the_list_is_read() {
        let dangling = std::ptr::dangling::<ibv_sge>();
        // SAFETY: a count above the maximum, or below zero, isn't followed.
        unsafe {
            assert_eq!(elements(dangling, 3, 2).expect_err("too many").errno, libc::EINVAL);
            assert_eq!(elements(dangling, -1, 2).expect_err("negative").errno, libc::EINVAL);
            assert_eq!(elements(std::ptr::null(), 1, 2).expect_err("NULL").errno, libc::EINVAL);
            assert!(elements(std::ptr::null(), 0, 2).expect("none").is_empty());
        }
    }

    #[test]
    fn buffers_are_counted_before_the_list_is_read() {
        let dangling = std::ptr::dangling::<ibv_data_buf>();
        // SAFETY: a count that no list has isn't followed.
        unsafe {
            assert_eq!(buffers(dangling, usize::MAX).expect_err("too many").errno, libc::EINVAL);
            assert_eq!(buffers(std::ptr::null(), 1).expect_err("NULL").errno, libc::EINVAL);
            assert!(buffers(std::ptr::null(), 0).expect("none").is_empty());
        }
    }

    #[test]
    fn inline_data_are_gathered_up_to_the_limit() {
        let (a, b) = (*b"abc", *b"de");
        let element =
            |bytes: &[u8]| ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
        let list = [element(&a), element(&[]), element(&b)];
        // SAFETY: the elements are these arrays.
        unsafe {
            let mut bytes = SmallVec::<[u8; 4]>::new();
            inline(&list, 5, &mut bytes).expect("five bytes");
            assert_eq!(&bytes[..], b"abcde");
            assert_eq!(inline(&list, 4, &mut bytes).expect_err("too long").errno, libc::EINVAL);
            let nowhere = ibv_sge { addr: 0, length: 1, lkey: 0 };
            assert_eq!(inline(&[nowhere], 5, &mut bytes).expect_err("NULL").errno, libc::EINVAL);
        }
    }
}
