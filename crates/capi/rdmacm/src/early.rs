//! What an id has requested, to request it again while no process has the port.

use std::sync::Arc;
use std::time::Instant;

use ferroce_connect::{CmEvent, Connect, Connection, ConnectionQp, Ece, IpHeader, Lookup, ServiceId, Sink};
use ferroce_entry::call::Outcome;

use crate::place::PeerRoute;

/// The one partition.
pub(crate) const PKEY: u16 = 0xffff;
/// What is asked of a peer.
#[derive(Clone)]
pub(crate) struct WantedConnection {
    pub(crate) way: PeerRoute,
    pub(crate) service_id: ServiceId,
    pub(crate) header: IpHeader,
    /// Of a connection; a lookup has none.
    pub(crate) qp: Option<(ConnectionQp, Ece)>,
    pub(crate) private_data: Vec<u8>,
}

impl WantedConnection {
    /// Sends the request; `sink` gets what becomes of it.
    pub(crate) fn ask(&self, sink: Arc<dyn Sink>) -> Outcome<Connection> {
        let (route, service_id, header) = (self.way.route, self.service_id, Some(self.header));
        let private_data = &*self.private_data;
        Ok(match self.qp {
            Some((qp, ece)) => {
                let ca_guid = self.way.device.guid();
                let wanted = Connect { route, service_id, header, ca_guid, qp, ece, private_data };
                ferroce_connect::connect(&wanted, sink)?
            }
            None => {
                let wanted = Lookup { route, service_id, header, pkey: PKEY, private_data };
                ferroce_connect::lookup(&wanted, sink)?
            }
        })
    }
}

/// A request that may have come too early.
pub(crate) struct Early {
    pub(crate) wanted: WantedConnection,
    pub(crate) until: Instant,
    /// The refusal of the last attempt: the program's, unless there is another attempt.
    pub(crate) refused: Option<CmEvent>,
}
