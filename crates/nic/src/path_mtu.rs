//! The path MTU of a peer on this host: the checker compares it with that of this end.

use crate::adapter::Adapter;
use crate::qp::Qp;
use ferroce_host::{RequestHandler, Services, frame};
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::slot_of;
use ferroce_wire::Service as Transport;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Kind of the requests that ask for a queue pair's path MTU: its number and that of its peer follow, four bytes each.
const KIND: u8 = 8;
/// How long another process may take to answer.
const PATIENCE: Duration = Duration::from_millis(200);

/// The function that returns the path MTU (IBV_MTU_*) of a queue pair of this process. Its arguments are the numbers of the queue pair
/// and of its peer; it returns `None` unless the two are connected.
static KNOWN: OnceLock<fn(u32, u32) -> Option<u8>> = OnceLock::new();

/// Sets the function that returns path MTUs. Locks of the adapter may be held while it is called. The first one stays.
pub fn know_by(known: fn(u32, u32) -> Option<u8>) {
    let _ = KNOWN.set(known);
}

fn known(qpn: u32, peer: u32) -> Option<u8> {
    KNOWN.get().and_then(|known| known(qpn, peer))
}

struct PathMtuService;

impl RequestHandler for PathMtuService {
    fn serve(&self, connection: EngineFd, message: &[u8], _: Vec<EngineFd>) {
        let body = message.get(frame::HEADER..).and_then(<[u8]>::first_chunk::<8>);
        let both = body.map_or(0, |body| u64::from_le_bytes(*body));
        let mtu = known(both as u32, (both >> 32) as u32).unwrap_or(0);
        // Ignored: the process that asked may have ended.
        let _ =
            frame::send(connection.raw(), &mut [&frame::header(frame::GRANTED)[..], &[mtu]].concat(), &[]);
    }
}

/// Answers other processes.
pub(crate) fn register(services: &Services) {
    services.register(KIND, Arc::new(PathMtuService));
}

impl Adapter {
    /// Asks the process of this host that has `qpn` for the path MTU of that queue pair.
    fn ask_for_mtu(&self, qpn: u32, peer: u32) -> Option<u8> {
        let connection = self.host.dial(slot_of(qpn)).ok()?;
        let mut request = [&frame::header(KIND)[..], &qpn.to_le_bytes(), &peer.to_le_bytes()].concat();
        frame::send(connection.raw(), &mut request, &[]).ok()?;
        if !sys::wait_for(connection.raw(), libc::POLLIN, PATIENCE) {
            return None;
        }
        let mut answer = [0; frame::HEADER + 1];
        let (length, _) = frame::receive(connection.raw(), &mut answer).ok()?;
        let granted = frame::kind_of(&answer[..length]) == Some(frame::GRANTED) && length == answer.len();
        granted.then_some(answer[frame::HEADER]).filter(|mtu| (1..=5).contains(mtu))
    }
}

impl Qp {
    /// The path MTU (IBV_MTU_*) of the peer, where that is on this host, is connected to this end, and has the checker too. It may
    /// take a moment: nothing may be locked.
    #[must_use]
    pub fn peer_mtu(&self) -> Option<u8> {
        if !matches!(self.service(), Transport::Rc | Transport::Uc) || !self.has_peer_here() {
            return None;
        }
        let peer = self.query().ok()?.dest_qpn;
        let adapter = self.context().adapter().ok()?;
        if adapter.host.owns(peer) { known(peer, self.qpn()) } else { adapter.ask_for_mtu(peer, self.qpn()) }
    }
}
