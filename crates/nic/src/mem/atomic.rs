//! Remote atomics: CPU instructions on the program's memory that fail instead of ending the program when the memory is
//! gone.
//!
//! The kernel is asked first whether the word can be written. The program may unmap it in the moment between; the fault
//! of exactly these instructions is then caught, and every other fault goes to whoever had the signal before.

use super::copy::{self, Fault};
use ferroce_proto::AtomicOp;

/// Carries out an atomic on the aligned word at `addr`, and returns what it was before.
///
/// # Errors
/// [`Fault`] when the word can't be written.
pub(crate) fn execute(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    copy::probe_writable(addr)?;
    guarded::execute(addr, op)
}

#[cfg(target_arch = "x86_64")]
mod guarded {
    use super::{AtomicOp, Fault};
    use std::mem::MaybeUninit;
    use std::sync::Once;
    use std::sync::atomic::{AtomicPtr, Ordering};

    std::arch::global_asm!(
        ".pushsection .text.ferroce_guarded, \"ax\", @progbits",
        ".hidden ferroce_guarded_add",
        ".globl ferroce_guarded_add",
        "ferroce_guarded_add:",
        "mov rax, rsi",
        ".hidden ferroce_guarded_begin",
        ".globl ferroce_guarded_begin",
        "ferroce_guarded_begin:",
        "lock xadd qword ptr [rdi], rax",
        "xor edx, edx",
        "ret",
        ".hidden ferroce_guarded_swap",
        ".globl ferroce_guarded_swap",
        "ferroce_guarded_swap:",
        "mov rax, rsi",
        "lock cmpxchg qword ptr [rdi], rdx",
        "xor edx, edx",
        "ret",
        ".hidden ferroce_guarded_store",
        ".globl ferroce_guarded_store",
        "ferroce_guarded_store:",
        "mov rax, rsi",
        "xchg qword ptr [rdi], rax",
        "xor edx, edx",
        "ret",
        ".hidden ferroce_guarded_fault",
        ".globl ferroce_guarded_fault",
        "ferroce_guarded_fault:",
        "mov edx, 1",
        "ret",
        ".popsection",
    );

    /// What the routines leave in RAX and RDX.
    #[repr(C)]
    struct Outcome {
        before: u64,
        faulted: u64,
    }

    unsafe extern "C" {
        fn ferroce_guarded_add(word: u64, add: u64) -> Outcome;
        fn ferroce_guarded_swap(word: u64, compare: u64, swap: u64) -> Outcome;
        fn ferroce_guarded_store(word: u64, value: u64) -> Outcome;
        static ferroce_guarded_begin: u8;
        static ferroce_guarded_fault: u8;
    }

    pub(super) fn execute(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
        install();
        // SAFETY: the transport has checked alignment, key and range; where the page is gone, `on_fault` ends the routine.
        // The program shares the word with the adapter through atomics only, as with any adapter.
        let Outcome { before, faulted } = unsafe {
            match op {
                AtomicOp::FetchAdd { add } => ferroce_guarded_add(addr, add),
                AtomicOp::CompareSwap { compare, swap } => ferroce_guarded_swap(addr, compare, swap),
                AtomicOp::Store { value } => ferroce_guarded_store(addr, value),
            }
        };
        if faulted == 0 { Ok(before) } else { Err(Fault) }
    }

    /// Whoever had the signals before: SIGSEGV's, then SIGBUS's.
    static BEFORE: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];
    const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

    /// Takes the signals, once, at the first atomic.
    fn install() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
                let mut old = MaybeUninit::<libc::sigaction>::zeroed();
                // SAFETY: plain data; the handler does what a handler may.
                unsafe {
                    if libc::sigaction(signal, std::ptr::null(), old.as_mut_ptr()) != 0 {
                        continue;
                    }
                    before.store(Box::into_raw(Box::new(old.assume_init())), Ordering::Release);
                    let mut new: libc::sigaction = std::mem::zeroed();
                    new.sa_sigaction = on_fault as extern "C" fn(_, _, _) as usize;
                    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                    libc::sigaction(signal, &raw const new, std::ptr::null_mut());
                }
            }
        });
    }

    extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        const RIP: usize = libc::REG_RIP as usize;
        // SAFETY: the kernel hands a handler with SA_SIGINFO the context of the interrupted thread; only the addresses of
        // the routines are taken.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            let (begin, fault) =
                (&raw const ferroce_guarded_begin as i64, &raw const ferroce_guarded_fault as i64);
            if (begin..fault).contains(&registers[RIP]) {
                registers[RIP] = fault;
                return;
            }
            pass_on(signal, info, context);
        }
    }

    /// Does what would have been done without us.
    ///
    /// # Safety
    /// The arguments are those of the handler.
    unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let before = BEFORE[usize::from(signal != SIGNALS[0])].load(Ordering::Acquire);
        // SAFETY: null, or leaked by `install`; a handler found there is what the program has installed for this signal.
        unsafe {
            let Some(before) = before.as_ref() else { return };
            match before.sa_sigaction {
                // The instruction faults again, and then the kernel does its part.
                libc::SIG_DFL | libc::SIG_IGN => {
                    libc::sigaction(signal, std::ptr::from_ref(before), std::ptr::null_mut());
                    if (*info).si_code <= 0 {
                        // Sent by a process: nothing faults again.
                        libc::raise(signal);
                    }
                }
                handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(handler);
                    handler(signal, info, context);
                }
                handler => {
                    let handler: extern "C" fn(i32) = std::mem::transmute(handler);
                    handler(signal);
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_fault_of_the_instruction_itself_is_an_error() {
            // Not probed first: as if the page had gone in between.
            let swap = AtomicOp::CompareSwap { compare: 1, swap: 2 };
            for op in [AtomicOp::FetchAdd { add: 1 }, swap, AtomicOp::Store { value: 1 }] {
                assert_eq!(execute(0x1000, op), Err(Fault));
            }
            let word = 5u64;
            assert_eq!(execute(&raw const word as u64, AtomicOp::FetchAdd { add: 3 }), Ok(5));
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod guarded {
    use super::{AtomicOp, Fault};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Memory that goes in the moment after it was probed brings a signal here.
    pub(super) fn execute(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
        // SAFETY: the transport has checked alignment, key and range; the page was there a moment ago. The program shares
        // the word with the adapter through atomics only, as with any adapter.
        let word = unsafe { AtomicU64::from_ptr(addr as *mut u64) };
        Ok(match op {
            AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
            AtomicOp::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|old| old),
            AtomicOp::Store { value } => word.swap(value, Ordering::SeqCst),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_on_memory_that_is_gone_are_errors() {
        let mut word = 5u64;
        assert_eq!(execute(&raw mut word as u64, AtomicOp::FetchAdd { add: 3 }), Ok(5));
        let swap = AtomicOp::CompareSwap { compare: 8, swap: 9 };
        assert_eq!(execute(&raw mut word as u64, swap), Ok(8));
        assert_eq!(word, 9);
        assert_eq!(execute(&raw mut word as u64, AtomicOp::Store { value: 7 }), Ok(9));
        assert_eq!(word, 7);
        assert_eq!(execute(0x1000, AtomicOp::FetchAdd { add: 3 }), Err(Fault));
    }
}
