//! Guarded instructions: CPU instructions of ours on the program's memory whose faults are errors here and never
//! signals to the program.
//!
//! Each guarded instruction has a row in a table of the architecture: where it begins, where it ends, and where to go on
//! if it faults. Another guarded instruction is one more routine and row there ([`x86_64`] and [`aarch64`] alike).
//! A handler of SIGSEGV and SIGBUS looks a fault up in the table. Every other fault, and every such signal that a
//! process has sent, is the program's, and is passed on ([`handler`]).
//!
//! The kernel delivers a fault to the guard only while the guard stands in front of the program's handlers and the thread
//! doesn't block the signal (a blocked fault ends the process). Programs change both at any time, so a thread asks the
//! kernel for both. The answer is valid for a millisecond at most. The thread reads the processor's time stamp counter, and the
//! clock only when the counter has advanced enough: mostly, there is neither a system call nor a read of the clock. If a program
//! installs a handler or blocks the signals in that millisecond, the guard notices only afterwards. The thread asks by a system
//! call and not through the C library: sanitizers and preloaded libraries intercept `sigaction` and return the program's view.
//!
//! A thread that blocks the signals gets them unblocked for an atomic ([`FaultGuard`]). That costs more system calls than a copy
//! by the kernel, so such a thread has no guarded copies. A thread of the adapter's that makes more than one copy or atomic while it is
//! awake unblocks the signals of its own faults until it sleeps ([`OwnFaults`]).

mod action;
#[cfg(test)]
mod copy_tests;
mod handler;
mod own_faults;
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

pub use own_faults::OwnFaults;
use own_faults::{Opens, UnblockedFaults};

use crate::Fault;
use action::FAULTS;
use ferroce_os::per_thread::Zeroed;
use ferroce_os::{clock, per_thread};
use ferroce_types::AtomicOp;
use ferroce_wire::crc::extend;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// For how long an answer of the kernel's is good, in nanoseconds, when the clock is looked at: every half a millisecond at
/// least, by the ticks.
const GOOD_FOR: u64 = 500_000;
/// After how many copies by the kernel a thread looks whether it still blocks the signals.
const PATIENCE: u32 = 256;

/// [`copy_summed`] copies multiples of this.
pub(crate) const FOLDED: usize = 32;
/// [`copy_summed`] copies so many bytes at least.
pub(crate) const FEWEST_FOLDED: usize = 128;

/// A part of the version, which the assembler puts into names.
const fn number(digits: &str) -> u32 {
    match u32::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("a version's part is a number"),
    }
}

per_thread! { fn answer() -> CachedMask = "ferroce_guard_answer"; }

/// The kernel's last answer about handlers and this thread's mask.
struct CachedMask {
    /// When, by the clock.
    given: Cell<u64>,
    /// When the clock was last looked at, in ticks ([`arch::ticks`]).
    looked: Cell<u64>,
    /// The disarming ([`handler::disarmed`]) that it is good for.
    disarmed: Cell<u64>,
    mask: Cell<Mask>,
    /// Copies by the kernel until the thread is asked again.
    copies: Cell<u32>,
    opens: Opens,
}

// SAFETY: zero is valid for cells of numbers; for `mask` it is `Unknown`, and for `opens` a thread that may not unblock signals and
// hasn't.
unsafe impl Zeroed for CachedMask {}

/// A thread's mask, as far as the two signals go.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Mask {
    /// The kernel hasn't been asked.
    Unknown = 0,
    Open,
    Blocks,
}

impl CachedMask {
    /// The guard stands in front and the thread doesn't block the signals, as far as one can know without asking.
    #[inline]
    fn is_open(&self) -> bool {
        // SAFETY: the mask was open when this thread asked, less than a millisecond ago if the answer is good.
        self.mask.get() == Mask::Open && unsafe { self.is_good() }
    }

    /// The guard stands in front, as far as one can know without asking.
    ///
    /// # Safety
    /// The thread doesn't block the signals.
    #[inline]
    unsafe fn is_good(&self) -> bool {
        // SAFETY: the caller's.
        let Outcome { before: now, faulted } = unsafe { arch::ticks() };
        faulted == 0
            && self.disarmed.get() == handler::disarmed()
            && (now.wrapping_sub(self.looked.get()) < arch::half_millisecond() || self.is_young(now))
    }

