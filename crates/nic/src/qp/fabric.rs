//! Which fabric a QP uses: how it is chosen, how it is given up for UDP, and what other processes may find of the QP.

use super::{LockedQp, Path, Qp, QpAttr};
use crate::adapter::ThreadBuffers;
use crate::device::OfContext as _;
use ferroce_hostlink::{self, Link, ListedQp, PeerAccess};
use ferroce_network::is_of_this_host;
use ferroce_parts::{UnreadRecords, check, mask};
use ferroce_queues::QpCntrs;
use ferroce_types::{Instant, QpState, Result, invalid};
use ferroce_wire::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Path MTU between QPs of one host.
const LOCAL_MTU: u32 = ferroce_hostlink::MAX_PAYLOAD as u32;

/// Whether other processes find the QP in this one's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listing {
    No,
    Listed,
    /// Not any more, but one that found it before may still be using it.
    Withdrawn,
}

impl Listing {
    /// Takes the QP out of the directory without waiting for accesses in progress: it has failed by itself or uses another fabric, so
    /// nothing relies on their end.
    pub(super) fn withdraw(&mut self, qpn: u32) {
        if *self == Self::Listed {
            *self = Self::Withdrawn;
            ferroce_hostlink::withdraw_qp(qpn);
        }
    }
}

impl Qp {
    /// The path that IBV_QP_AV leads to, with its MTU in bytes.
    pub(super) fn new_path(&self, attr: &QpAttr, bits: u32) -> Result<Option<(Path, u32)>> {
        if bits & mask::AV == 0 || self.service == Service::Ud {
            return Ok(None);
        }
        let (from, old) = {
            let inner = self.lock_in_time()?;
            (inner.proto.state(), inner.attr)
        };
        // Wrong attributes are refused before another process is asked for the path.
        let to = check(self.rules(), from, attr, bits)?;
        if to == QpState::Reset || self.is_inherited() {
            return Ok(None);
        }
        let qpn = if bits & mask::DEST_QPN != 0 { attr.dest_qpn } else { old.dest_qpn };
        let mtu_code = if bits & mask::PATH_MTU != 0 { attr.path_mtu } else { old.path_mtu };
        let mtu = 128 << mtu_code;
        let path = self.adapter.path(&self.pd.context(), &attr.av, qpn)?;
        match path {
            Path::Shm { .. } => Ok(Some((path, LOCAL_MTU))),
            Path::Udp { .. } => {
                let active = self.adapter.path_mtu(&path, &self.pd.context());
                if mtu > active {
                    return invalid!("path_mtu {mtu} is above the {active} bytes that this path carries");
                }
                Ok(Some((path, mtu)))
            }
        }
    }

    /// Nothing is lost on the way.
    pub(super) fn is_lossless(path: &Path) -> bool {
        matches!(path, Path::Shm { .. })
    }

    /// It is connected to a queue pair of this host.
    pub(crate) fn has_peer_here(&self) -> bool {
        match &self.inner.lock().path {
            Some(Path::Shm { .. }) => true,
            Some(Path::Udp { socket, .. }) => socket.is_on_this_host(),
            None => false,
        }
    }

    /// The links by which packets for the QP may come: without a connection, all of the process.
    ///
    /// # Errors
    /// [`Error::Busy`] when a thread is held up in its work for the queue pair for so long.
    pub(crate) fn links_to_peer(&self, within: Duration) -> Result<Vec<Arc<Link>>> {
        let links = &self.adapter.links;
        Ok(match &self.lock_within(within)?.path {
            Some(Path::Shm { link, .. }) => links.to_same_process(link),
            Some(Path::Udp { .. }) => Vec::new(),
            None => links.snapshot().to_vec(),
        })
    }

    #[inline]
    pub(super) fn peer_uses_shm(&self) -> bool {
        self.peer_uses_shm.load(Ordering::Relaxed)
    }

    /// The peer, QP `peer`, shares memory with this process: it won't use a socket.
    pub(super) fn mark_peer_uses_shm(&self, link: &Link, peer: u32) {
        if !self.peer_uses_shm() {
            self.peer_uses_shm.store(true, Ordering::Relaxed);
            self.note_peer_connection(link.connection_of((self.qpn, peer)));
            self.adapter.listen(self.qpn, false, None);
        }
    }

    /// Returns the number of the peer's connection that was noted first since there is a path: `connection`, if none was.
    fn note_peer_connection(&self, connection: u64) -> u64 {
        match self.peer_connection.load(Ordering::Relaxed) {
            0 => {
                self.peer_connection.store(connection, Ordering::Relaxed);
                connection
            }
            known => known,
        }
    }

