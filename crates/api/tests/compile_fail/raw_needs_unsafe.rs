//! E0133: memory that is named by its address is the caller's responsibility.
use ferroce::RawMemory;
use std::ptr::NonNull;

pub fn f(start: NonNull<u8>) -> Option<RawMemory<()>> {
    let _ = start;
    return Some(RawMemory::new(start, 64, ())); // WRONG
    #[allow(unreachable_code)]
    None
}
