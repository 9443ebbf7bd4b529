//! Guarded instructions of AArch64: with the atomics of Armv8.1 (LSE) where the processor has them, with exclusive loads and
//! stores elsewhere.

use super::Outcome;
use super::action::Action;
use ferroce_proto::AtomicOp;

// A row of the table is three distances from their own places: to the instruction, to its end, to where a fault goes on.
std::arch::global_asm!(
    ".macro ferroce_guarded instruction:vararg",
    "771: \\instruction",
    "772:",
    ".pushsection .rodata.ferroce_guarded, \"a\", %progbits",
    ".long 771b - ., 772b - ., ferroce_guarded_fault - .",
    ".popsection",
    ".endm",
    ".macro ferroce_guarded_routine name",
    ".hidden \\name",
    ".globl \\name",
    ".type \\name, %function",
    "\\name:",
    ".cfi_startproc",
    ".endm",
    ".macro ferroce_guarded_return before",
    "mov x0, \\before",
    "mov x1, #0",
    "ret",
    ".cfi_endproc",
    ".endm",
    ".pushsection .rodata.ferroce_guarded, \"a\", %progbits",
    ".p2align 2",
    ".hidden ferroce_guarded_rows",
    ".globl ferroce_guarded_rows",
    "ferroce_guarded_rows:",
    ".popsection",
    ".pushsection .text.ferroce_guarded, \"ax\", %progbits",
    ".p2align 2",
    ".arch_extension lse",
    "ferroce_guarded_routine ferroce_guarded_add_lse",
    "ferroce_guarded ldaddal x1, x2, [x0]",
    "ferroce_guarded_return x2",
    "ferroce_guarded_routine ferroce_guarded_swap_lse",
    "ferroce_guarded casal x1, x2, [x0]",
    "ferroce_guarded_return x1",
    "ferroce_guarded_routine ferroce_guarded_store_lse",
    "ferroce_guarded swpal x1, x2, [x0]",
    "ferroce_guarded_return x2",
    ".arch_extension nolse",
    "ferroce_guarded_routine ferroce_guarded_add_exclusive",
    "773:",
    "ferroce_guarded ldaxr x2, [x0]",
    "add x3, x2, x1",
    "ferroce_guarded stlxr w4, x3, [x0]",
    "cbnz w4, 773b",
    "ferroce_guarded_return x2",
    "ferroce_guarded_routine ferroce_guarded_swap_exclusive",
    "773:",
    "ferroce_guarded ldaxr x3, [x0]",
    "cmp x3, x1",
    "b.ne 774f",
    "ferroce_guarded stlxr w4, x2, [x0]",
    "cbnz w4, 773b",
    "774:",
    "ferroce_guarded_return x3",
    "ferroce_guarded_routine ferroce_guarded_store_exclusive",
    "773:",
    "ferroce_guarded ldaxr x2, [x0]",
    "ferroce_guarded stlxr w4, x1, [x0]",
    "cbnz w4, 773b",
    "ferroce_guarded_return x2",
    "ferroce_guarded_fault:",
    ".cfi_startproc",
    "mov x1, #1",
    "ret",
    ".cfi_endproc",
    ".popsection",
    ".pushsection .rodata.ferroce_guarded, \"a\", %progbits",
    ".hidden ferroce_guarded_rows_end",
    ".globl ferroce_guarded_rows_end",
    "ferroce_guarded_rows_end:",
    ".popsection",
);

unsafe extern "C" {
    fn ferroce_guarded_add_lse(word: u64, add: u64) -> Outcome;
    fn ferroce_guarded_swap_lse(word: u64, compare: u64, swap: u64) -> Outcome;
    fn ferroce_guarded_store_lse(word: u64, value: u64) -> Outcome;
    fn ferroce_guarded_add_exclusive(word: u64, add: u64) -> Outcome;
    fn ferroce_guarded_swap_exclusive(word: u64, compare: u64, swap: u64) -> Outcome;
    fn ferroce_guarded_store_exclusive(word: u64, value: u64) -> Outcome;
    static ferroce_guarded_rows: [i32; 3];
    static ferroce_guarded_rows_end: [i32; 3];
}

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

/// Completes an action: the kernel brings its own code to end a handler.
pub(super) fn with_restorer(action: Action) -> Action {
    action
}
