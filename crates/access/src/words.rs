//! Structures of shared words, made known as such without `unsafe`.

use crate::SharedWords;
use std::sync::atomic::{AtomicU32, AtomicU64};

// SAFETY: an atomic of the standard library.
unsafe impl SharedWords for AtomicU32 {
    const LAYOUT: u64 = 4;
}
// SAFETY: as above.
unsafe impl SharedWords for AtomicU64 {
    const LAYOUT: u64 = 8;
}
// SAFETY: atomics alone, one after the other.
unsafe impl<T: SharedWords, const N: usize> SharedWords for [T; N] {
    const LAYOUT: u64 = layout(N, &[("", 0, T::LAYOUT)]);
}

/// [`SharedWords::LAYOUT`] of memory of `size` bytes, with the name, the place and the layout of each part (FNV-1a).
#[must_use]
pub const fn layout(size: usize, parts: &[(&str, usize, u64)]) -> u64 {
    const fn add(mut hash: u64, bytes: &[u8]) -> u64 {
        let mut at = 0;
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u64).wrapping_mul(0x100_0000_01b3);
            at += 1;
        }
        hash
    }
    let mut hash = add(0xcbf2_9ce4_8422_2325, &(size as u64).to_le_bytes());
    let mut part = 0;
    while part < parts.len() {
        let (name, place, layout) = parts[part];
        hash = add(add(hash, name.as_bytes()), &(place as u64).to_le_bytes());
        hash = add(hash, &layout.to_le_bytes());
        part += 1;
    }
    hash
}

/// The layout of a field.
#[doc(hidden)]
#[must_use]
pub const fn layout_of_field<S, T: SharedWords>(_: fn(&S) -> &T) -> u64 {
    T::LAYOUT
}

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
        unsafe impl $crate::SharedWords for $name {
            const LAYOUT: u64 = $crate::layout(
                ::std::mem::size_of::<$name>(),
                &[$((
                    stringify!($field),
                    ::std::mem::offset_of!($name, $field),
                    $crate::layout_of_field(|words: &$name| &words.$field),
                )),*],
            );
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_of_a_structure_is_another_layout() {
        /// Defines the structure, and returns its layout.
        macro_rules! layout_of {
            ($($field:ident: $type:ty),* $(; $($align:tt)*)?) => {{
                #[repr(C)]
                $(#[repr($($align)*)])?
                struct Words {
                    $($field: $type),*
                }
                shared_words!(Words { $($field),* });
                Words::LAYOUT
            }};
        }
        let layouts = [
            layout_of!(a: AtomicU64, b: AtomicU64),
            layout_of!(b: AtomicU64, a: AtomicU64),
            layout_of!(a: AtomicU64, b: AtomicU64, c: AtomicU64),
            layout_of!(a: AtomicU64, b: AtomicU32),
            layout_of!(a: AtomicU64, b: [AtomicU32; 2]),
            layout_of!(a: AtomicU64, b: [AtomicU64; 1]),
            layout_of!(a: AtomicU64, b: AtomicU64; align(64)),
        ];
        for (at, layout) in layouts.iter().enumerate() {
            assert!(!layouts[..at].contains(layout), "structure {at}");
        }
        assert_eq!(layout_of!(a: AtomicU64, b: AtomicU64), layouts[0]);
    }
}
