//! A thread of the adapter's that is open to its own faults for a while.

use super::action::{self, FAULTS, bit};
use super::{ANSWER, Mask, handler};
use ferroce_os::{fork, sys};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// The thread that is open, in the low half, and the fork generation of its process; 0: none.
static OPEN: AtomicU64 = AtomicU64::new(0);

/// While this lives, a thread that blocks all signals doesn't block those of its faults, so that the processor can copy for it. Such a
/// signal that comes from elsewhere all the same is given back to the process: the thread isn't the program's.
#[derive(Debug)]
pub struct OwnFaults {
    /// The mask is the thread's.
    _thread: PhantomData<*const ()>,
}

impl OwnFaults {
    /// Opens a thread of the adapter's. `None`: a signal is waiting that would be delivered to it, another thread is open, or the
    /// system refused.
    #[must_use]
    pub fn open() -> Option<Self> {
        let this = Self::name();
        OPEN.compare_exchange(0, this, Ordering::AcqRel, Ordering::Acquire)
            // In the child of a fork, that thread isn't there.
            .or_else(|other| {
                let gone = other >> 32 != this >> 32;
                if !gone {
                    return Err(other);
                }
                OPEN.compare_exchange(other, this, Ordering::AcqRel, Ordering::Acquire)
            })
            .ok()?;
        // In front first: a signal that is sent from now on finds who gives it back.
        if !handler::arm() || super::unblock().is_none() {
            OPEN.store(0, Ordering::Release);
            return None;
        }
        Self::ask_again();
        Some(Self { _thread: PhantomData })
    }

    fn name() -> u64 {
        u64::from(fork::generation()) << 32 | u64::from(sys::own_number().cast_unsigned())
    }

    /// What is known of this thread's mask is old.
    fn ask_again() {
        ANSWER.with(|answer| {
            answer.mask.set(Mask::Unknown);
            answer.copies.set(0);
        });
    }
}

impl Drop for OwnFaults {
    fn drop(&mut self) {
        action::block(FAULTS);
        OPEN.store(0, Ordering::Release);
        Self::ask_again();
    }
}

/// In the handler: gives a signal that was sent back to the process, if the thread that it has come to is an open one, which blocks
/// it from now on.
///
/// # Safety
/// The arguments are those of the handler.
pub(super) unsafe fn give_back(signal: i32, info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool {
    let open = OPEN.load(Ordering::Acquire);
    if open == 0 || open != OwnFaults::name() {
        return false;
    }
    OwnFaults::ask_again();
    action::block(bit(signal));
    // SAFETY: the kernel's description; its mask is the first 8 bytes of the context's.
    unsafe {
        *(&raw mut context.uc_sigmask).cast::<u64>() |= bit(signal);
        action::send_to_process(signal, info);
    }
    true
}
