//! The functions of posting and polling as the checker and a strict adapter have them: each does what the plain one does, and
//! keeps count. What a strict adapter refuses, it refuses.

use std::ffi::c_int;
use std::{mem, ptr};

use ferroce_nic as nic;
use ferroce_parts::settings;

use crate::{poll, post};
use ferroce_abi::verbs::*;
use ferroce_check::{self as check, Buffers, CheckedSend, CqWatch, QpWatch};
use ferroce_entry::call::{self, Outcome, Refusal};
use ferroce_objects::{CqBlock, Headed, QpBlock, SrqBlock};

/// Sets the functions of an open device that the checker looks at.
pub fn fill(ops: &mut ibv_context_ops) {
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
}

/// # Safety
/// `qp` is null or a queue pair.
unsafe fn watch_of_qp<'a>(qp: *mut ibv_qp) -> Option<&'a QpWatch> {
    // SAFETY: the caller's promise.
    unsafe { QpBlock::of(qp) }.ok()?.watch().map(|watch| &**watch)
}

/// # Safety
/// `cq` is null or a completion queue.
unsafe fn watch_of_cq<'a>(cq: *mut ibv_cq) -> Option<&'a CqWatch> {
    // SAFETY: the caller's promise.
    unsafe { CqBlock::of(cq) }.ok()?.watch().map(|watch| &**watch)
}

