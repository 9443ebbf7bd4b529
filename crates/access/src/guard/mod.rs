//! Guarded instructions: CPU instructions of ours on the program's memory whose faults are errors here and never
//! signals to the program.
//!
//! Each guarded instruction has a row in a table of the architecture: where it begins, where it ends, and where to go on
//! if it faults. Another guarded instruction is one more routine and row there ([`x86_64`] and [`aarch64`] alike).
//! A handler of SIGSEGV and SIGBUS looks a fault up in the table. Every other fault, and every such signal that a
//! process has sent, is the program's: [`handler`] says how it is passed on.
//!
//! The kernel brings a fault to the guard only while the guard stands in front of the program's handlers and the thread
//! doesn't block the signal (a blocked fault ends the process). Programs change both at any time, so [`Guard::hold`]
//! asks the kernel for both. The answer is believed for [`LEASE`]; a program that installs a handler, or blocks the
//! signals, in that time goes unnoticed until its end. The kernel itself is asked, by system call and not through the C
//! library: sanitizers and preloaded libraries stand before `sigaction` and answer with what they would like to be true.

mod action;
mod handler;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

use crate::Fault;
use action::FAULTS;
use ferroce_os::clock;
use ferroce_proto::AtomicOp;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// For how long a thread believes what the kernel has said about handlers and the thread's mask, in nanoseconds.
const LEASE: u64 = 1_000_000;

/// What a guarded routine leaves in its two result registers.
#[repr(C)]
struct Outcome {
    before: u64,
    faulted: u64,
}

/// While this lives, the faults of guarded instructions of this thread are caught.
pub(crate) struct Guard {
    /// The signals that the thread blocks, and gets blocked again.
    blocked: u64,
    /// The mask is the thread's.
    _thread: PhantomData<*const ()>,
}

/// The first row of the table of guarded instructions and its end. A row is three distances from their own places: to the
/// instruction, to its end, to where a fault goes on.
type Rows = (*const [i32; 3], *const [i32; 3]);

/// Where a fault of the instruction at an address goes on, if that is a guarded one.
fn recovery(instruction: usize) -> Option<usize> {
    let (first, end) = arch::rows();
    // SAFETY: the table lies between its two labels.
    let rows = unsafe { std::slice::from_raw_parts(first, end.offset_from_unsigned(first)) };
    let place = |distance: &i32| (&raw const *distance as usize).wrapping_add_signed(*distance as isize);
    let row = rows.iter().find(|[begin, end, _]| (place(begin)..place(end)).contains(&instruction))?;
    Some(place(&row[2]))
}

impl Guard {
    /// Sees to it that a fault of this thread reaches the guard. `None`: it can't be had now (a seccomp profile refuses
    /// the system calls, or the thread blocks the signals and one is waiting for it). A guarded instruction that faults
    /// is a crash then, so the kernel must be asked about the memory first.
    pub(crate) fn hold() -> Option<Self> {
        thread_local! {
            /// The end of the lease, the disarming ([`handler::disarmed`]) that it is good for, and whether the thread blocks
            /// the signals.
            static TRUSTED: Cell<(u64, u64, bool)> = const { Cell::new((0, 0, false)) };
        }
        let now = clock::now().0;
        let disarmed = handler::disarmed();
        let (until, of, blocks) = TRUSTED.get();
        let leased = now < until && of == disarmed;
        if leased && !blocks {
            return Some(Self { blocked: 0, _thread: PhantomData });
        }
        // A thread of the adapter's own blocks them always: handlers are asked for once in a lease there too.
        let held = if leased || handler::arm() { unblock() } else { None };
        let Some(blocked) = held else {
            static SAID: AtomicBool = AtomicBool::new(false);
            if !SAID.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "faults of remote atomics can't be caught: the system calls rt_sigaction, rt_sigprocmask or \
                     rt_sigpending are refused, or this thread blocks SIGSEGV or SIGBUS while one is waiting for it. \
                     Memory that is unmapped in the very moment of an atomic brings the signal to the program"
                );
            }
            return None;
        };
        if !leased {
            TRUSTED.set((now + LEASE, disarmed, blocked != 0));
        }
        Some(Self { blocked, _thread: PhantomData })
    }
}

/// Unblocks the signals. Those that were blocked, or `None`.
fn unblock() -> Option<u64> {
    // What waits here would be delivered, to a program that doesn't want it in this thread.
    if action::pending()? & FAULTS != 0 {
        return None;
    }
    Some(action::unblock(FAULTS)? & FAULTS)
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.blocked != 0 {
            action::block(self.blocked);
        }
    }
}

/// Carries out an atomic on a word, and returns what it was before.
///
/// # Errors
/// [`Fault`] when the word can't be written, if a [`Guard`] is held; otherwise such a fault is the program's.
///
/// # Safety
/// `word` is 8-byte aligned, and nothing but atomics of the program and the adapter touches it if it exists.
pub(crate) unsafe fn execute(word: u64, op: AtomicOp) -> Result<u64, Fault> {
    // SAFETY: as promised.
    let Outcome { before, faulted } = unsafe { arch::execute(word, op) };
    if faulted == 0 { Ok(before) } else { Err(Fault) }
}
