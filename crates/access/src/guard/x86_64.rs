//! Guarded instructions of x86-64.

use super::Outcome;
use super::action::Action;
use ferroce_proto::AtomicOp;

// A row of the table is three distances from their own places: to the instruction, to its end, to where a fault goes on.
// The bytes of the restorer are those by which unwinders and debuggers know a signal's frame; it has no description of
// its own, and neither has the byte before it.
std::arch::global_asm!(
    ".macro ferroce_guarded instruction:vararg",
    "771: \\instruction",
    "772:",
    ".pushsection .rodata.ferroce_guarded, \"a\", @progbits",
    ".long 771b - ., 772b - ., ferroce_guarded_fault - .",
    ".popsection",
    ".endm",
    ".pushsection .rodata.ferroce_guarded, \"a\", @progbits",
    ".p2align 2",
    ".hidden ferroce_guarded_rows",
    ".globl ferroce_guarded_rows",
    "ferroce_guarded_rows:",
    ".popsection",
    ".pushsection .text.ferroce_guarded, \"ax\", @progbits",
    ".hidden ferroce_guarded_add",
    ".globl ferroce_guarded_add",
    ".type ferroce_guarded_add, @function",
    "ferroce_guarded_add:",
    ".cfi_startproc",
    "mov rax, rsi",
    "ferroce_guarded lock xadd qword ptr [rdi], rax",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    ".size ferroce_guarded_add, . - ferroce_guarded_add",
    ".hidden ferroce_guarded_swap",
    ".globl ferroce_guarded_swap",
    ".type ferroce_guarded_swap, @function",
    "ferroce_guarded_swap:",
    ".cfi_startproc",
    "mov rax, rsi",
    "ferroce_guarded lock cmpxchg qword ptr [rdi], rdx",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    ".size ferroce_guarded_swap, . - ferroce_guarded_swap",
    ".hidden ferroce_guarded_store",
    ".globl ferroce_guarded_store",
    ".type ferroce_guarded_store, @function",
    "ferroce_guarded_store:",
    ".cfi_startproc",
    "mov rax, rsi",
    "ferroce_guarded xchg qword ptr [rdi], rax",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    ".size ferroce_guarded_store, . - ferroce_guarded_store",
    "ferroce_guarded_fault:",
    ".cfi_startproc",
    "mov edx, 1",
    "ret",
    ".cfi_endproc",
    "nop",
    ".hidden ferroce_guarded_restore",
    ".globl ferroce_guarded_restore",
    ".type ferroce_guarded_restore, @function",
    "ferroce_guarded_restore:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05", // mov rax, SYS_rt_sigreturn; syscall
    ".size ferroce_guarded_restore, . - ferroce_guarded_restore",
    ".popsection",
    ".pushsection .rodata.ferroce_guarded, \"a\", @progbits",
    ".hidden ferroce_guarded_rows_end",
    ".globl ferroce_guarded_rows_end",
    "ferroce_guarded_rows_end:",
    ".popsection",
);

unsafe extern "C" {
    fn ferroce_guarded_add(word: u64, add: u64) -> Outcome;
    fn ferroce_guarded_swap(word: u64, compare: u64, swap: u64) -> Outcome;
    fn ferroce_guarded_store(word: u64, value: u64) -> Outcome;
    fn ferroce_guarded_restore();
    static ferroce_guarded_rows: [i32; 3];
    static ferroce_guarded_rows_end: [i32; 3];
}

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

/// Completes an action: the kernel wants to know the code that ends a handler.
pub(super) fn with_restorer(action: Action) -> Action {
    action.restored_by(ferroce_guarded_restore as *const () as usize)
}
