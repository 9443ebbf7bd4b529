//! The events of an id that the program hasn't fetched.

use std::ffi::c_int;

use ferroce_connect::CmEvent;

use crate::group::Joined;

/// An event of an id.
pub(crate) enum IdNews {
    AddrResolved,
    AddrError(c_int),
    RouteResolved,
    /// An event of the communication manager.
    Cm(CmEvent),
    DeviceRemoval,
    AddrChange,
    Joined(Joined),
    AddrInfo(c_int),
    User {
        status: c_int,
        arg: u64,
    },
}
