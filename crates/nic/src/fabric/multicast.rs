//! The packets for multicast groups. Packets to groups always go over sockets, whatever the fabric is otherwise.

use crate::adapter::{Adapter, ThreadBuffers};
use crate::qp::RxPayload;
use ferroce_engine::Source;
use ferroce_network::verify;
use ferroce_os::{clock, sys};
use ferroce_types::{Datagram, HostAddr, Instant, PacketMeta};
use ferroce_udp::RecvOutcome;
use ferroce_wire::{Packet, Service};
use smallvec::SmallVec;
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
