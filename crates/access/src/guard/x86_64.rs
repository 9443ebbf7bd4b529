//! Guarded instructions of x86-64.

use super::action::Action;
use super::{Fold, Outcome, number};
use ferroce_os::versioned;
use ferroce_types::AtomicOp;
use ferroce_wire::crc::fold_by;

std::arch::global_asm!(
    include_str!("x86_64.s"),
    major = const number(env!("CARGO_PKG_VERSION_MAJOR")),
    minor = const number(env!("CARGO_PKG_VERSION_MINOR")),
    patch = const number(env!("CARGO_PKG_VERSION_PATCH")),
);

unsafe extern "C" {
    #[link_name = versioned!("ferroce_guarded_add")]
    fn ferroce_guarded_add(word: u64, add: u64) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_swap")]
    fn ferroce_guarded_swap(word: u64, compare: u64, swap: u64) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_store")]
    fn ferroce_guarded_store(word: u64, value: u64) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_ticks")]
    fn ferroce_guarded_ticks() -> Outcome;
    #[link_name = versioned!("ferroce_guarded_copy")]
    fn ferroce_guarded_copy(to: u64, from: u64, len: usize) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_copy_avx")]
    fn ferroce_guarded_copy_avx(to: u64, from: u64, len: usize) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_fold")]
    fn ferroce_guarded_fold(
        to: u64,
        from: u64,
        len: usize,
        folded: *mut [u8; 16],
        by: *const Factors,
    ) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_fold_avx")]
    fn ferroce_guarded_fold_avx(
        to: u64,
        from: u64,
        len: usize,
        folded: *mut [u8; 16],
        by: *const Factors,
    ) -> Outcome;
    #[link_name = versioned!("ferroce_guarded_restore")]
    fn ferroce_guarded_restore();
    #[link_name = versioned!("ferroce_guarded_rows")]
    static ferroce_guarded_rows: [i32; 3];
    #[link_name = versioned!("ferroce_guarded_rows_end")]
    static ferroce_guarded_rows_end: [i32; 3];
}

/// Half a millisecond at most in ticks: the time-stamp counters of processors have 1 to 5 GHz.
pub(super) fn half_millisecond() -> u64 {
    500_000
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
    /// From here on wider moves are worth the way to them.
    const WIDE: usize = 256;
    // SAFETY: as promised; the processor has the instructions.
    unsafe {
        if len >= WIDE && std::arch::is_x86_feature_detected!("avx") {
            ferroce_guarded_copy_avx(to, from, len)
        } else {
            ferroce_guarded_copy(to, from, len)
        }
    }
}

type Factors = [[u64; 2]; 4];

/// The factors that move bytes up by 1024, 512, 256 and 128 bits.
static FACTORS: Factors = [fold_by(1024), fold_by(512), fold_by(256), fold_by(128)];

/// The way to copy and to fold at once that this processor has.
#[inline]
pub(super) fn fold() -> Option<Fold> {
    use std::arch::is_x86_feature_detected as has;
    if has!("vpclmulqdq") && has!("avx2") {
        // SAFETY: as promised; the processor has the instructions.
        Some(|to, from, len, folded| unsafe {
            ferroce_guarded_fold_avx(to, from, len, folded, &raw const FACTORS)
        })
    } else if has!("pclmulqdq") {
        Some(fold_narrow)
    } else {
        None
    }
}

/// Copies and folds by 16 bytes.
///
/// # Safety
/// As promised to [`Fold`]; the processor has PCLMULQDQ.
unsafe fn fold_narrow(to: u64, from: u64, len: usize, folded: &mut [u8; 16]) -> Outcome {
    // SAFETY: the caller's.
    unsafe { ferroce_guarded_fold(to, from, len, folded, &raw const FACTORS) }
}

/// Each way to copy and to fold at once that this processor has.
#[cfg(test)]
pub(super) fn folds() -> Vec<Fold> {
    let narrow = std::arch::is_x86_feature_detected!("pclmulqdq").then_some(fold_narrow as Fold);
    fold().into_iter().chain(narrow).collect()
}

/// Each way to copy.
#[cfg(test)]
pub(super) const COPIES: [unsafe fn(u64, u64, usize) -> Outcome; 2] = [
    copy,
    // SAFETY: as promised.
    |to, from, len| unsafe { ferroce_guarded_copy(to, from, len) },
];

/// Carries out an atomic.
///
/// # Safety
/// As that of [`super::execute`].
pub(super) unsafe fn execute(word: u64, op: AtomicOp) -> Outcome {
    // SAFETY: as promised.
    unsafe {
        match op {
            AtomicOp::FetchAdd { add } => ferroce_guarded_add(word, add),
            AtomicOp::CompareSwap { compare, swap } => ferroce_guarded_swap(word, compare, swap),
            AtomicOp::Store { value } => ferroce_guarded_store(word, value),
        }
    }
}

/// The table of guarded instructions.
pub(super) fn rows() -> super::Rows {
    (&raw const ferroce_guarded_rows, &raw const ferroce_guarded_rows_end)
}

/// The instruction that a context goes on with.
pub(super) fn instruction(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

/// Lets a context go on elsewhere.
pub(super) fn set_instruction(context: &mut libc::ucontext_t, to: usize) {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = to as i64;
}

/// The stack pointer.
#[inline(always)]
pub(super) fn stack() -> usize {
    let stack;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack, preserves_flags)) };
    stack
}

/// Completes an action: the kernel wants to know the code that ends a handler.
pub(super) fn with_restorer(action: Action) -> Action {
    action.restored_by(ferroce_guarded_restore as *const () as usize)
}