    /// The peer's QP still has the connection that was noted first. A QP that was reset may have connected to the same QP again; packets of
    /// the two connections differ by their PSNs, accesses to memory by this number.
    #[inline]
    pub(super) fn is_connected(&self, peer: &PeerAccess<'_>) -> bool {
        self.note_peer_connection(peer.connection()) == peer.connection()
    }

    /// The link that the QP would leave for UDP; `None` once something has come from the peer through shared memory.
    pub(super) fn unconfirmed_link<'a>(&self, inner: &'a LockedQp) -> Option<&'a Arc<Link>> {
        match &inner.path {
            Some(Path::Shm { link, .. }) if !self.peer_uses_shm() && !self.is_inherited() => Some(link),
            _ => None,
        }
    }

    /// Uses UDP from here on, as the peer does; unless something has come from it through shared memory.
    pub(crate) fn fall_back(self: &Arc<Self>, work: &mut ThreadBuffers, now: Instant) {
        let asked = {
            let inner = self.inner.lock();
            self.unconfirmed_link(&inner).map(|link| (link.clone(), inner.attr.av, inner.attr.dest_qpn))
        };
        let Some((link, av, peer)) = asked else { return };
        // Opening sockets and asking for routes takes a while, so the QP isn't locked.
        let context = self.pd.context();
        let found = self.adapter.route(&context, &av).and_then(|route| self.adapter.udp_path(&route, peer));
        let found = found.map(|path| (self.adapter.path_mtu(&path, &context), path));
        let mut inner = self.inner.lock();
        if !self.unconfirmed_link(&inner).is_some_and(|now| Arc::ptr_eq(now, &link)) {
            // It has been given another path meanwhile.
            return;
        }
        match found {
            Ok((mtu, path)) => self.use_udp(&mut inner, path, mtu),
            Err(error) => {
                tracing::warn!(qpn = self.qpn, %error, "no path over UDP either");
                inner.udp_failed = true;
            }
        }
        self.work_locked(&mut inner, work, now, |_, _| ());
    }

    fn use_udp(&self, inner: &mut LockedQp, path: Path, mtu: u32) {
        tracing::debug!(qpn = self.qpn, "the peer doesn't share memory with this process: going by UDP");
        inner.listing.withdraw(self.qpn);
        inner.unread = UnreadRecords::default();
        inner.waiting.clear();
        let mtu = (128 << inner.attr.path_mtu).min(mtu);
        inner.proto.change_fabric(mtu, Self::is_lossless(&path));
        self.adapter.listen(self.qpn, true, Some(&path));
        inner.path = Some(path);
        self.note_peer(inner);
    }

    /// Notes in the directory what the peer's process has to know of a QP that it doesn't reach through memory.
    fn note_peer(&self, inner: &LockedQp) {
        let Some(directory) = ferroce_hostlink::own_directory() else { return };
        let peer = inner.proto.params().dest_qpn;
        match &inner.path {
            // No process reaches memory through it; its peer sees whether it owes answers.
            Some(Path::Shm { .. }) if self.is_target() => directory.note_peer(self.qpn, peer, false),
            Some(Path::Udp { dest, .. }) if is_of_this_host(dest.peer()) => {
                directory.note_peer(self.qpn, peer, true);
            }
            _ => directory.note_no_udp(self.qpn),
        }
    }

    /// Lets the peer's process reach memory through this QP without this process, where that is possible.
    pub(super) fn list(&self, inner: &mut LockedQp) {
        let shared = self.is_reliable() && !self.is_target() && matches!(inner.path, Some(Path::Shm { .. }));
        let counted = self.observers.counters().is_some_and(QpCntrs::counts_remote);
        if inner.listing != Listing::Listed {
            self.note_peer(inner);
        }
        if !shared
            || counted
            || inner.listing == Listing::Listed
            || self.adapter.has_capture()
            || !matches!(inner.proto.state(), QpState::Rtr | QpState::Rts | QpState::Sqd)
        {
            return;
        }
        if let Some(directory) = ferroce_hostlink::own_directory() {
            let params = inner.proto.params();
            let mut access = params.access;
            access.remote_read &= params.max_dest_rd_atomic > 0;
            let (ends, connection, pd) = ((self.qpn, params.dest_qpn), inner.connection, self.pd.id());
            let owes = inner.proto.owes_answers();
            if directory.publish_qp(&ListedQp { ends, connection, pd, access, owes }) {
                inner.listing = Listing::Listed;
                inner.owes = owes;
            }
        }
    }

    /// Writes to the directory whether this QP `owes` its peer an answer, if what was `noted` last is something else. The peer's ACK timer
    /// stands still meanwhile.
    #[inline]
    pub(super) fn note_owing(&self, noted: &mut bool, owes: bool) {
        if *noted != owes
            && let Some(directory) = ferroce_hostlink::own_directory()
        {
            directory.note_owing(self.qpn, owes);
            *noted = owes;
        }
    }

    /// Lists it again after [`Qp::unlist`]. A queue pair whose lock isn't free in time is reached by packets instead.
    pub(super) fn list_again(&self) {
        if let Ok(mut inner) = self.lock_in_time() {
            self.list(&mut inner);
        }
    }

    /// Undoes [`Qp::list`]; when this returns, no other process accesses memory through the QP.
    ///
    /// # Errors
    /// [`Error::Busy`] when one is in the middle of an access and doesn't end it within a second, or a thread of this process is held up
    /// in its work for the queue pair.
    pub(super) fn unlist(&self) -> Result<()> {
        if self.lock_in_time()?.listing == Listing::No || self.is_inherited() {
            return Ok(());
        }
        let revoked = ferroce_hostlink::revoke_qp(self.qpn)?;
        match self.lock_in_time() {
            Ok(mut inner) => {
                inner.listing = Listing::No;
                Ok(())
            }
            Err(why) => {
                revoked.restore();
                Err(why)
            }
        }
    }

    /// Goes on when there is room in a link's ring, or, where packets may be lost, after a while. False when there is room
    /// already.
    pub(super) fn wait_for_room(self: &Arc<Self>, link: &Link, now: Instant) -> bool {
        let waits = link.wake_when_room(self.qpn);
        if waits && !self.is_reliable() {
            self.adapter.schedule(self, link.stuck_at(now));
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::super::Path;
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use ferroce_types::ip_of;
    use ferroce_wire::icrc::Flow;
    use ferroce_wire::{Bth, Headers, ICRC_LEN, Opcode, Operation, ROCE_V2_PORT, Service};
    use std::net::{IpAddr, UdpSocket};
    use std::time::Duration;

    /// An intact packet for a QP of this host, as any user of the host can send it.
    fn forge(ip: IpAddr, qpn: u32) {
        let IpAddr::V4(v4) = ip else { panic!("{ip}") };
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        let opcode = Opcode::new(Service::Rc, Operation::SendOnly).unwrap();
        let headers = Headers::new(Bth::new(opcode, qpn, 0x12_3456));
        let mut packet = vec![0; headers.len() + ICRC_LEN];
        let covered = headers.emit(&mut packet).unwrap();
        let flow = Flow::v4(v4, v4, socket.local_addr().unwrap().port(), ROCE_V2_PORT);
        let mut crc = flow.start(packet.len(), 0);
        crc.bth(&packet[..covered]);
        packet[covered..].copy_from_slice(&crc.finish());
        socket.send_to(&packet, (ip, ROCE_V2_PORT)).unwrap();
    }

    #[test]
    fn forged_packets_move_no_queue_pair_from_shared_memory_to_udp() {
        const NAME: &str = "qp::fabric::tests::forged_packets_move_no_queue_pair_from_shared_memory_to_udp";
        in_namespace(NAME, || {
            let context = open();
            let [side, peer] = [(); 2].map(|()| Side::new(&context, Service::Rc, 64));
            side.connect(peer.qp.qpn());
            peer.connect(side.qp.qpn());
            let ip = ip_of(side.qp.inner.lock().attr.av.dgid);
            for qp in [&side.qp, &peer.qp] {
                (0..10).for_each(|_| forge(ip, qp.qpn()));
                qp.adapter.take_what_has_come(qp, Duration::from_secs(5)).unwrap();
                assert!(matches!(qp.inner.lock().path, Some(Path::Shm { .. })));
            }
            // That of a peer that goes by UDP is followed.
            let directory = ferroce_hostlink::own_directory().unwrap();
            directory.note_peer(peer.qp.qpn(), side.qp.qpn(), true);
            forge(ip, side.qp.qpn());
            side.qp.adapter.take_what_has_come(&side.qp, Duration::from_secs(5)).unwrap();
            assert!(matches!(side.qp.inner.lock().path, Some(Path::Udp { .. })));
        });
    }
}
