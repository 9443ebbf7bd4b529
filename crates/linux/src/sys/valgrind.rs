//! Requests to valgrind's tools for threads, helgrind and drd: a few instructions that do nothing outside of valgrind.
//!
//! Packets are written into a program's memory by whichever thread or process has them, as an adapter does by DMA. The program gets
//! a completion for it, which for these tools doesn't order anything: each of the program's reads of received data would be
//! reported as a race.

/// As helgrind.h and drd.h of valgrind name them.
const HELGRIND_MAKE_UNTRACKED: usize = 0x4847_0127;
const DRD_START_SUPPRESSION: usize = 0x4452_0002;

/// Bytes of the largest range that is reported to them: helgrind goes through it line by line.
const LARGEST: u64 = 1 << 30;

/// Memory that is written without the program's own threads, and whose accesses helgrind and drd leave alone until it is freed.
pub fn leave_alone(addr: u64, length: u64) {
    if length > LARGEST {
        return;
    }
    for request in [HELGRIND_MAKE_UNTRACKED, DRD_START_SUPPRESSION] {
        ask(&[request, addr as usize, length as usize, 0, 0, 0]);
    }
}

/// A client request, as valgrind's manual describes it.
fn ask(request: &[usize; 6]) {
    // SAFETY: rotates a register by its width in all, which leaves it as it was, and exchanges another one with itself. valgrind, which
    // knows the sequence, reads the six words and puts an answer into a register that is ours.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0_usize => _,
            options(nostack),
        );
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        std::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") request.as_ptr(),
            inout("x3") 0_usize => _,
            options(nostack),
        );
    }
    #[cfg(miri)]
    let _ = request;
}
