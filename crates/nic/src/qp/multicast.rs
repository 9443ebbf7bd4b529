//! Attaching to multicast groups (ibv_attach_mcast(3)).

use super::Qp;
use crate::device::OfContext as _;
use ferroce_types::{Error, HostAddr, Result, invalid};
use ferroce_wire::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Qp {
    /// Attaches to the group `mgid`: what is sent there, by this QP too, is received by it from now on. The process joins
    /// the group on the device's interface. To be attached twice is to be attached.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a QP that isn't UD, or an MGID that is neither an IPv4 (`::ffff:224.0.0.0/100`, or that of IPoIB) nor an
    /// IPv6 multicast address; [`Error::NoMemory`] beyond the device's limits; the system's error when it can't join.
    pub fn attach_mcast(self: &Arc<Self>, mgid: [u8; 16]) -> Result<()> {
        let group = self.group(mgid)?;
        if self.is_inherited() {
            return Err(Error::Dead("the queue pair belongs to the process before the fork".into()));
        }
        self.adapter.attach(self, group)
    }

    /// Undoes [`Qp::attach_mcast`]: when this returns, the QP receives nothing more of the group.
    ///
    /// # Errors
    /// [`Error::Invalid`] likewise, and for a QP that isn't attached to that group.
    pub fn detach_mcast(self: &Arc<Self>, mgid: [u8; 16]) -> Result<()> {
        let group = self.group(mgid)?;
        if self.is_inherited() {
            // The child of a fork is in no group.
            return invalid!("the queue pair isn't attached to {group}");
        }
        self.adapter.detach(self, group)
    }

    /// From now on the QP doesn't receive what it has sent to a group itself (IBV_QP_CREATE_BLOCK_SELF_MCAST_LB).
    pub fn block_own_multicast(&self) {
        self.own_multicast_blocked.store(true, Ordering::Relaxed);
    }

    /// Does it block what a QP of this host with this number has sent?
    pub(crate) fn blocks_multicast_of(&self, src_qp: u32) -> bool {
        src_qp == self.qpn && self.own_multicast_blocked.load(Ordering::Relaxed)
    }

    /// A QP that is attached isn't destroyed.
    pub(super) fn check_detached(self: &Arc<Self>) -> Result<()> {
        if !self.is_inherited() && self.adapter.is_attached(self) {
            return Err(Error::Busy("the queue pair is attached to a multicast group".into()));
        }
        Ok(())
    }

    fn group(&self, mgid: [u8; 16]) -> Result<HostAddr> {
        if self.service != Service::Ud {
            return invalid!("{:?} queue pairs don't receive multicast, only UD ones do", self.service);
        }
        let group =
            HostAddr::new(ferroce_netdev::ip_of(mgid), self.pd.context().device().info().netdev.ifindex);
        if !group.is_group() {
            return invalid!("{group} isn't a multicast address");
        }
        Ok(group)
    }
}
