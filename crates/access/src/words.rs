//! Structures of shared words, made known as such without `unsafe`.

use crate::SharedWords;
use std::sync::atomic::{AtomicU32, AtomicU64};

// SAFETY: an atomic of the standard library.
unsafe impl SharedWords for AtomicU32 {}
// SAFETY: as above.
unsafe impl SharedWords for AtomicU64 {}
// SAFETY: atomics alone, one after the other.
unsafe impl<T: SharedWords, const N: usize> SharedWords for [T; N] {}

/// Makes structures [`SharedWords`](crate::SharedWords). All their fields are named, and each is shared words: an
/// atomic, an array of shared words, or another such structure. The compiler refuses anything else.
///
/// ```
/// # use std::sync::atomic::AtomicU64;
/// #[repr(C)]
/// struct Header {
///     name: AtomicU64,
///     words: [AtomicU64; 4],
/// }
///
/// ferroce_access::shared_words!(Header { name, words });
/// ```
///
/// ```compile_fail
/// # use std::sync::atomic::AtomicU64;
/// struct Header {
///     name: AtomicU64,
///     open: bool,
/// }
///
/// ferroce_access::shared_words!(Header { name, open });
/// ```
#[macro_export]
macro_rules! shared_words {
    ($($name:ident { $($field:tt),* $(,)? })*) => {$(
        const _: fn(&$name) = |$name { $($field: _),* }| {};
        // SAFETY: of nothing but shared words, which the bounds ask of each field that there is.
        unsafe impl $crate::SharedWords for $name {}
        const _: fn(&$name) = |words| {
            fn is_shared_words<T: $crate::SharedWords>(_: &T) {}
            $(is_shared_words(&words.$field);)*
        };
    )*};
}
