//! Multicast groups: which QPs of this process are attached to which, and the packets for them.
//!
//! A group is an address and an interface. Packets to groups always go over sockets, whatever the fabric is otherwise.

use crate::adapter::{Adapter, ThreadBuffers};
use crate::qp::{Qp, RxPayload};
use ferroce_engine::Source;
use ferroce_os::{
    clock,
    sync::RwLock,
    sys::{self, EngineFd},
};
use ferroce_parts::network::{Group, MAX_ATTACHED, MAX_GROUPS, Multicast, verify};
use ferroce_types::{Datagram, Error, HostAddr, Instant, PacketMeta, Result, invalid};
use ferroce_udp::{GroupSocket, RecvOutcome};
use ferroce_wire::{Packet, Service};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The destination QPN of packets to a group (IBTA 5.2.1.7 and C9-48).
const MULTICAST_QPN: u32 = 0xff_ffff;

/// The sockets of groups as a source.
pub(crate) struct GroupSource(pub(crate) &'static Adapter);

impl Source for GroupSource {
    #[inline]
    fn poll(&self, now: Instant) -> bool {
        self.0.has_groups() && self.0.read_groups(now)
    }

    #[inline]
    fn is_beyond_memory(&self) -> bool {
        self.0.has_groups()
    }

    fn poll_all(&self, now: Instant) {
        self.0.read_groups(now);
    }
}

impl Adapter {
    /// Attaches a UD QP to a group; once is enough.
    ///
    /// # Errors
    /// ENOMEM beyond the limits; the system's error if the process can't join the group.
    pub(crate) fn attach(&self, qp: &Arc<Qp>, address: HostAddr) -> Result<()> {
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
    pub(crate) fn detach(&self, qp: &Arc<Qp>, address: HostAddr) -> Result<()> {
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
    pub(crate) fn is_attached(&self, qp: &Arc<Qp>) -> bool {
        self.has_groups() && self.multicast.groups.read().iter().any(|group| group.has(qp))
    }

    fn join(&self, address: HostAddr) -> Result<Arc<Group<Qp>>> {
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

    #[inline]
    fn has_groups(&self) -> bool {
        self.multicast.count.load(Ordering::Acquire) > 0
    }

    /// Reads the sockets of groups.
    fn read_groups(&'static self, now: Instant) -> bool {
        let Some(epoll) = self.multicast.epoll.get() else { return false };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let ready = sys::epoll_wait(epoll.raw(), &mut events, Some(Duration::ZERO)).unwrap_or(0);
        let mut done = false;
        for event in &events[..ready] {
            let fd = event.u64 as i32;
            let Some(group) = self.multicast.groups.read().iter().find(|g| g.socket.fd() == fd).cloned()
            else {
                continue;
            };
            match group.socket.recv(self.engine.lately(), &mut |datagrams| self.arrived(datagrams, now)) {
                Ok(RecvOutcome::Busy) => {}
                Ok(received) => done |= received.count() > 0,
                Err(error) => tracing::debug!(%error, "reading a group's socket"),
            }
        }
        done
    }

    /// Gives packets to the QPs that are attached to their group, each its copy; to the sender too, if it is one of them and
    /// hasn't asked to be left out.
    #[inline(never)] // Its packets' headers take room on the stack that others don't need.
    pub(super) fn dispatch_to_group(
        &'static self,
        datagrams: &[Datagram<'_>],
        address: HostAddr,
        work: &mut ThreadBuffers,
        now: Instant,
    ) {
        let Some(group) = self.multicast.find(address) else { return };
        let mut flow = None;
        let packets: SmallVec<[(Packet<'_>, PacketMeta, HostAddr); 8]> = datagrams
            .iter()
            .filter(|d| d.dest_qpn() == MULTICAST_QPN && verify(&mut flow, d).is_some())
            .filter_map(|d| Some((Packet::parse(d.bytes).ok()?, d.meta(), d.source.into())))
            .filter(|(packet, ..)| packet.headers.bth.opcode.service == Service::Ud)
            .collect();
        if packets.is_empty() {
            return;
        }
        for qp in group.members.read().iter() {
            qp.work(work, clock::now(), |proto, env| {
                for (packet, meta, source) in &packets {
                    let own = packet.headers.deth.is_some_and(|deth| qp.blocks_multicast_of(deth.src_qp));
                    if own && self.is_local_address(*source) {
                        continue;
                    }
                    env.handle(proto, now, &packet.headers, RxPayload::of_packet(packet.payload), meta);
                }
            });
        }
    }
}

/// Readable when `fd` is.
fn watch(epoll: &EngineFd, fd: i32) -> Result<()> {
    sys::epoll_control(epoll.raw(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, fd as u64).map_err(refused)
}

fn refused(error: std::io::Error) -> Error {
    Error::os("epoll_ctl of a multicast socket")(error)
}
