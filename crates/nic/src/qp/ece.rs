//! Enhanced connection establishment (ibv_query_ece(3), ibv_set_ece(3)): options beyond the specification that two QPs agree on.
//! An option is in force only if both QPs name it.

use super::{LockedQp, Path, Qp};
use ferroce_types::{QpState, Result, invalid};
use ferroce_wire::Service;

/// Packets with data are sent as ECN-capable (RFC 3168): a congested network marks them instead of dropping them, and the marks
/// slow the sender down.
pub const ECN: u32 = 1;

impl Qp {
    /// The options in force, once they have been set; before, those that the QP offers.
    #[must_use]
    pub fn ece_options(&self) -> u32 {
        self.inner.lock().ece.unwrap_or(self.offered())
    }

    /// Puts those of `options` in force that the QP offers, and returns them. Going back to RESET undoes it.
    ///
    /// # Errors
    /// [`Error::Invalid`](ferroce_types::Error::Invalid) once the QP sends.
    pub fn set_ece_options(&self, options: u32) -> Result<u32> {
        let mut inner = self.inner.lock();
        let state = inner.proto.state();
        if !matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) || self.is_inherited() {
            return invalid!("options of a connection in state {state}: before RTS");
        }
        let accepted = options & self.offered();
        inner.ece = Some(accepted);
        Ok(accepted)
    }

    /// The options that the QP offers. Only services with acknowledgements have a send window, which marked packets reduce: the others
    /// don't offer ECN.
    fn offered(&self) -> u32 {
        match self.service {
            Service::Rc | Service::Xrc => ECN,
            _ => 0,
        }
    }
}

impl LockedQp {
    /// Packets with data are to be marked as ECN-capable.
    pub(super) fn is_ecn_capable(&self) -> bool {
        self.ece.is_some_and(|options| options & ECN != 0) && matches!(self.path, Some(Path::Udp { .. }))
    }
}
