//! Exports whose feature this adapter doesn't have: each fails as its man page documents, with EOPNOTSUPP. Arguments are ignored, so
//! they aren't declared.

use libc::c_int;

use ferroce_entry::call::{self, Refusal};

fn refusal() -> Refusal {
    Refusal::unsupported("not supported by this adapter")
}

macro_rules! unsupported {
    (errno: $($name:ident)*) => {$(
        #[unsafe(export_name = concat!("ferroce_c_", stringify!($name)))]
        extern "C" fn $name() -> c_int {
            call::errno_value(stringify!($name), || Err(refusal()))
        }
    )*};
}

unsupported!(errno: ibv_resolve_eth_l2_from_gid);

// What vendor libraries ask of libibverbs when they drive a kernel device. They are loaded because programs link them;
// without a device of theirs none of this is called, but the loader wants the names.

/// A command that failed: returns the errno value.
#[unsafe(export_name = "ferroce_c_private_errno")]
extern "C" fn private_errno() -> c_int {
    call::errno_value("private function for vendor libraries", || Err(refusal()))
}

/// An object that couldn't be made.
#[unsafe(export_name = "ferroce_c_private_null")]
extern "C" fn private_null() -> *mut u8 {
    call::pointer("private function for vendor libraries", || Err(refusal()))
}

/// Accepted, without effect: a vendor library announces itself when it is loaded, and none of its devices is here.
#[unsafe(export_name = "ferroce_c_private_ignore")]
extern "C" fn private_ignore() {}

/// A count of nothing.
#[unsafe(export_name = "ferroce_c_private_zero")]
extern "C" fn private_zero() -> u32 {
    0
}

/// A number of bytes that couldn't be read.
#[unsafe(export_name = "ferroce_c_private_minus_one")]
extern "C" fn private_minus_one() -> c_int {
    call::minus_one("private function for vendor libraries", || Err(refusal()))
}
