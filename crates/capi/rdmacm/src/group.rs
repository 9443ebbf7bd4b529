//! The multicast groups of an id.

use std::ffi::c_void;
use std::net::SocketAddr;

use ferroce_abi::verbs::{ibv_gid, ibv_qp};
use ferroce_ibverbs::calls;
use ferroce_netdev::LinkLayer;

/// The MLID that the group has, where ports have LIDs.
pub(crate) fn mlid_of(mgid: ibv_gid) -> u16 {
    match LinkLayer::current() {
        LinkLayer::Ethernet => 0,
        LinkLayer::InfiniBand => ferroce_netdev::mlid_of(mgid.bytes()),
    }
}

/// A group that an id is in, or is about to be.
pub(crate) struct CmGroup {
    pub(crate) number: u64,
    pub(crate) address: SocketAddr,
    pub(crate) mgid: ibv_gid,
    /// The queue pair that is attached to it.
    pub(crate) qp: Option<*mut ibv_qp>,
}

// SAFETY: a pointer to an object of the library, which any thread may use.
unsafe impl Send for CmGroup {}

impl CmGroup {
    /// Leaves it.
    pub(crate) fn leave(self) {
        if let Some(qp) = self.qp {
            // SAFETY: a queue pair, unless the program has destroyed it before it left; the call finds that out.
            unsafe { calls::ibv_detach_mcast(qp, &raw const self.mgid, mlid_of(self.mgid)) };
        }
    }
}

/// A group was joined: for the thread that fetches the event.
pub(crate) struct Joined {
    pub(crate) number: u64,
    pub(crate) mgid: ibv_gid,
    pub(crate) context: *mut c_void,
    pub(crate) is_send_only: bool,
    pub(crate) sgid_index: u8,
}

// SAFETY: the pointer is the program's, and is only given back to it.
unsafe impl Send for Joined {}
// SAFETY: as above.
unsafe impl Sync for Joined {}
