//! Room for values that live as long as a call, kept for the next one: neither on the caller's stack, which may be small,
//! nor allocated again and again.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

/// The allocation of `values`, which it drops, as room for values of another lifetime.
pub fn reuse<T, U>(mut values: Vec<T>) -> Vec<U> {
    const { assert!(size_of::<T>() == size_of::<U>() && align_of::<T>() == align_of::<U>()) };
    values.clear();
    // The standard library collects in place what has the same layout.
    values.into_iter().map(|_| unreachable!("there are no values")).collect()
}

/// A value of zeros, made where it stays.
///
/// # Safety
/// All-zero bytes are a `T`.
pub unsafe fn zeroed<T>() -> Box<T> {
    let layout = Layout::new::<T>();
    const { assert!(size_of::<T>() > 0) };
    // SAFETY: the size isn't 0.
    let place = unsafe { alloc_zeroed(layout) };
    if place.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: just allocated as a box's would be, and zeros are a `T`, as the caller has promised.
    unsafe { Box::from_raw(place.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_kept() {
        let text = String::from("text");
        let mut words: Vec<&str> = Vec::with_capacity(64);
        words.push(&text);
        let place = words.as_ptr() as usize;
        let other: Vec<&'static str> = reuse(words);
        assert_eq!((other.len(), other.capacity(), other.as_ptr() as usize), (0, 64, place));
    }
}