/// The elements of a list, in order.
///
/// # Safety
/// `first` is a list that stays valid, linked by what `next` reads.
unsafe fn list<'a, T: 'a>(first: *mut T, next: impl Fn(&'a T) -> *mut T) -> impl Iterator<Item = &'a T> {
    // SAFETY: the caller's promise.
    std::iter::successors(unsafe { first.as_ref() }, move |element| unsafe { next(element).as_ref() })
}

/// Calls a function that posts a list, and returns how many elements it has taken. `bad_wr` gets the bad element, the first one if the
/// function names none.
///
/// # Safety
/// `first` is a list, linked by what `next` reads, `bad_wr` null or the caller's variable.
unsafe fn post_list<T>(
    first: *mut T,
    next: impl Fn(&T) -> *mut T,
    bad_wr: *mut *mut T,
    post: impl FnOnce(*mut *mut T) -> c_int,
) -> (c_int, usize) {
    // A call that is refused as a whole names none.
    let mut bad = first;
    let result = post(&mut bad);
    // SAFETY: the caller's promise.
    unsafe {
        if result != 0 {
            post::report_bad(bad_wr, bad);
        }
        let all = list(first, next);
        (result, if result == 0 { all.count() } else { all.take_while(|wr| !ptr::eq(*wr, bad)).count() })
    }
}

/// Why a request isn't taken.
const FULL: &str = "the queue is full; poll completions to free its entries";

/// Posts the first `room` elements of a longer list, one by one, and refuses the next: no room. Returns how many it has taken.
///
/// # Safety
/// `first` is a list, linked by what `next` gives, and valid during the call; `bad_wr` is null or the caller's variable. `post` is
/// given a list of one element.
unsafe fn post_some<T: Copy>(
    call: &'static str,
    first: *mut T,
    next: impl Fn(&mut T) -> &mut *mut T,
    bad_wr: *mut *mut T,
    room: usize,
    post: impl Fn(*mut T) -> c_int,
) -> (c_int, usize) {
    let (mut element, mut taken, mut result) = (first, 0, 0);
    // SAFETY: the caller's promise.
    while let Some(mut alone) = unsafe { element.as_ref() }.copied() {
        let following = mem::replace(next(&mut alone), ptr::null_mut());
        result = if taken < room { post(&mut alone) } else { call::to_errno(call::contain(call, refuse)) };
        if result != 0 {
            // SAFETY: the caller's promise.
            unsafe { post::report_bad(bad_wr, element) };
            break;
        }
        taken += 1;
        element = following;
    }
    (result, taken)
}

fn refuse() -> Outcome<()> {
    Err(Refusal::new(libc::ENOMEM, FULL))
}

/// What the checker is to know of a send request.
///
/// # Safety
/// `qp` is a queue pair, and `wr` as ibv_post_send(3) asks.
unsafe fn sent(qp: *mut ibv_qp, wr: &ibv_send_wr) -> CheckedSend {
    let signaled = wr.send_flags & IBV_SEND_SIGNALED != 0;
    let filled =
        matches!(wr.opcode, IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD);
    // The adapter has what is inline when the call returns.
    let count = if wr.send_flags & IBV_SEND_INLINE != 0 { 0 } else { wr.num_sge };
    // SAFETY: the caller's promise.
    CheckedSend { wr_id: wr.wr_id, signaled, buffers: unsafe { buffers(qp, filled, wr.sg_list, count) } }
}

/// The memory of a request.
///
/// # Safety
/// `qp` is a queue pair, and the list is valid for so many elements if that is from 1 to what any queue takes.
unsafe fn buffers(qp: *mut ibv_qp, filled: bool, elements: *const ibv_sge, count: c_int) -> Buffers {
    // SAFETY: the caller's promise.
    unsafe {
        let qp = QpBlock::of(qp).and_then(QpBlock::nic);
        qp.map_or_else(|_| Buffers::default(), |qp| Buffers::begin(qp.pd(), filled, || sges(elements, count)))
    }
}

/// The elements of a request; none where the adapter is going to refuse it.
///
/// # Safety
/// As [`buffers`].
unsafe fn sges(elements: *const ibv_sge, count: c_int) -> ferroce_types::SgeList {
    // SAFETY: the caller's promise.
    unsafe { post::elements(elements, count, ferroce_queues::MAX_SGE) }.map(post::sges).unwrap_or_default()
}

/// As [`sent`], of a request that the program has put together by the extended interface.
fn gathered_sent(qp: &nic::Qp, wr: &post::SendWr) -> CheckedSend {
    let filled = matches!(
        wr.op,
        ferroce_proto::SendOp::Read { .. }
            | ferroce_proto::SendOp::CompareSwap { .. }
            | ferroce_proto::SendOp::FetchAdd { .. }
    );
    let list = || match &wr.data {
        ferroce_proto::Data::Sges(sges) => sges.clone(),
        ferroce_proto::Data::Inline(_) => ferroce_types::SgeList::default(),
    };
    CheckedSend { wr_id: wr.wr_id, signaled: wr.signaled, buffers: Buffers::begin(qp.pd(), filled, list) }
}

/// Has a list no more than so many elements?
///
/// # Safety
/// As [`list`].
unsafe fn fits<T>(first: *mut T, next: impl Fn(&T) -> *mut T, room: usize) -> bool {
    // SAFETY: the caller's promise.
    room == usize::MAX || unsafe { list(first, next) }.nth(room).is_none()
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let _inside = ferroce_os::fork::enter_library();
    // SAFETY: by the man page a queue pair, a list that stays valid during the call, and the caller's variable.
    unsafe {
        let Some(watch) = watch_of_qp(qp) else { return post::post_send(qp, wr, bad_wr) };
        let requests = list(wr, |wr| wr.next).map(|wr| sent(qp, wr));
        watch.posts(requests, |room| {
            if fits(wr, |wr| wr.next, room) {
                return post_list(wr, |wr| wr.next, bad_wr, |bad| post::post_send(qp, wr, bad));
            }
            let post = |wr| post::post_send(qp, wr, &mut ptr::null_mut());
            post_some("ibv_post_send", wr, |wr| &mut wr.next, bad_wr, room, post)
        })
    }
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let _inside = ferroce_os::fork::enter_library();
    // SAFETY: as above.
    unsafe {
        let Some(watch) = watch_of_qp(qp) else { return post::post_recv(qp, wr, bad_wr) };
        let buffers = |wr: &ibv_recv_wr| buffers(qp, true, wr.sg_list, wr.num_sge);
        let requests = list(wr, |wr| wr.next).map(|wr| (wr.wr_id, buffers(wr)));
        watch.posts_receives(requests, |room| {
            if fits(wr, |wr| wr.next, room) {
                return post_list(wr, |wr| wr.next, bad_wr, |bad| post::post_recv(qp, wr, bad));
            }
            let post = |wr| post::post_recv(qp, wr, &mut ptr::null_mut());
            post_some("ibv_post_recv", wr, |wr| &mut wr.next, bad_wr, room, post)
        })
    }
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let _inside = ferroce_os::fork::enter_library();
    // SAFETY: by the man page a queue, a list that stays valid during the call, and the caller's variable.
    unsafe {
        let block = SrqBlock::of(srq).ok();
        let Some((block, watch)) = block.and_then(|block| Some((block, block.watch()?))) else {
            return post::post_srq_recv(srq, wr, bad_wr);
        };
        let pd = block.nic().pd();
        let buffers = |wr: &ibv_recv_wr| Buffers::begin(pd, true, || sges(wr.sg_list, wr.num_sge));
        let requests = list(wr, |wr| wr.next).map(|wr| (wr.wr_id, buffers(wr)));
        let post = |bad: *mut *mut ibv_recv_wr| post::post_srq_recv(srq, wr, bad);
        watch.posts(requests, || post_list(wr, |wr| wr.next, bad_wr, post))
    }
}

/// The slot behind ibv_wr_complete(3) of a queue pair.
pub unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    call::to_errno(call::contain("ibv_wr_complete", || {
        // SAFETY: by the man page a queue pair, in whose critical region this thread is.
        unsafe {
            let block = QpBlock::of(qp.cast())?;
            let nic = block.nic()?;
            let watch = block.watch().ok_or_else(|| Refusal::invalid("the queue pair isn't watched"))?;
            nic.wr_session().complete(|gathered| {
                let requests: Vec<_> = gathered.requests().map(|wr| gathered_sent(nic, wr)).collect();
                let count = requests.len();
                watch.posts(requests.into_iter(), |room| {
                    if count > room {
                        return (Err(ferroce_types::Error::NoMemory(FULL.into())), 0);
                    }
                    let posted = nic.post_gathered(gathered);
                    let taken = if posted.is_ok() { count } else { 0 };
                    (posted, taken)
                })
            })?;
        }
        Ok(())
    }))
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    let _inside = ferroce_os::fork::enter_library();
    // SAFETY: by the man page a completion queue, and an array of which so many have been filled in.
    unsafe {
        let Some(watch) = watch_of_cq(cq) else { return poll::poll_cq(cq, num_entries, wc) };
        watch.in_turn(|| {
            let polled = poll::poll_cq(cq, num_entries, wc);
            watch.note_poll(usize::try_from(polled).unwrap_or(0));
            if polled > 0 {
                let completions = std::slice::from_raw_parts_mut(wc, polled as usize);
                watch.polled(completions);
                if settings::is_strict() {
                    completions.iter_mut().for_each(check::hide_invalid);
                }
            }
            polled
        })
    }
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    call::to_errno(call::contain("ibv_req_notify_cq", || {
        // SAFETY: by the man page a completion queue.
        let block = unsafe { CqBlock::of(cq) }?;
        if settings::is_strict() {
            block.nic().request_notify_of_new(solicited_only != 0);
            return Ok(());
        }
        let ask = || block.nic().request_notify(solicited_only != 0);
        match block.watch() {
            Some(watch) => watch.in_turn(|| watch.armed(ask())),
            None => _ = ask(),
        }
        Ok(())
    }))
}

/// Sets the functions of an extended completion queue that the checker looks at.
pub fn fill_cq(c: &mut ibv_cq_ex) {
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
}

/// The iterator of an extended queue has found no completion.
///
/// # Safety
/// `cq` is an extended queue.
unsafe fn found_none(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's promise.
    if let Some(watch) = unsafe { watch_of_cq(cq.cast()) } {
        watch.note_poll(0);
    }
}

/// Counts the completion that the iterator stands on.
///
/// # Safety
/// `cq` is an extended queue that this thread has locked.
unsafe fn stands_on(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Ok(block) = CqBlock::of(cq.cast())
            && let Some(watch) = block.watch()
        {
            let completion = &mut *block.current.get();
            watch.note_poll(1);
            watch.polled(std::slice::from_ref(completion));
            if settings::is_strict() {
                check::hide_invalid(completion);
            }
        }
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let _inside = ferroce_os::fork::enter_library();
    // SAFETY: by the man page an extended queue, and attributes or NULL. After success this thread has locked it.
    unsafe {
        let result = poll::start_poll(cq, attr);
        match result {
            0 => stands_on(cq),
            libc::ENOENT => found_none(cq),
            _ => {}
        }
        result
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let _inside = ferroce_os::fork::enter_library();
    // SAFETY: by the man page between start_poll and end_poll, so this thread has the lock.
    unsafe {
        let result = poll::next_poll(cq);
        if result == 0 {
            stands_on(cq);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_refused_as_a_whole_has_taken_nothing() {
        // SAFETY: all zeros are a valid request: no element, and none after it.
        let mut wrs: [ibv_recv_wr; 2] = unsafe { mem::zeroed() };
        let [first, second] = &mut wrs;
        first.next = second;
        let (first, second): (*mut ibv_recv_wr, *mut ibv_recv_wr) = (first, second);
        let mut bad = ptr::null_mut();
        let mut post = |refused: *mut ibv_recv_wr| {
            let call = |bad_wr: *mut *mut ibv_recv_wr| {
                if !refused.is_null() {
                    // SAFETY: the variable that `post_list` has for it.
                    unsafe { *bad_wr = refused };
                }
                libc::EIO
            };
            // SAFETY: a list of two, and a variable of this function.
            let told = unsafe { post_list(first, |wr| wr.next, &mut bad, call) };
            (told, bad)
        };
        assert_eq!(post(second), ((libc::EIO, 1), second));
        assert_eq!(post(ptr::null_mut()), ((libc::EIO, 0), first));
    }
}
