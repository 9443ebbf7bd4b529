//! Memory as requests of the library name it.

use ferroce_abi::verbs::ibv_sge;
use ferroce_types::Sge;
use std::ffi::c_int;
use std::mem::offset_of;

const _: () = assert!(
    size_of::<Sge>() == size_of::<ibv_sge>()
        && align_of::<Sge>() == align_of::<ibv_sge>()
        && offset_of!(Sge, addr) == offset_of!(ibv_sge, addr)
        && offset_of!(Sge, length) == offset_of!(ibv_sge, length)
        && offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey)
);

/// The list of a request and its length. The library only reads it.
#[inline]
pub(crate) fn elements(sges: &[Sge]) -> (*mut ibv_sge, c_int) {
    (sges.as_ptr().cast::<ibv_sge>().cast_mut(), sges.len() as c_int)
}
