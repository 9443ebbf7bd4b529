//! Guarded instructions of AArch64: with the atomics of Armv8.1 (LSE) where the processor has them, with exclusive loads and
//! stores elsewhere.

use super::action::Action;
use super::{Outcome, number};
use ferroce_os::versioned;
use ferroce_types::AtomicOp;

std::arch::global_asm!(
    include_str!("aarch64.s"),
    major = const number(env!("CARGO_PKG_VERSION_MAJOR")),
    minor = const number(env!("CARGO_PKG_VERSION_MINOR")),
    patch = const number(env!("CARGO_PKG_VERSION_PATCH")),
);

unsafe extern "C" {
    #[link_name = versioned!("ferroce_guarded_add_lse")]
    fn ferroce_guarded_add_lse(word: u64, add: u64) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_swap_lse")]
    fn ferroce_guarded_swap_lse(word: u64, compare: u64, swap: u64) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_store_lse")]
    fn ferroce_guarded_store_lse(word: u64, value: u64) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_add_exclusive")]
    fn ferroce_guarded_add_exclusive(word: u64, add: u64) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_swap_exclusive")]
    fn ferroce_guarded_swap_exclusive(word: u64, compare: u64, swap: u64) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_store_exclusive")]
    fn ferroce_guarded_store_exclusive(word: u64, value: u64) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_ticks")]
    fn ferroce_guarded_ticks() -> Outcome;
    #[link_name = versioned!("ferroce_guarded_copy")]
    fn ferroce_guarded_copy(to: u64, from: u64, len: usize) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_rows")]
    static ferroce_guarded_rows: [i32; 3];
    #[link_name = versioned!("ferroce_guarded_rows_end")]
    static ferroce_guarded_rows_end: [i32; 3];
}

/// Half a millisecond in ticks.
#[inline]
pub(super) fn half_millisecond() -> u64 {
    let frequency: u64;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack, pure)) };
    frequency / 2000
}

/// A count that goes on at a steady rate, also while the thread sleeps.
///
/// # Safety
/// As that of [`super::execute`].
#[inline]
pub(super) unsafe fn ticks() -> Outcome {
    // SAFETY: touches no memory.
    unsafe { ferroce_guarded_ticks() }
}

/// Copies bytes.
///
/// # Safety
/// As that of [`super::copy`].
#[inline]
pub(super) unsafe fn copy(to: u64, from: u64, len: usize) -> Outcome {
    // SAFETY: as promised.
    unsafe { ferroce_guarded_copy(to, from, len) }
}

/// There is no way to copy and to fold at once.
#[inline]
pub(super) fn fold() -> Option<super::Fold> {
    None
}

/// Each way to copy and to fold at once.
#[cfg(test)]
pub(super) fn folds() -> Vec<super::Fold> {
    Vec::new()
}

/// Each way to copy.
#[cfg(test)]
pub(super) const COPIES: [unsafe fn(u64, u64, usize) -> Outcome; 1] = [copy];

/// Carries out an atomic.
///
/// # Safety
/// As that of [`super::execute`].
pub(super) unsafe fn execute(word: u64, op: AtomicOp) -> Outcome {
    if std::arch::is_aarch64_feature_detected!("lse") {
        // SAFETY: as promised; the processor has these instructions.
        unsafe {
            match op {
                AtomicOp::FetchAdd { add } => ferroce_guarded_add_lse(word, add),
                AtomicOp::CompareSwap { compare, swap } => ferroce_guarded_swap_lse(word, compare, swap),
                AtomicOp::Store { value } => ferroce_guarded_store_lse(word, value),
            }
        }
    } else {
        // SAFETY: as promised.
        unsafe {
            match op {
                AtomicOp::FetchAdd { add } => ferroce_guarded_add_exclusive(word, add),
                AtomicOp::CompareSwap { compare, swap } => {
                    ferroce_guarded_swap_exclusive(word, compare, swap)
                }
                AtomicOp::Store { value } => ferroce_guarded_store_exclusive(word, value),
            }
        }
    }
}

/// The table of guarded instructions.
pub(super) fn rows() -> super::Rows {
    (&raw const ferroce_guarded_rows, &raw const ferroce_guarded_rows_end)
}

/// The instruction that a context goes on with.
pub(super) fn instruction(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}

/// Lets a context go on elsewhere.
pub(super) fn set_instruction(context: &mut libc::ucontext_t, to: usize) {
    context.uc_mcontext.pc = to as u64;
}

/// The stack pointer.
#[inline(always)]
pub(super) fn stack() -> usize {
    let stack;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mov {}, sp", out(reg) stack, options(nomem, nostack, preserves_flags)) };
    stack
}

/// Completes an action: the kernel brings its own code to end a handler.
pub(super) fn with_restorer(action: Action) -> Action {
    action
}
