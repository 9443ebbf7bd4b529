//! A thread of the adapter's that is open to its own faults for a while.

use super::action::{self, FAULTS, bit};
use super::{Mask, answer, unblock};
use ferroce_os::{fork, sys};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads that are open at a time, at most: each thread that waits for a page can be one.
const MOST: usize = 2048;
/// The threads that are open: the number in the low half, above it the fork generation of its process; 0: none.
static OPEN: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// So many places of [`OPEN`] have been used, at most.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A thread that has unblocked the signals of its faults, for as long as this lives: such a signal that was sent, and comes to it because
/// the others block it, is given back.
#[derive(Debug)]
pub(super) struct UnblockedFaults {
    at: usize,
    /// The signals that the thread blocks, and gets blocked again.
    blocked: u64,
    /// The mask is the thread's.
    _thread: PhantomData<*const ()>,
}

impl UnblockedFaults {
    /// Opens this thread. `None`: a signal is waiting that would be delivered to it, too many threads
    /// are open, or the system refused.
    pub(super) fn this_thread() -> Option<Self> {
        let this = name();
        let at = OPEN.iter().position(|place| {
            let taken = place.compare_exchange(0, this, Ordering::AcqRel, Ordering::Acquire);
            // In the child of a fork, that thread isn't there.
            taken.is_ok()
                || taken.is_err_and(|other| {
                    other >> 32 != this >> 32
                        && place.compare_exchange(other, this, Ordering::AcqRel, Ordering::Acquire).is_ok()
                })
        })?;
        // A handler that runs in this thread looks at its place.
        USED.fetch_max(at + 1, Ordering::AcqRel);
        let mut opened = Self { at, blocked: 0, _thread: PhantomData };
        opened.blocked = unblock()?;
        Some(opened)
    }
}

impl UnblockedFaults {
    /// The thread was open before.
    pub(super) fn blocks_nothing(&self) -> bool {
        self.blocked == 0
    }
}

impl Drop for UnblockedFaults {
    fn drop(&mut self) {
        if self.blocked != 0 {
            action::block(self.blocked);
        }
        OPEN[self.at].store(0, Ordering::Release);
    }
}

fn name() -> u64 {
    u64::from(fork::generation()) << 32 | u64::from(sys::own_number().cast_unsigned())
}

/// While this lives, a thread of the adapter's, which blocks all signals, unblocks those of its faults at its second copy or atomic, so that
/// the processor copies for it, and atomics need no system call. Unblocking and blocking take as long as one copy by the kernel.
#[derive(Debug)]
pub struct OwnFaults {
    /// The mask is the thread's.
    _thread: PhantomData<*const ()>,
}

/// Copies by the kernel, or atomics that unblock the signals for themselves, before the signals are unblocked for all that follow.
const BY_KERNEL: u32 = 1;

/// What a thread keeps of [`OwnFaults`] and of its [`UnblockedFaults`].
pub(super) struct Opens {
    /// The thread may unblock the signals.
    may: Cell<bool>,
    /// 1 + the place in [`OPEN`]; 0: the thread hasn't unblocked them.
    place: Cell<usize>,
    /// [`UnblockedFaults::blocked`].
    blocked: Cell<u64>,
}

impl Opens {
    /// The thread unblocks the signals itself.
    pub(super) fn may(&self) -> bool {
        self.may.get()
    }

    /// Unblocks the signals, for as long as the thread's [`OwnFaults`] lives. False: a signal is waiting that would be delivered to this
    /// thread, or the system refused. The guard stands in front: it gives back a signal that is sent from now on.
    pub(super) fn open(&self) -> bool {
        if self.place.get() != 0 {
            // A signal that was given back is blocked.
            return action::blocked().is_some_and(|blocked| blocked & FAULTS == 0) || unblock().is_some();
        }
        let Some(opened) = UnblockedFaults::this_thread() else { return false };
        self.place.set(opened.at + 1);
        self.blocked.set(opened.blocked);
        std::mem::forget(opened);
        true
    }

    fn close(&self) {
        self.may.set(false);
        if let Some(at) = self.place.replace(0).checked_sub(1) {
            drop(UnblockedFaults { at, blocked: self.blocked.get(), _thread: PhantomData });
        }
    }
}

impl OwnFaults {
    /// For a thread of the adapter's that is awake, once at a time.
    #[must_use]
    pub fn of_this_thread() -> Self {
        Self::ask_again();
        answer().copies.set(BY_KERNEL);
        answer().opens.may.set(true);
        Self { _thread: PhantomData }
    }

    /// What is known of this thread's mask is old.
    fn ask_again() {
        answer().mask.set(Mask::Unknown);
        answer().copies.set(0);
    }
}

impl Drop for OwnFaults {
    fn drop(&mut self) {
        answer().opens.close();
        Self::ask_again();
    }
}

/// In the handler: gives a signal that was sent back to the process, if the thread that it has come to is an open one, which blocks
/// it from now on.
///
/// # Safety
/// The arguments are those of the handler.
pub(super) unsafe fn give_back(signal: i32, info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool {
    let used = &OPEN[..USED.load(Ordering::Acquire)];
    let is_open = |name: u64| used.iter().any(|place| place.load(Ordering::Acquire) == name);
    if used.iter().all(|place| place.load(Ordering::Acquire) == 0) || !is_open(name()) {
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
