//! What a signal does, and which are blocked: the kernel's own words, by system call.

use super::arch;

/// The signals of faults.
pub(super) const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// The same as a mask of the kernel's.
pub(super) const FAULTS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS);

/// The size of the kernel's signal sets.
const SET: usize = size_of::<u64>();

/// A signal's bit in the kernel's masks.
pub(super) const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// What happens on a signal (`struct sigaction` of the kernel).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Action {
    pub(super) handler: usize,
    pub(super) flags: u64,
    restorer: usize,
    mask: u64,
}

impl Action {
    /// The same circumstances (mask, stack, restarted calls) with a handler of ours, which stays when it has run.
    pub(super) fn with_guard(self, handler: usize) -> Self {
        let kept = if self.is_handler() {
            self.flags & !(libc::SA_RESETHAND as u64)
        } else {
            // No handler sees a call that was interrupted, and a thread may have overrun its stack.
            (libc::SA_RESTART | libc::SA_ONSTACK) as u64
        };
        let action = Self { handler, flags: kept | libc::SA_SIGINFO as u64, ..self };
        arch::with_restorer(action)
    }

    pub(super) fn is_handler(&self) -> bool {
        !matches!(self.handler, libc::SIG_DFL | libc::SIG_IGN)
    }

    /// The same with the address of the code that ends a handler, where the kernel wants one.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn restored_by(self, restorer: usize) -> Self {
        const SA_RESTORER: u64 = 0x0400_0000;
        Self { flags: self.flags | SA_RESTORER, restorer, ..self }
    }
}

/// The action of a signal.
pub(super) fn query(signal: i32) -> Option<Action> {
    let mut action = Action::default();
    // SAFETY: the kernel fills the structure in.
    (unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, 0usize, &raw mut action, SET) } == 0)
        .then_some(action)
}

/// Sets the action of a signal, and returns the one that it had.
///
/// # Safety
/// The handler does what a handler may.
pub(super) unsafe fn exchange(signal: i32, action: Action) -> Option<Action> {
    let mut old = Action::default();
    // SAFETY: the kernel reads one structure and fills the other in.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, &raw const action, &raw mut old, SET) };
    (result == 0).then_some(old)
}

/// The signals that this thread blocks.
pub(super) fn blocked() -> Option<u64> {
    mask(libc::SIG_BLOCK, 0)
}

/// Unblocks signals in this thread, and returns the mask before.
pub(super) fn unblock(signals: u64) -> Option<u64> {
    mask(libc::SIG_UNBLOCK, signals)
}

/// Blocks signals in this thread.
pub(super) fn block(signals: u64) {
    mask(libc::SIG_BLOCK, signals);
}

fn mask(how: i32, signals: u64) -> Option<u64> {
    let mut old = 0u64;
    // SAFETY: the kernel reads one set and fills the other in.
    let result =
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const signals, &raw mut old, SET) };
    (result == 0).then_some(old)
}

/// The blocked signals that wait for this thread or for the process.
pub(super) fn pending() -> Option<u64> {
    let mut set = 0u64;
    // SAFETY: the kernel fills the set in.
    (unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut set, SET) } == 0).then_some(set)
}

/// Sends a signal to whichever thread of this process doesn't block it, with the description of the one that has come where
/// the kernel permits that.
///
/// # Safety
/// `info` is what the kernel has handed a handler.
pub(super) unsafe fn send_to_process(signal: i32, info: *const libc::siginfo_t) {
    // SAFETY: numbers, and a description that the kernel reads.
    unsafe {
        let pid = libc::syscall(libc::SYS_getpid);
        if libc::syscall(libc::SYS_rt_sigqueueinfo, pid, signal, info) != 0 {
            libc::syscall(libc::SYS_kill, pid, signal);
        }
    }
}

/// Sends a signal to this thread, with the description of the one that has come.
///
/// # Safety
/// `info` is what the kernel has handed a handler.
pub(super) unsafe fn send_again(signal: i32, info: *const libc::siginfo_t) {
    // SAFETY: as the caller's.
    let mut description = unsafe { info.as_ref() }.copied();
    if let Some(description) = &mut description {
        // The kernel takes no description with anything behind what it knows, as the guard's notes.
        // SAFETY: a description has 128 bytes, aligned to 8.
        let words: &mut [u64; 16] = unsafe { &mut *std::ptr::from_mut(description).cast() };
        words[8..].fill(0);
    }
    let info = description.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: numbers, and a description that the kernel reads.
    unsafe {
        let (pid, tid) = (libc::syscall(libc::SYS_getpid), libc::syscall(libc::SYS_gettid));
        if libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info) != 0 {
            libc::syscall(libc::SYS_tgkill, pid, tid, signal);
        }
    }
}
