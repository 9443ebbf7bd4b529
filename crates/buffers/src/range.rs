//! Ranges within memory.

use std::ops::{Bound, RangeBounds};

/// The limits of a range within `len` bytes.
///
/// # Panics
/// The range isn't within them.
pub(crate) fn limits(range: &impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.checked_add(1).expect("a range within memory"),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.checked_add(1).expect("a range within memory"),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    assert!(start <= end && end <= len, "{start}..{end} of {len} bytes");
    (start, end)
}
