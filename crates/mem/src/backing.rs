//! Memory that a region's range isn't the address of.

use ferroce_access::Fault;
use std::fmt::Debug;

/// Memory that is reached by copies only: that of another process.
///
/// Atomics on such a region are refused, since a copy there and back isn't atomic.
pub trait Backing: Debug + Send + Sync {
    /// Runs `f` with the address of a copy of the `len` bytes at `addr`, and copies them back if `write` is true.
    /// `f` is called once at most; the region's gate is held.
    ///
    /// # Errors
    /// [`Fault`] when `f` returns it, or when the memory isn't there any more.
    fn accessed(
        &self,
        addr: u64,
        len: u64,
        write: bool,
        f: &mut dyn FnMut(u64) -> Result<(), Fault>,
    ) -> Result<(), Fault>;
}
