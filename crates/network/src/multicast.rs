//! The multicast groups of the process and their members. A group is an address and an interface.

use crate::network::Network;
use ferroce_engine::Handler;
use ferroce_os::sync::{Mutex, RwLock, class};
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::{Error, HostAddr, Result, invalid};
use ferroce_udp::GroupSocket;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Groups that a process may be in.
pub const MAX_GROUPS: u32 = 256;
/// QPs of a process that may be attached to one group.
pub const MAX_ATTACHED: u32 = 256;

/// The groups of the process.
#[derive(Debug)]
pub struct Multicast<Q: ?Sized> {
    /// Those that have a member.
    pub groups: RwLock<class::MulticastGroups, Vec<Arc<Group<Q>>>>,
    /// How many there are: threads that make progress skip the sockets of groups without a lock while this is 0.
    pub(crate) count: AtomicUsize,
    /// Reports which of their sockets are readable; made for the first group.
    pub epoll: OnceLock<EngineFd>,
    /// Held by a thread that attaches or detaches a QP.
    pub(crate) changing: Mutex<class::MulticastChanging, ()>,
}

/// A multicast group and its members of this process.
#[derive(Debug)]
pub struct Group<Q: ?Sized> {
    /// By which its packets come.
    pub socket: GroupSocket,
    /// Locked shared while packets are given to the members, exclusively to remove one: a QP that has been detached gets no more packets.
    pub members: RwLock<class::MulticastMembers, Vec<Arc<Q>>>,
}

impl<Q: ?Sized> Group<Q> {
    /// The QP is a member.
    pub fn has(&self, qp: &Arc<Q>) -> bool {
        self.members.read().iter().any(|member| Arc::ptr_eq(member, qp))
    }
}

impl<Q: ?Sized> Default for Multicast<Q> {
    fn default() -> Self {
        Self {
            groups: RwLock::default(),
            count: AtomicUsize::new(0),
            epoll: OnceLock::new(),
            changing: Mutex::default(),
        }
    }
}

impl<Q: ?Sized> Multicast<Q> {
    /// The group with this address.
    pub fn find(&self, group: HostAddr) -> Option<Arc<Group<Q>>> {
        self.groups.read().iter().find(|g| g.socket.group() == group).cloned()
    }
}

impl<H: Handler> Network<H> {
    /// Attaches a UD QP to a group; once is enough.
    ///
    /// # Errors
    /// ENOMEM beyond the limits; the system's error if the process can't join the group.
    pub fn attach(&self, qp: &Arc<H::Job>, address: HostAddr) -> Result<()> {
        let _changing = self.multicast.changing.lock();
        let group = match self.multicast.find(address) {
            Some(group) => group,
            None => self.join(address)?,
        };
        if group.has(qp) {
            return Ok(());
        }
        let mut members = group.members.write();
        if members.len() >= MAX_ATTACHED as usize {
            return Err(Error::NoMemory(format!("{MAX_ATTACHED} queue pairs are attached to {address}")));
        }
        members.push(qp.clone());
        Ok(())
    }

    /// Detaches a QP: no packet to the group is given to it any more when this returns. The last one leaves the group.
    ///
    /// # Errors
    /// EINVAL when it isn't attached.
    pub fn detach(&self, qp: &Arc<H::Job>, address: HostAddr) -> Result<()> {
        let _changing = self.multicast.changing.lock();
        let Some(group) = self.multicast.find(address).filter(|group| group.has(qp)) else {
            return invalid!("the queue pair isn't attached to {address}");
        };
        let mut members = group.members.write();
        members.retain(|member| !Arc::ptr_eq(member, qp));
        let last = members.is_empty();
        // The lock of the groups comes before that of members. `changing` keeps other threads from attaching a QP meanwhile.
        drop(members);
        if last {
            let mut groups = self.multicast.groups.write();
            groups.retain(|g| !Arc::ptr_eq(g, &group));
            self.multicast.count.store(groups.len(), Ordering::Release);
        }
        Ok(())
    }

    /// Is the QP attached to any group?
    pub fn is_attached(&self, qp: &Arc<H::Job>) -> bool {
        self.has_groups() && self.multicast.groups.read().iter().any(|group| group.has(qp))
    }

    fn join(&self, address: HostAddr) -> Result<Arc<Group<H::Job>>> {
        let Multicast { groups, count, epoll, .. } = &self.multicast;
        if count.load(Ordering::Relaxed) >= MAX_GROUPS as usize {
            return Err(Error::NoMemory(format!("the process is in {MAX_GROUPS} multicast groups")));
        }
        if epoll.get().is_none() {
            let new = sys::epoll_create().map_err(Error::os("epoll_create1"))?;
            self.engine.watch(new.raw()).map_err(refused)?;
            // The caller holds `changing`: no other thread has set it.
            let _ = epoll.set(new);
        }
        let socket = GroupSocket::join(address)?;
        if let Some(epoll) = epoll.get() {
            watch(epoll, socket.fd())?;
        }
        let group = Arc::new(Group { socket, members: RwLock::default() });
        let mut groups = groups.write();
        groups.push(group.clone());
        count.store(groups.len(), Ordering::Release);
        tracing::debug!(group = %address, "joined");
        Ok(group)
    }

    /// The process is in a group.
    #[inline]
    pub fn has_groups(&self) -> bool {
        self.multicast.count.load(Ordering::Acquire) > 0
    }
}

/// Readable when `fd` is.
fn watch(epoll: &EngineFd, fd: i32) -> Result<()> {
    sys::epoll_control(epoll.raw(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, fd as u64).map_err(refused)
}

fn refused(error: std::io::Error) -> Error {
    Error::os("epoll_ctl of a multicast socket")(error)
}
