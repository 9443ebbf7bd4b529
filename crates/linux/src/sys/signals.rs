//! The signals of a thread while it is in a call of the library.
//!
//! A handler may call the library itself, leave by siglongjmp(3), or end its thread. A thread that holds locks for the whole process
//! holds its signals back, so that handlers run where it has none. No type here has a destructor: a handler may not return.

use std::ffi::{c_int, c_long};

/// A set of signals as the kernel has it: signal 1 is the lowest bit.
pub type SignalSet = u64;

/// The set of these signals.
#[must_use]
pub const fn signal_set(signals: &[c_int]) -> SignalSet {
    let (mut set, mut at) = (0, 0);
    while at < signals.len() {
        set |= 1 << (signals[at] - 1);
        at += 1;
    }
    set
}

/// The signal by which the C library wakes a thread that is cancelled.
pub const CANCELS: SignalSet = signal_set(&[32]);

/// Signals of faults, which a thread causes itself, and the one by which the C library changes the user of all threads. SIGABRT isn't one:
/// abort(3) lets it in.
pub const NEVER_HELD: SignalSet =
    signal_set(&[libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS, 33]);

unsafe extern "C-unwind" {
    /// A handler that runs in it may end its thread.
    fn syscall(number: c_long, ...) -> c_long;
}

/// Blocks `signals`, also others (SIG_BLOCK) or no others (SIG_SETMASK). Returns what was blocked before.
pub fn block(how: c_int, signals: SignalSet) -> SignalSet {
    let mut before: SignalSet = 0;
    // By the system call: a set of the C library is sixteen times as long. It can't fail.
    // SAFETY: two sets of this length.
    unsafe {
        let (signals, before) = (&raw const signals, &raw mut before);
        syscall(libc::SYS_rt_sigprocmask, c_long::from(how), signals, before, size_of::<SignalSet>());
    }
    before
}

/// Runs `start`, which starts a thread, with all signals held back: the thread inherits that.
pub fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    let before = block(libc::SIG_BLOCK, !signal_set(&[32, 33]));
    let result = start();
    block(libc::SIG_SETMASK, before);
    result
}

/// The signals of the calling thread are held back. Those that come stay pending, and are let in by a sleep with [`HeldSignals::mask`],
/// or at the end. Not the signal of a cancellation: the C library's calls wait for it when they end.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct HeldSignals(SignalSet);

impl HeldSignals {
    /// Holds them back from here on.
    #[must_use]
    pub fn begin() -> Self {
        Self(block(libc::SIG_BLOCK, !(NEVER_HELD | CANCELS)))
    }

    /// Lets them in, with the mask that the program has. A handler may not return.
    pub fn end(self) {
        block(libc::SIG_SETMASK, self.0);
    }

    /// Whether the program itself blocks this signal.
    #[must_use]
    pub const fn program_blocks(self, signal: c_int) -> bool {
        self.0 & signal_set(&[signal]) != 0
    }

    /// The mask that the program has, for a call of the C library that sleeps with it: handlers run with it, as in any sleep of the
    /// program.
    #[must_use]
    pub fn mask(self) -> libc::sigset_t {
        // SAFETY: zeros are an empty set, whose first word is as the kernel has it.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            (&raw mut mask).cast::<SignalSet>().write(self.0);
            mask
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_signals_of_faults_and_of_the_c_library_are_held_back() {
        let own = signal_set(&[libc::SIGWINCH]);
        let before = block(libc::SIG_BLOCK, own);
        let held = HeldSignals::begin();
        let inside = block(libc::SIG_BLOCK, 0);
        held.end();
        let after = block(libc::SIG_SETMASK, before);
        // The kernel lets no thread block these two.
        let never = signal_set(&[libc::SIGKILL, libc::SIGSTOP]);
        assert_eq!(inside, before | !(NEVER_HELD | CANCELS | never));
        assert_eq!(after, before | own, "the program's mask comes back");
        assert!(held.program_blocks(libc::SIGWINCH) && !held.program_blocks(libc::SIGUSR1));
        let (mask, is_in) = (held.mask(), |mask: &libc::sigset_t, signal| {
            // SAFETY: a set that is filled, and the number of a signal.
            unsafe { libc::sigismember(&raw const *mask, signal) == 1 }
        });
        assert!(is_in(&mask, libc::SIGWINCH) && !is_in(&mask, libc::SIGUSR1));
    }
}
