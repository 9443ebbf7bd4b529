//! Packets that come: whether they are this QP's, and what the transport gets of them.

use super::QpEnv;
use crate::qp::Path;
use crate::qp::offers::Offered;
use crate::qp::payload::RxPayload;
use ferroce_hostlink::{CompactRecord, Link, LinkPeer, Record};
use ferroce_parts::Ah;
use ferroce_proto::PlainSend;
use ferroce_types::{Datagram, Instant, PacketMeta};
use ferroce_wire::crc::extend;
use ferroce_wire::{Bth, Headers, Opcode, Operation, Service, ShortPacket};
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The shortest time between two congestion notifications of a QP.
const CNP_INTERVAL: Duration = Duration::from_micros(50);
/// Reserved bytes after a congestion notification's BTH.
const CNP_RESERVED: usize = 16;

/// Where a packet has come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PacketOrigin {
    /// A socket.
    Network,
    /// A process of this host.
    Process(LinkPeer),
}

impl QpEnv<'_> {
    /// Is a packet from `origin`, between these addresses, one that this QP receives?
    #[inline]
    pub(crate) fn accepts(&self, (src, dst): (IpAddr, IpAddr), origin: PacketOrigin) -> bool {
        let mirrors = |own: &PacketMeta| own.src == dst && own.dst == src;
        match (self.qp.service, self.path) {
            (Service::Ud, _) => true,
            (_, Some(Path::Shm { meta: own, link })) => {
                // Each of two processes may have made a link: what counts is the process.
                matches!(origin, PacketOrigin::Process(from) if from.is(&link.peer())) && mirrors(own)
            }
            (_, Some(Path::Udp { dest, .. })) => {
                origin == PacketOrigin::Network
                    && dest.peer().ip() == src
                    && dest.endpoint().address().ip() == dst
            }
            (_, None) => false,
        }
    }

    /// Does a packet from the network come from the peer, which is QP `peer`, though this QP reaches the peer through shared memory and no packet
    /// has come that way? Then one of the two processes couldn't share memory with the other. The peer's process has noted it by then: any
    /// user can send a packet from an address of the host.
    pub(crate) fn is_peer_on_udp(&self, (src, dst): (IpAddr, IpAddr), peer: u32) -> bool {
        let Some(Path::Shm { meta: own, link }) = self.path else { return false };
        !self.qp.peer_uses_shm()
            && own.src == dst
            && own.dst == src
            && link.peer_uses_udp((self.qp.qpn, peer))
    }

    /// Is a packet from shared memory one of the peer, which this QP can reach by UDP only?
    pub(crate) fn is_peer_on_shm(&self, meta: &PacketMeta) -> bool {
        let Some(Path::Udp { dest, .. }) = self.path else { return false };
        self.qp.service != Service::Ud
            && dest.peer().ip() == meta.src
            && dest.endpoint().address().ip() == meta.dst
    }

    /// The peer, which is QP `peer`, shares memory with this process.
    pub(crate) fn mark_peer_uses_shm(&self, peer: u32) {
        if let Some(Path::Shm { link, .. }) = self.path {
            self.qp.mark_peer_uses_shm(link, peer);
        }
    }

    /// Gives the transport a packet of the QP's connection, if it is one that this QP receives. A QP sends such packets after a packet of its
    /// peer has come through shared memory. So if this QP has another path now, they belong to an earlier connection.
    pub(crate) fn handle_compact(
        &mut self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        link: &Link,
        packet: &CompactRecord,
    ) {
        let is_connected = self.qp.service != Service::Ud
            && matches!(self.path, Some(Path::Shm { link: own, .. }) if link.peer().is(&own.peer()));
        if !is_connected {
            return;
        }
        let peer = proto.params().dest_qpn;
        self.mark_peer_uses_shm(peer);
        let (headers, is_lost) = (link.headers(packet), Cell::new(false));
        let payload = match link.offered(packet, peer) {
            Some(offered) => RxPayload::Offered(Offered::new(offered, &is_lost)),
            None => link.payload(packet).into(),
        };
        // It looks at its memory itself.
        if self.waiting.is_empty()
            && let Some(send) = PlainSend::of(&headers)
            && proto.take_plain(&send, &payload, self)
        {
            return;
        }
        if self.keeps_waiting(proto, &headers, &payload, None) {
            return;
        }
        proto.handle_packet(self.now, &headers, payload, self);
    }

    /// Gives the transport a packet with addresses, if it is one that this QP receives.
    pub(crate) fn handle_whole(
        &mut self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        link: &Link,
        packet: &Record,
    ) {
        let Record { headers, meta, .. } = packet;
        let (peer, now) = (proto.params().dest_qpn, self.now);
        if self.accepts((meta.src, meta.dst), PacketOrigin::Process(link.peer())) {
            self.mark_peer_uses_shm(peer);
            self.handle(proto, now, headers, link.payload_of_whole(packet).into(), meta);
            return;
        }
        if self.is_peer_on_shm(meta) {
            // The peer changes to UDP when any packet comes from this QP over UDP.
            self.notify_congestion(peer, now);
        }
        tracing::trace!(qpn = self.qp.qpn, ?meta, "packet refused");
    }

    /// Gives the transport a packet of its connection, if the packet is short and nothing about it is unusual. False:
    /// [`QpEnv::handle`] has to take it, and goes on where this has ended.
    #[inline]
    pub(crate) fn take_short(
        &mut self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        datagram: &Datagram<'_>,
    ) -> bool {
        if self.qp.service != Service::Rc || datagram.congestion_experienced() || !self.waiting.is_empty() {
            return false;
        }
        match ShortPacket::parse(datagram.bytes) {
            Some(ShortPacket::Send { bth, immediate, payload }) => {
                let send = PlainSend::new(&bth, immediate);
                proto.take_plain(&send, &RxPayload::of_packet(payload), self)
            }
            Some(ShortPacket::Acknowledge { bth }) => proto.take_acknowledgement(self.now, &bth, self),
            _ => false,
        }
    }

    /// Gives the transport one packet, when the memory is there that it needs.
    pub(crate) fn handle(
        &mut self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        now: Instant,
        headers: &Headers,
        payload: RxPayload<'_>,
        meta: &PacketMeta,
    ) {
        if !self.keeps_waiting(proto, headers, &payload, Some(meta)) {
            self.deliver(proto, now, headers, payload, meta);
        }
    }

    /// Gives the transport one packet.
    pub(in crate::qp) fn deliver(
        &mut self,
        proto: &mut ferroce_proto::QpProtocol<Arc<Ah>>,
        now: Instant,
        headers: &Headers,
        payload: RxPayload<'_>,
        meta: &PacketMeta,
    ) {
        let request = self.qp.is_target() && headers.bth.opcode.is_request();
        if request && self.defer(proto, headers, &payload, meta) {
            return self.ask_for_time(proto, headers.bth.psn);
        }
        self.meta = Some(*meta);
        if headers.bth.opcode.operation == Operation::ReadRequest {
            // It may be refused later, in the middle of its answer.
            self.note_whom_to_tell();
        }
        proto.handle_packet(now, headers, payload, self);
        self.meta = None;
        if request {
            self.ask_for_time(proto, headers.bth.psn);
        }
    }

    /// Answers a packet that was marked "congestion experienced" with a congestion notification (annex A17.9.3), but not
    /// more often than a sender can act on.
    pub(crate) fn notify_congestion(&mut self, dest_qp: u32, now: Instant) {
        let Some(Path::Udp { dest, .. }) = self.path else { return };
        let last = self.qp.last_cnp.load(Ordering::Relaxed);
        if last != 0 && now.since(Instant(last)) < CNP_INTERVAL {
            return;
        }
        self.qp.last_cnp.store(now.0, Ordering::Relaxed);
        let headers = Headers::new(Bth { becn: true, ..Bth::new(Opcode::CNP, dest_qp, 0) });
        let sent = self.work.batch.packet(dest, &headers, CNP_RESERVED, |buf, crc| {
            buf.fill(0);
            Ok::<u32, ()>(extend(crc, buf))
        });
        if let Err(error) = sent {
            tracing::warn!(qpn = self.qp.qpn, ?error, "a congestion notification can't be built");
        }
    }
}
