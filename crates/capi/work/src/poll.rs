//! Polling: ibv_poll_cq(3), and the iterator of extended queues (ibv_start_poll(3)).

use std::ffi::c_int;
use std::mem::offset_of;

use ferroce_nic as nic;
use nic::Poll as _;

use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal};
use ferroce_objects::{CqBlock, Headed};

/// Asserts that a completion of the adapter, which a poll copies to the program, has the fields of an `ibv_wc` where that has them.
macro_rules! assert_layout {
    ($($field:ident)*) => {
        const _: () = {
            assert!(size_of::<ferroce_types::Completion>() == size_of::<ibv_wc>());
            assert!(align_of::<ferroce_types::Completion>() == align_of::<ibv_wc>());
            $(assert!(offset_of!(ferroce_types::Completion, $field) == offset_of!(ibv_wc, $field));)*
        };
    };
}
assert_layout!(wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid sl dlid_path_bits);

/// Completions that are taken at once, at most: as many as a page has room for.
const AT_ONCE: c_int = (4096 / size_of::<ibv_wc>()) as c_int;

/// Touches an array of up to [`AT_ONCE`] entries, if it has any. Where it isn't there, the fault comes while no lock is held: the program's
/// handler may leave by siglongjmp(3).
///
/// # Safety
/// It is an array that the caller writes.
#[inline]
unsafe fn touch(array: *mut ibv_wc, entries: usize) {
    if entries == 0 || array.is_null() {
        return;
    }
    let bytes = array.cast::<u8>();
    // SAFETY: the first and the last byte of the array, which are in all of its pages.
    unsafe {
        for byte in [bytes, bytes.add(entries * size_of::<ibv_wc>() - 1)] {
            byte.write_volatile(byte.read_volatile());
        }
    }
}

/// The slot behind ibv_poll_cq(3): the number of completions, or −1.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    let mut taken = 0;
    loop {
        let room = (num_entries - taken).min(AT_ONCE);
        // SAFETY: by the man page a completion queue, and an array of `num_entries`.
        let n = unsafe { poll_into(cq, room, wc.wrapping_add(taken as usize), taken > 0) };
        if n < 0 {
            return n;
        }
        taken += n;
        // Less than there is room for: the queue is empty.
        if n < room || taken == num_entries {
            return taken;
        }
    }
}

/// As [`poll_cq`], for at most [`AT_ONCE`] completions. `goes_on`: there were completions before.
///
/// # Safety
/// `cq` is a completion queue, `place` an array of `room` entries.
#[inline(always)]
unsafe fn poll_into(cq: *mut ibv_cq, room: c_int, mut place: *mut ibv_wc, goes_on: bool) -> c_int {
    let max = usize::try_from(room);
    // Before the call comes into the library, of which nothing is left on the stack then.
    // SAFETY: the caller's promise.
    unsafe { touch(place, max.unwrap_or(0)) };
    call::to_minus_one(call::contain("ibv_poll_cq", || {
        let Ok(max) = max else {
            return Err(Refusal::invalid(format!("room for {room} completions")));
        };
        // SAFETY: the caller's promise; the adapter gives at most so many.
        let polled = unsafe {
            CqBlock::of(cq)?.nic().poll(max, |completion| {
                place.cast::<ferroce_types::Completion>().write(*completion);
                place = place.add(1);
            })
        };
        match polled {
            Ok(n) => Ok(n as c_int),
            // The completions before are reported, and the next call fails.
            Err(_) if goes_on => Ok(0),
            Err(error) => Err(error.into()),
        }
    }))
}

/// Moves the iterator to the next completion.
///
/// # Safety
/// `cq` is an extended queue, whose lock the caller holds.
unsafe fn advance(cq: *mut ibv_cq_ex, begins: bool) -> Outcome<()> {
    // SAFETY: the caller's promise; the lock makes this the only user of the iterator.
    unsafe {
        let block = CqBlock::of(cq.cast())?;
        let stand_on = |completion: &ferroce_types::Completion, stamp| {
            (*cq).status = completion.status as c_int;
            (*cq).wr_id = completion.wr_id;
            block.current.get().cast::<ferroce_types::Completion>().write(*completion);
            *block.stamp.get() = stamp;
        };
        let queue = block.nic();
        let n = if begins { queue.poll_stamped(1, stand_on)? } else { queue.take(1, stand_on) };
        // This has a return value of its own, and isn't logged as a refusal.
        if n == 0 { Err(Refusal::new(libc::ENOENT, "the completion queue is empty")) } else { Ok(()) }
    }
}

/// Keeps other threads off the iterator, unless there are none.
///
/// # Safety
/// `cq` is an extended queue.
unsafe fn lock(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's promise; the mutex was zeroed, which is its initial state, and isn't used for anything else.
    unsafe {
        if !(*cq.cast::<CqBlock>()).single_threaded {
            libc::pthread_mutex_lock(&raw mut (*cq).mutex);
        }
    }
}

/// # Safety
/// `cq` is an extended queue that this thread has locked.
unsafe fn unlock(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller's promise.
    unsafe {
        if !(*cq.cast::<CqBlock>()).single_threaded {
            libc::pthread_mutex_unlock(&raw mut (*cq).mutex);
        }
    }
}

/// Begins a batch. On success the queue stays locked until `end_poll`, so that threads may share it.
pub unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    call::to_errno(call::contain("ibv_start_poll", || {
        // SAFETY: by the man page an extended queue, and attributes or NULL.
        unsafe {
            if attr.as_ref().is_some_and(|attr| attr.comp_mask != 0) {
                return Err(Refusal::invalid("the comp_mask of ibv_poll_cq_attr isn't 0"));
            }
            lock(cq);
            advance(cq, true).inspect_err(|_| unlock(cq))
        }
    }))
}

/// The function behind ibv_next_poll(3).
pub unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: by the man page between start_poll and end_poll, so this thread has the lock.
    call::to_errno(call::contain("ibv_next_poll", || unsafe { advance(cq, false) }))
}

/// The function behind ibv_end_poll(3).
pub unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: by the man page after a successful start_poll of this thread, which has locked.
    unsafe { unlock(cq) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_a_completion_are_those_of_programs() {
        let flags = |set: fn(ferroce_types::Completion) -> ferroce_types::Completion| {
            set(ferroce_types::Completion::default()).wc_flags
        };
        let tags = ferroce_types::TagFlags::default();
        assert_eq!(flags(|completion| completion.with_value(Some([0; 4]), None)), IBV_WC_WITH_IMM);
        assert_eq!(flags(|completion| completion.with_value(None, Some(0))), IBV_WC_WITH_INV);
        assert_eq!(flags(|completion| completion.with_grh(true)), IBV_WC_GRH);
        assert_eq!(flags(|completion| completion.with_checksums_ok(true)), IBV_WC_IP_CSUM_OK);
        for (tags, flag) in [
            (ferroce_types::TagFlags { sync_required: true, ..tags }, IBV_WC_TM_SYNC_REQ),
            (ferroce_types::TagFlags { matched: true, ..tags }, IBV_WC_TM_MATCH),
            (ferroce_types::TagFlags { data_valid: true, ..tags }, IBV_WC_TM_DATA_VALID),
        ] {
            assert_eq!(ferroce_types::Completion::default().with_tags(tags).wc_flags, flag);
        }
    }
}
