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
pub struct Multicast<Q> {
    /// Those that have a member.
    pub groups: RwLock<class::MulticastGroups, Vec<Arc<Group<Q>>>>,
    /// How many there are: threads that make progress skip the sockets of groups without a lock while this is 0.
    pub count: AtomicUsize,
    /// Reports which of their sockets are readable; made for the first group.
    pub epoll: OnceLock<EngineFd>,
    /// Held by a thread that attaches or detaches a QP.
    pub changing: Mutex<class::MulticastChanging, ()>,
}

/// A multicast group and its members of this process.
#[derive(Debug)]
pub struct Group<Q> {
    /// By which its packets come.
    pub socket: GroupSocket,
    /// Locked shared while packets are given to the members, exclusively to remove one: a QP that has been detached gets no more packets.
    pub members: RwLock<class::MulticastMembers, Vec<Arc<Q>>>,
}

impl<Q> Group<Q> {
    /// The QP is a member.
    pub fn has(&self, qp: &Arc<Q>) -> bool {
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
    /// The group with this address.
    pub fn find(&self, group: HostAddr) -> Option<Arc<Group<Q>>> {
        self.groups.read().iter().find(|g| g.socket.group() == group).cloned()
    }
}
