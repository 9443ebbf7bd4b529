//! Taking regions and QPs back from the directory, and waiting for the processes that are using them.

use super::link::{Link, PeersAccess};
use super::links::Links;
use super::own::{OwnDirectory, own, own_directory};
use super::protocol::{DirectoryEntry, RevokedObject};
use ferroce_os::{Patience, fork, sys};
use ferroce_types::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// How long a revocation waits for another process to let go.
const REVOCATION: Duration = Duration::from_secs(1);
/// How long it sleeps between two looks.
const ROUND: Duration = Duration::from_micros(50);

impl Links {
    /// Waits until no other process uses `object`, which has been revoked before this call. Accesses to other objects aren't waited for.
    ///
    /// # Errors
    /// EBUSY, with the process, after a second.
    fn wait_for_others(&self, object: RevokedObject) -> Result<()> {
        let mut busy: Vec<(Arc<Link>, PeersAccess)> = Vec::new();
        for link in self.snapshot().iter() {
            busy.extend(link.accesses_of_peer().map(|access| (link.clone(), access)));
        }
        busy.extend_from_slice(&self.ended.lock());
        busy.retain(|(_, access)| access.names(object));
        let mut patience = Patience::new(REVOCATION, ROUND);
        let mut rounds = 0;
        loop {
            busy.retain(|(link, access)| link.goes_on(*access));
            let Some((link, _)) = busy.first() else { return Ok(()) };
            if patience.has_ended() {
                let pid = link.pid;
                return Err(Error::Busy(format!(
                    "process {pid} is in the middle of an access and doesn't go on (stopped?)"
                )));
            }
            rounds += 1;
            if rounds < 64 { sys::yield_processor() } else { fork::outside_library(|| sys::pause(ROUND)) }
        }
    }
}

/// Takes the entry of `object` in this process's directory back; when this returns, no other process uses the object.
fn revoke(own: &OwnDirectory, entry: &DirectoryEntry, object: RevokedObject) -> Result<u64> {
    let name = entry.revoke();
    let Some(links) = own.links() else { return Ok(name) };
    links.wait_for_others(object).inspect_err(|error| {
        entry.restore(name);
        tracing::warn!(%error, "nothing is revoked");
    })?;
    links.snapshot().iter().for_each(|link| link.tell_of_revocation());
    Ok(name)
}

/// No other process accesses the region of this key when this returns.
///
/// # Errors
/// EBUSY after a second; the region is listed as it was then.
pub fn revoke_region(key: u32) -> Result<()> {
    let Some(own) = own() else { return Ok(()) };
    own.directory.region(key).map_or(Ok(()), |entry| revoke(own, entry, RevokedObject::Region(key)).map(drop))
}

/// As [`revoke_region`], where no process can be using it.
pub fn withdraw_region(key: u32) {
    if let Some(entry) = own_directory().and_then(|own| own.region(key)) {
        entry.revoke();
    }
}

/// A QP that [`revoke_qp`] has taken out of the directory.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct RevokedQp {
    qpn: u32,
    /// Of its entry, before.
    name: u64,
}

impl RevokedQp {
    /// Lists the QP again as it was listed, unless it was withdrawn since.
    pub fn restore(self) {
        if let Some(entry) = own_directory().and_then(|own| own.qp(self.qpn)) {
            entry.restore(self.name);
        }
    }
}

/// No other process accesses memory through this QP when this returns.
///
/// # Errors
/// EBUSY after a second; the QP is as it was then.
pub fn revoke_qp(qpn: u32) -> Result<RevokedQp> {
    let revoked = |name| RevokedQp { qpn, name };
    let Some((own, entry)) = own().and_then(|own| Some((own, own.directory.qp(qpn)?))) else {
        return Ok(revoked(0));
    };
    revoke(own, entry, RevokedObject::Qp(qpn)).map(revoked)
}

/// As [`revoke_qp`], for a QP that fails by itself: no peer relies on it.
pub fn withdraw_qp(qpn: u32) {
    if let Some(entry) = own_directory().and_then(|own| own.qp(qpn)) {
        entry.withdraw();
    }
}