    /// The answer is good by the clock, which isn't looked at again soon then.
    #[cold]
    fn is_young(&self, ticks: u64) -> bool {
        let young = clock::now().0.saturating_sub(self.given.get()) < GOOD_FOR;
        if young {
            self.looked.set(ticks);
        }
        young
    }

    /// Puts the guard in front, and notes the answer. False where the guard can't be had.
    ///
    /// # Safety
    /// The thread doesn't block the signals now; `mask` is how it is in general.
    unsafe fn arm(&self, mask: Mask) -> bool {
        let disarmed = handler::disarmed();
        if !handler::arm() {
            return false;
        }
        // SAFETY: the caller's.
        unsafe { self.note(disarmed, mask) };
        true
    }

    /// Notes that the guard stands in front, since the disarming `disarmed` at least.
    ///
    /// # Safety
    /// As [`Self::arm`].
    unsafe fn note(&self, disarmed: u64, mask: Mask) {
        // SAFETY: the caller's.
        let Outcome { before: looked, faulted } = unsafe { arch::ticks() };
        // Without ticks the answer is good for this once; a thread that may not read them may not read the clock either.
        let (given, mask) = if faulted == 0 { (clock::now().0, mask) } else { (0, Mask::Unknown) };
        self.given.set(given);
        self.looked.set(looked);
        self.disarmed.set(disarmed);
        self.mask.set(mask);
    }

    /// Asks the kernel whether the thread is open and the guard stands, unless the answer was lately that they aren't. A thread of the
    /// adapter's opens itself.
    #[cold]
    fn renew(&self) -> bool {
        if self.copies.get() > 0 {
            self.copies.set(self.copies.get() - 1);
            return false;
        }
        let disarmed = handler::disarmed();
        let is_open = if self.opens.may() {
            // In front first.
            handler::arm() && self.opens.open()
        } else {
            action::blocked().is_some_and(|blocked| blocked & FAULTS == 0) && handler::arm()
        };
        if is_open {
            // SAFETY: the mask is open.
            unsafe { self.note(disarmed, Mask::Open) };
        }
        let stands = is_open && self.mask.get() == Mask::Open;
        if !stands {
            self.mask.set(Mask::Unknown);
            self.copies.set(PATIENCE);
        }
        stands
    }
}

/// What a guarded routine leaves in its two result registers.
#[repr(C)]
struct Outcome {
    before: u64,
    faulted: u64,
}

/// A routine that copies bytes as [`copy`] does, 128 at least and a multiple of 32, by stores of 16 or 32 bytes, and that folds them into
/// 16 bytes with the same CRC-32, if the CRC begins with 0. What those 16 bytes are before is added to the first 16 bytes of the message.
type Fold = unsafe fn(to: u64, from: u64, len: usize, folded: &mut [u8; 16]) -> Outcome;

