//! Remote atomics: CPU instructions on the program's memory that fail instead of ending the program when the memory is
//! gone.

use crate::guard::{self, FaultGuard};
use crate::{Fault, copy};
use ferroce_types::AtomicOp;

/// Carries out an atomic on the aligned word at `addr`, and returns what it was before.
///
/// Where no guard can be had, the kernel is asked first whether the word can be written, so that little is lost: the
/// program may unmap the word in the moment between. [`copy::CopyMethod::Kernel`] has the kernel asked always, so that most bad
/// memory causes no fault at all (a debugger stops at each).
///
/// # Errors
/// [`Fault`] when the word can't be written.
pub fn execute(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    let guard = FaultGuard::hold();
    if guard.is_none() || copy::by_kernel() {
        copy::probe_writable(addr)?;
    }
    // SAFETY: the transport has checked alignment, key and range. The program shares the word with the adapter through
    // atomics only, as with any adapter.
    unsafe { guard::execute(addr, op) }
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
