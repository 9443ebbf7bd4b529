//! A connection that is being made.

use crate::session::Driver;
use crate::session::connecting::Managed;
use crate::session::connection::Connection;
use crate::session::shared::{RECEIVE, Shared};
use crate::verbs::{Endpoint, Reliable, Setup};
use ferroce_buffers::{Failed, Fault, ManagedQp, Pool, QpAttributes, Result, Status};
use std::sync::Arc;

/// A queue pair with receives, before it is connected. Dropping it destroys the queue pair.
pub(crate) struct Joining {
    /// `None` once it is connected.
    setup: Option<Setup<Reliable>>,
    shared: Arc<Shared>,
}

impl Joining {
    pub(crate) fn new(driver: &Driver, mut setup: Setup<Reliable>, pool: &Pool, place: u32) -> Self {
        let shared = Shared::new(driver, place, setup.number(), setup.attributes().send_depth, pool);
        driver.put(shared.clone());
        while let Some(buffer) = pool.try_take() {
            if setup.recv(shared.tag(RECEIVE), buffer).is_err() {
                break; // The queue is full.
            }
        }
        Self { setup: Some(setup), shared }
    }

    fn setup(&self) -> &Setup<Reliable> {
        self.setup.as_ref().unwrap_or_else(|| unreachable!("`connect` alone takes it"))
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.setup().endpoint()
    }

    /// Connects it with a peer.
    ///
    /// # Errors
    /// The peer can't be reached.
    #[allow(clippy::result_large_err)] // As in `connect_by`.
    pub(crate) fn connect(self, theirs: &Endpoint) -> Result<Connection> {
        self.finish(theirs, None)
    }

    /// Connects it with a peer that the connection manager has found. The first request has the PSN `first`.
    ///
    /// # Errors
    /// As [`Joining::connect`].
    #[allow(clippy::result_large_err)] // As in `connect_by`.
    pub(crate) fn connect_managed(
        self,
        theirs: &Endpoint,
        first: u32,
        managed: Managed,
    ) -> Result<Connection> {
        self.shared.manage(managed);
        self.finish(theirs, Some(first))
    }

    /// What the connection manager transfers to the peer.
    pub(crate) fn managed(&self) -> ManagedQp {
        let Endpoint { qpn, psn: starting_psn, mtu, .. } = self.endpoint();
        let QpAttributes { reads, peer_reads, timeout, retries, rnr_retries, .. } =
            *self.setup().attributes();
        ManagedQp { qpn, starting_psn, mtu, reads, peer_reads, timeout, retries, rnr_retries }
    }

    fn finish(mut self, theirs: &Endpoint, first: Option<u32>) -> Result<Connection> {
        let setup = self.setup.take().unwrap_or_else(|| unreachable!("it isn't connected"));
        match setup.connect_from(theirs, first) {
            Ok(qp) => {
                self.shared.connected(qp);
                Ok(Connection::new(self.shared.clone()))
            }
            Err(failed) => {
                let Failed { error, back } = failed;
                self.setup = Some(back);
                Err(error)
            }
        }
    }

    /// What the connection ends with before it is one.
    fn never() -> Fault {
        Fault::new(Status::Flushed, 0, Some("the connection wasn't made".into()), None)
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        if let Some(setup) = self.setup.take() {
            drop(setup);
            self.shared.end(Self::never());
            self.shared.driver.forget(self.shared.place);
        }
    }
}
