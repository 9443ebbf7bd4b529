//! The multicast groups of the process and their members.

use ferroce_os::sync::{Mutex, RwLock, class};
use ferroce_os::sys::EngineFd;
use ferroce_types::HostAddr;
use ferroce_udp::GroupSocket;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

/// Groups that a process may be in.
pub const MAX_GROUPS: u32 = 256;
/// QPs of a process that may be attached to one group.
pub const MAX_ATTACHED: u32 = 256;

/// The groups of the process.
#[derive(Debug)]
pub(crate) struct Multicast<Q> {
    pub(crate) groups: RwLock<class::MulticastGroups, Vec<Arc<Group<Q>>>>,
    /// How many there are: threads that make progress skip the sockets of groups without a lock while this is 0.
    pub(crate) count: AtomicUsize,
    /// Reports which of their sockets are readable; made for the first group.
    pub(crate) epoll: OnceLock<EngineFd>,
    /// Held by a thread that attaches or detaches a QP.
    pub(crate) changing: Mutex<class::MulticastChanging, ()>,
}

#[derive(Debug)]
pub(crate) struct Group<Q> {
    pub(crate) socket: GroupSocket,
    /// Locked shared while packets are given to the members, exclusively to remove one: a QP that has been detached gets no more packets.
    pub(crate) members: RwLock<class::MulticastMembers, Vec<Arc<Q>>>,
}

impl<Q> Group<Q> {
    pub(crate) fn has(&self, qp: &Arc<Q>) -> bool {
        self.members.read().iter().any(|member| Arc::ptr_eq(member, qp))
    }
}

impl<Q> Default for Multicast<Q> {
    fn default() -> Self {
        Self {
            groups: RwLock::default(),
            count: AtomicUsize::new(0),
            epoll: OnceLock::new(),
            changing: Mutex::default(),
        }
    }
}

impl<Q> Multicast<Q> {
    pub(crate) fn find(&self, group: HostAddr) -> Option<Arc<Group<Q>>> {
        self.groups.read().iter().find(|g| g.socket.group() == group).cloned()
    }
}
