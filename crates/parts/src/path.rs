//! Paths: what leads to a QP.

use ferroce_hostlink::Link;
use ferroce_os::sync::{Mutex, class};
use ferroce_os::{clock, sys};
use ferroce_proto::Pace;
use ferroce_types::{HostAddr, Instant, PacketMeta};
use ferroce_udp::{Dest, Endpoint};
use ferroce_wire::icrc::Flow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The flow of a packet, with what it follows from: saves the work that packets of one source have in common.
pub type LastFlow = Option<(SocketAddr, HostAddr, Flow)>;

/// How packets get to a QP: which fabric, and what it needs to know.
#[derive(Clone, Debug)]
pub enum Path {
    /// As RoCEv2 packets.
    Udp {
        /// The address and the socket by which packets leave.
        dest: Dest,
        /// The peer's socket, of which this QP may fill a part.
        socket: Arc<PeerSocket>,
        /// Of the last packet that has come alone from the peer.
        from: LastFlow,
    },
    /// To a QP of a process of this host, through memory that both processes have; of this process too.
    Shm {
        /// The fields of the network header that the packets would have on the wire.
        meta: PacketMeta,
        /// The memory.
        link: Arc<Link>,
    },
}

/// Both ends of an address vector, resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResolvedAv {
    /// This end.
    pub from: HostAddr,
    /// The other end.
    pub to: HostAddr,
    /// The traffic class.
    pub tos: u8,
    /// The hop limit.
    pub ttl: u8,
    /// IPv6: 20 bits.
    pub flow_label: u32,
}

impl ResolvedAv {
    /// The fields of the network header of packets on this route.
    #[inline]
    pub fn meta(&self, len: u16) -> PacketMeta {
        let ttl = if self.ttl == 0 { 64 } else { self.ttl };
        let Self { from, to, tos, flow_label, .. } = *self;
        PacketMeta { src: from.ip(), dst: to.ip(), tos, ttl, flow_label, len, source_port: 0 }
    }
}

/// The socket of a peer that several QPs send to: each may fill its part of it.
#[derive(Debug)]
pub struct PeerSocket {
    capacity: u32,
    /// The socket itself, when it is one of this host: every process has a duplicate, but for other users'.
    on_this_host: Option<(Arc<Endpoint>, u8)>,
    /// Bytes sent since the socket was last looked at.
    unchecked: AtomicU32,
    /// Since when it has been too full; 0: it isn't.
    full_since: AtomicU64,
    /// Of UC and UD, all QPs together.
    pub pace: Mutex<class::Pace, Pace>,
}

impl PeerSocket {
    /// The least that a QP gets, however many there are.
    const FLOOR: u32 = 16 * 1024;
    /// The most that a peer is trusted to hold.
    const CEILING: u32 = 1 << 20;

    /// Bytes after which the socket is looked at again.
    const CHECK: u32 = 32 * 1024;
    /// What the smallest packet counts for.
    const SMALLEST: u32 = 1024;
    /// How long a full socket is waited for: its owner may be stopped for good.
    const PATIENCE: Duration = Duration::from_millis(100);

    /// `receive_buffer`: bytes of a socket of this process. `on_this_host`: the socket, if this process has a duplicate.
    pub fn new(receive_buffer: u32, on_this_host: Option<(Arc<Endpoint>, u8)>) -> Self {
        Self {
            // The peer's socket is likely to be as large as ours; the kernel counts its own overhead in it as well.
            capacity: (receive_buffer / 2).min(Self::CEILING),
            on_this_host,
            unchecked: AtomicU32::new(0),
            full_since: AtomicU64::new(0),
            pace: Mutex::default(),
        }
    }

    /// Whether a packet that is neither acknowledged nor repeated may go now, or should wait until the peer has read its socket, for
    /// `PATIENCE` at most. Always true for another host, whose sockets can't be looked at.
    #[inline]
    pub fn has_room(&self, bytes: u32) -> bool {
        let Some((endpoint, steering)) = &self.on_this_host else { return true };
        let since = self.full_since.load(Ordering::Relaxed);
        let unchecked = self.unchecked.fetch_add(bytes.max(Self::SMALLEST), Ordering::Relaxed);
        if since == 0 && unchecked < Self::CHECK {
            return true;
        }
        self.unchecked.store(0, Ordering::Relaxed);
        let room = endpoint.fd(*steering).and_then(|fd| sys::queued_and_limit(fd).ok());
        let Some((queued, limit)) = room else { return true };
        if queued < limit / 2 {
            self.full_since.store(0, Ordering::Relaxed);
            return true;
        }
        let now = clock::now();
        if since == 0 {
            self.full_since.store(now.0, Ordering::Relaxed);
            return false;
        }
        now.since(Instant(since)) > Self::PATIENCE
    }

    /// The peer is a process of this network namespace.
    #[inline]
    pub fn is_on_this_host(&self) -> bool {
        self.on_this_host.is_some()
    }

    /// Bytes that one QP may have in flight.
    #[inline]
    pub fn window(self: &Arc<Self>) -> u32 {
        let paths = Arc::strong_count(self) as u32;
        (self.capacity / paths).max(Self::FLOOR)
    }
}
