//! Address handles (ibv_create_ah(3)) and the paths that addresses lead to.

use crate::adapter::Adapter;
use crate::device::OfContext as _;
use crate::fabric::PeerSocket;
use crate::qp::{AddressVector, check_av, limit_of};
use ferroce_hostlink::Link;
use ferroce_mem::Pd;
use ferroce_os::sync::{Mutex, class};
use ferroce_proto::{RateLimit, Throttle};
use ferroce_types::{HostAddr, Instant, PacketMeta, Quota, QuotaPlace, Result, slot_of};
use ferroce_udp::Dest;
use smallvec::SmallVec;
use std::sync::Arc;

/// How packets get to a QP: which fabric, and what it needs to know.
#[derive(Clone, Debug)]
pub(crate) enum Path {
    /// As RoCEv2 packets.
    Udp {
        dest: Dest,
        /// The peer's socket, of which this QP may fill a part.
        socket: Arc<PeerSocket>,
    },
    /// To a QP of a process of this host, through memory that both processes have; of this process too.
    Shm {
        /// The fields of the network header that the packets would have on the wire.
        meta: PacketMeta,
        link: Arc<Link>,
    },
}

/// What is known of the path to a QP.
pub(crate) enum PathLookup {
    Known(Path),
    /// It has to be found ([`Ah::find_path`]).
    Unknown,
    /// There is none.
    None,
}

/// Both ends of an address vector, resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResolvedAv {
    pub(crate) from: HostAddr,
    pub(crate) to: HostAddr,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// IPv6: 20 bits.
    pub(crate) flow_label: u32,
}

impl ResolvedAv {
    /// The fields of the network header of packets on this route.
    pub(crate) fn meta(&self, len: u16) -> PacketMeta {
        let ttl = if self.ttl == 0 { 64 } else { self.ttl };
        let Self { from, to, tos, flow_label, .. } = *self;
        PacketMeta { src: from.ip(), dst: to.ip(), tos, ttl, flow_label, len, of_no_adapter: false }
    }
}

/// Address handles that a process may have.
pub const MAX_AH: u32 = 1 << 20;
static HANDLES: Quota = Quota::new("address handles", MAX_AH);

/// A path to the QPs of one process.
#[derive(Debug)]
struct CachedPath {
    slot: u16,
    /// The adapter's.
    generation: u32,
    /// `None`: none could be made.
    path: Option<Path>,
}

impl CachedPath {
    fn is_of(&self, slot: u16, generation: u32) -> bool {
        (self.slot, self.generation) == (slot, generation)
    }

    fn is_dead(&self) -> bool {
        matches!(&self.path, Some(Path::Shm { link, .. }) if link.is_dead())
    }
}

/// An address handle: where UD packets go.
#[derive(Debug)]
pub struct Ah {
    pd: Arc<Pd>,
    av: AddressVector,
    route: ResolvedAv,
    /// What may go there, and what has gone.
    limit: Option<RateLimit>,
    throttle: Mutex<class::Throttle, Throttle>,
    /// The paths that were found last, oldest first. Most handles lead to one process.
    found: Mutex<class::AhPath, SmallVec<[CachedPath; 1]>>,
    _held: QuotaPlace,
}

impl Ah {
    /// Processes of one host to which paths are known at a time.
    const PATHS: usize = 32;

    /// Resolves an address vector.
    ///
    /// # Errors
    /// EINVAL without a GRH unless ports are InfiniBand, for a LID of no host, for a source GID that doesn't exist, or for addresses of
    /// different families; ENOMEM when there are `MAX_AH` handles.
    pub fn create(pd: &Arc<Pd>, av: AddressVector) -> Result<Arc<Self>> {
        check_av(&av)?;
        let adapter = pd.context().adapter()?;
        let route = adapter.route(&pd.context(), &av)?;
        // An address without a path fails here, not at the first send.
        adapter.udp_path(&route, 0)?;
        let held = HANDLES.take()?;
        pd.hold();
        let (limit, throttle, found) = (limit_of(av.static_rate), Mutex::default(), Mutex::default());
        Ok(Arc::new(Self { pd: pd.clone(), av, route, limit, throttle, found, _held: held }))
    }

    /// The address vector it was made of.
    #[must_use]
    pub fn vector(&self) -> &AddressVector {
        &self.av
    }

    /// Its protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Ends the handle (ibv_destroy_ah(3)). Sends that were posted with it still go out.
    pub fn destroy(&self) {
        self.pd.release();
    }

    /// May something go there now, by the static rate?
    ///
    /// # Errors
    /// When to ask again.
    pub(crate) fn ask(&self, now: Instant) -> std::result::Result<(), Instant> {
        if self.limit.is_none() { Ok(()) } else { self.throttle.lock().ask(now, self.limit) }
    }

    /// A packet with this many bytes of payload has gone.
    pub(crate) fn sent(&self, now: Instant, bytes: usize) {
        if self.limit.is_some() {
            self.throttle.lock().sent(now, bytes as u32, 1, self.limit);
        }
    }

    /// The path to a QP at this address, if it is known. Asks no other process and opens no socket.
    pub(crate) fn path_to(&self, adapter: &'static Adapter, qpn: u32) -> PathLookup {
        let mut found = self.found.lock();
        let (slot, generation) = (slot_of(qpn), adapter.generation());
        let Some(at) = found.iter().position(|found| found.is_of(slot, generation)) else {
            return PathLookup::Unknown;
        };
        match &found[at].path {
            _ if found[at].is_dead() => PathLookup::Unknown,
            Some(path) => PathLookup::Known(path.clone()),
            None => {
                // For one packet: by the next there may be one.
                found.remove(at);
                PathLookup::None
            }
        }
    }

    /// Finds the path to a QP at this address for [`Ah::path_to`]. It may open sockets and wait a tenth of a second for another process, so
    /// the caller has no QP locked.
    pub(crate) fn find_path(&self, adapter: &'static Adapter, qpn: u32) {
        let shared = if self.route.to.is_group() { None } else { adapter.shm_path(&self.route, qpn) };
        let path = shared.or_else(|| {
            adapter
                .udp_path(&self.route, qpn)
                .inspect_err(|error| tracing::warn!(%error, "no path for an address handle"))
                .ok()
        });
        let (slot, generation) = (slot_of(qpn), adapter.generation());
        let mut found = self.found.lock();
        found.retain(|old| old.generation == generation && old.slot != slot && !old.is_dead());
        if found.len() == Self::PATHS {
            found.remove(0);
        }
        found.push(CachedPath { slot, generation, path });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use ferroce_wire::Service;

    #[test]
    fn datagrams_to_several_processes_take_turns_without_a_search() {
        const NAME: &str = "ah::tests::datagrams_to_several_processes_take_turns_without_a_search";
        in_namespace(NAME, || {
            let side = Side::new(&open(), Service::Ud, 64);
            let ah = Ah::create(&side.pd, side.av()).unwrap();
            let adapter = side.context.adapter().unwrap();
            // In slots that no process of this host has.
            let qpn = |process: u32| side.qp.qpn() ^ (process + 1) << 17;
            let is_known = |process| matches!(ah.path_to(adapter, qpn(process)), PathLookup::Known(_));
            let many = Ah::PATHS as u32;
            for process in 0..many {
                ah.find_path(adapter, qpn(process));
            }
            assert!((0..many).all(is_known));
            // One more takes the place of the oldest.
            ah.find_path(adapter, qpn(many));
            assert!((1..=many).all(is_known) && !is_known(0));
            ah.destroy();
            drop(ah);
            side.close();
        });
    }
}
