//! The capture and the faults of this process.

use crate::flow::identification;
use crate::network::Network;
use ferroce_engine::Handler;
use ferroce_os::{
    clock,
    sync::{Mutex, class},
};
use ferroce_types::{Datagram, HostAddr, Instant, PacketMeta};
use ferroce_udp::{
    Dest, OutgoingTap, send_alone,
    tap::Direction,
    tap::capture::{Capture, IpUdpHeader},
    tap::fault::{FaultInjection, FaultQueue},
};
use ferroce_wire::{Headers, ROCE_V2_PORT};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The fields of a [`Datagram`] besides its bytes.
type Arrived = (SocketAddr, HostAddr, u8, Option<u8>, u32, bool, u16);

/// Both taps; it exists only while one of them is on.
pub struct Taps {
    /// The file that packets are written to.
    pub capture: Option<&'static Capture>,
    /// The queues of packets that faults delay.
    pub faults: Option<Faults>,
}

/// Packets that wait until a fault lets them go.
pub struct Faults {
    outgoing: Mutex<class::FaultsOut, FaultQueue<Dest>>,
    /// Of those that have come.
    pub incoming: Mutex<class::FaultsIn, FaultQueue<Arrived>>,
    /// When the next packet of either queue is due.
    pub next: AtomicU64,
}

impl Taps {
    /// The taps that the environment asks for.
    pub fn from_env() -> Option<&'static Self> {
        let capture = Capture::global();
        let faults = FaultInjection::global().map(|fault| Faults {
            outgoing: Mutex::new(fault.queue(Direction::Out)),
            incoming: Mutex::new(fault.queue(Direction::In)),
            next: AtomicU64::new(u64::MAX),
        });
        if capture.is_none() && faults.is_none() {
            return None;
        }
        Some(Box::leak(Box::new(Self { capture, faults })))
    }

    /// Packets may be lost: every QP has to use the `udp` fabric.
    #[inline]
    pub fn has_faults(&self) -> bool {
        self.faults.is_some()
    }

    /// There is a capture.
    #[inline]
    pub fn has_capture(&self) -> bool {
        self.capture.is_some()
    }

    /// When `run_taps` has something to do.
    #[inline]
    pub fn next(&self) -> u64 {
        self.faults.as_ref().map_or(u64::MAX, |f| f.next.load(Ordering::Acquire))
    }

    fn show(&self, dest: &Dest, id: u16, packet: &[u8]) {
        if let Some(capture) = self.capture {
            let src = dest.endpoint().address().with_port(dest.source_port());
            let dst = dest.peer().with_port(ROCE_V2_PORT);
            let (tos, ttl, flow_label) = (dest.tos(), dest.ttl(), dest.flow_label());
            let ip_udp = IpUdpHeader { src, dst, tos, ttl, flow_label, id };
            capture.packet(Direction::Out, &ip_udp, &[packet]);
        }
    }

    /// Captures packets.
    pub fn show_datagrams(&self, direction: Direction, datagrams: &[Datagram<'_>]) {
        if let Some(capture) = self.capture {
            for d in datagrams {
                let dst = d.destination.with_port(ROCE_V2_PORT);
                let id = identification(d).unwrap_or(d.segment);
                let (tos, ttl, flow_label) = (d.tos, d.ttl.unwrap_or(64), d.flow_label);
                let ip_udp = IpUdpHeader { src: d.source, dst, tos, ttl, flow_label, id };
                capture.packet(direction, &ip_udp, &[d.bytes]);
            }
        }
    }

    /// Sends what is due.
    pub fn run_outgoing(&self, faults: &Faults) {
        let now = clock::now();
        let mut queue = faults.outgoing.lock();
        while let Some((dest, mut packet)) = queue.pop_due(now.0) {
            self.show(&dest, 0, &packet);
            send_alone(&dest, &mut packet);
        }
        faults.next.fetch_min(queue.next_due().unwrap_or(u64::MAX), Ordering::AcqRel);
    }
}

impl OutgoingTap for Taps {
    fn outgoing(&self, dest: &Dest, id: u16, packet: &mut [u8]) -> bool {
        let Some(faults) = &self.faults else {
            self.show(dest, id, packet);
            return true;
        };
        dest.write_icrc(packet, 0);
        faults.outgoing.lock().push(clock::now().0, dest.clone(), packet);
        false
    }

    fn flushed(&self) {
        if let Some(faults) = &self.faults {
            self.run_outgoing(faults);
        }
    }
}

impl<H: Handler> Network<H> {
    /// Wakes the background thread for the next packet that faults hold back, if it would sleep past the time of that packet.
    pub fn wake_for_taps(&self) {
        if let Some(taps) = self.taps.filter(|taps| taps.next() != u64::MAX) {
            self.engine.wake_for(Instant(taps.next()));
        }
    }

    /// Shows a packet that has come from, or goes to, a process of this host through shared memory.
    pub fn show_message(&self, direction: Direction, headers: &Headers, payload: &[u8], meta: &PacketMeta) {
        if let Some(capture) = self.taps.and_then(|taps| taps.capture) {
            let src = SocketAddr::new(meta.src, ROCE_V2_PORT);
            let PacketMeta { tos, ttl, flow_label, .. } = *meta;
            let ip_udp = IpUdpHeader { tos, ttl, flow_label, ..IpUdpHeader::plain(src, meta.dst) };
            capture.message(direction, &ip_udp, headers, payload, payload.len());
        }
    }

    /// Shows datagrams that go to another process of this host, or to this one, to the capture.
    pub fn show_sent(&self, datagrams: &[Datagram<'_>]) {
        if let Some(taps) = self.taps {
            taps.show_datagrams(Direction::Out, datagrams);
        }
    }

    /// Packets are captured, so requests don't take the ways that build no packets.
    pub fn has_capture(&self) -> bool {
        self.taps.is_some_and(Taps::has_capture)
    }
}