/// While this lives, the faults of guarded atomics of this thread are caught. The thread copies nothing meanwhile: a copy
/// would take the thread for one that doesn't block the signals.
pub(crate) struct FaultGuard {
    /// Of a thread that may have been closed.
    _opened: Option<UnblockedFaults>,
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

impl FaultGuard {
    /// Sees to it that a fault of this thread reaches the guard. `None`: it can't be had now (a seccomp profile refuses
    /// the system calls, or the thread blocks the signals and one is waiting for it). A guarded instruction that faults
    /// is a crash then, so the kernel must be asked about the memory first.
    pub(crate) fn hold() -> Option<Self> {
        if stands() {
            return Some(Self { _opened: None, _thread: PhantomData });
        }
        let held = UnblockedFaults::this_thread().filter(|opened| {
            let mask = if opened.blocks_nothing() { Mask::Open } else { Mask::Blocks };
            let answer = answer();
            // SAFETY: just unblocked.
            unsafe { answer.mask.get() == mask && answer.is_good() || answer.arm(mask) }
        });
        if held.is_none() {
            static SAID: AtomicBool = AtomicBool::new(false);
            if !SAID.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "faults of remote atomics can't be caught: the system calls rt_sigaction, rt_sigprocmask or \
                     rt_sigpending are refused, or this thread blocks SIGSEGV or SIGBUS while one is waiting for it. \
                     Memory that is unmapped in the very moment of an atomic brings the signal to the program"
                );
            }
        }
        held.map(|opened| Self { _opened: Some(opened), _thread: PhantomData })
    }

    /// Reads the byte at `addr`.
    ///
    /// # Errors
    /// [`Fault`] when it can't be read.
    pub(crate) fn touch(&self, addr: u64) -> Result<(), Fault> {
        let mut byte = 0u8;
        // SAFETY: the byte is this function's, and the guard is held.
        let Outcome { faulted, .. } = unsafe { arch::copy(&raw mut byte as u64, addr, 1) };
        if faulted == 0 { Ok(()) } else { Err(Fault) }
    }
}

/// Whether a fault of this thread reaches the guard as the thread is, with the signals that it blocks.
#[inline]
fn stands() -> bool {
    let answer = answer();
    answer.is_open() || answer.renew()
}

/// Copies `len` bytes, upwards: the last byte becomes visible last, and every aligned word of 8 bytes at `to` at once.
///
/// # Errors
/// [`Fault`] when the guard doesn't stand in front of this thread's faults, or when a byte of either side can't be accessed:
/// a part may have been copied.
///
/// # Safety
/// No reference to the bytes at `to` exists, nor one to bytes at `from` that could change.
#[inline]
pub(crate) unsafe fn copy(to: u64, from: u64, len: usize) -> Result<(), Fault> {
    if !stands() {
        return Err(Fault);
    }
    // SAFETY: as promised.
    let Outcome { faulted, .. } = unsafe { arch::copy(to, from, len) };
    if faulted == 0 { Ok(()) } else { Err(Fault) }
}

/// Copies as [`copy`] does and returns the CRC-32 of what `crc` is the CRC-32 of, followed by the bytes. Where both are multiples of 32,
/// `to` and `len`, every aligned word of 8 bytes becomes visible at once.
///
/// # Errors
/// As [`copy`]. Also where `len` isn't a multiple of [`FOLDED`] or is too short, and where the processor can't copy and sum up at once.
///
/// # Safety
/// As [`copy`].
pub(crate) unsafe fn copy_summed(to: u64, from: u64, len: usize, crc: u32) -> Result<u32, Fault> {
    let fold = arch::fold().filter(|_| len >= FEWEST_FOLDED && len.is_multiple_of(FOLDED) && stands());
    let fold = fold.ok_or(Fault)?;
    let mut folded = [0; 16];
    // CRC-32 begins with ones, and is inverted in the end.
    folded[..4].copy_from_slice(&(!crc).to_le_bytes());
    // SAFETY: as promised.
    let Outcome { faulted, .. } = unsafe { fold(to, from, len, &mut folded) };
    if faulted == 0 { Ok(extend(u32::MAX, &folded)) } else { Err(Fault) }
}

/// Unblocks the signals. Those that were blocked, or `None`.
fn unblock() -> Option<u64> {
    // What waits here would be delivered, to a program that doesn't want it in this thread.
    if action::pending()? & FAULTS != 0 {
        return None;
    }
    Some(action::unblock(FAULTS)? & FAULTS)
}

/// Carries out an atomic on a word, and returns what it was before.
///
/// # Errors
/// [`Fault`] when the word can't be written, if a [`FaultGuard`] is held; otherwise such a fault is the program's.
///
/// # Safety
/// `word` is 8-byte aligned, and nothing but atomics of the program and the adapter touches it if it exists.
pub(crate) unsafe fn execute(word: u64, op: AtomicOp) -> Result<u64, Fault> {
    // SAFETY: as promised.
    let Outcome { before, faulted } = unsafe { arch::execute(word, op) };
    if faulted == 0 { Ok(before) } else { Err(Fault) }
}
