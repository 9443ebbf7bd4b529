//! From address vectors to paths: of queue pairs, and of address handles.

use crate::Context;
use crate::adapter::Adapter;
use crate::device::OfContext as _;
use ferroce_mem::Pd;
use ferroce_network::{Network, path_mtu};
use ferroce_parts::{AddressVector, Ah, Path, ResolvedAv, check_av};
use ferroce_types::{Result, slot_of};
use std::sync::Arc;

/// An address handle, whose address vector it resolves (ibv_create_ah(3)).
///
/// # Errors
/// EINVAL without a GRH unless ports are InfiniBand, for a LID of no host, for a source GID that doesn't exist, or for addresses of
/// different families; ENOMEM when there are `MAX_AH` handles.
pub fn create_ah(pd: &Arc<Pd>, av: AddressVector) -> Result<Arc<Ah>> {
    check_av(&av)?;
    let adapter = pd.context().adapter()?;
    let route = adapter.route(&pd.context(), &av)?;
    // An address without a path fails here, not at the first send.
    adapter.udp_path(&route, 0)?;
    Ah::new(pd, av, route)
}

impl Adapter {
    /// Resolves both ends of an address vector.
    ///
    /// # Errors
    /// EINVAL for a source GID that doesn't exist, addresses of different families, or a destination that is none, such as a
    /// LID of no host.
    pub(crate) fn route(&self, context: &Context, av: &AddressVector) -> Result<ResolvedAv> {
        Network::route(self, &context.ends(av)?, av)
    }

    /// The path to a QP.
    ///
    /// # Errors
    /// As [`Adapter::route`], or what kept a sending socket from being made.
    pub(crate) fn path(&self, context: &Context, av: &AddressVector, qpn: u32) -> Result<Path> {
        Network::path(self, &context.ends(av)?, av, qpn)
    }

    /// Payload bytes that packets on this path may carry.
    pub(crate) fn path_mtu(&self, path: &Path, context: &Context) -> u32 {
        path_mtu(path, || context.port().active_mtu)
    }

    /// Finds the path to a QP at this address for [`Ah::path_to`]. It may open sockets and wait a tenth of a second for another process, so
    /// the caller has no QP locked.
    pub(crate) fn find_path(&'static self, ah: &Ah, qpn: u32) {
        let shared = if ah.route().to.is_group() { None } else { self.shm_path(ah.route(), qpn) };
        let path = shared.or_else(|| {
            self.udp_path(ah.route(), qpn)
                .inspect_err(|error| tracing::warn!(%error, "no path for an address handle"))
                .ok()
        });
        ah.keep_path(self.generation(), slot_of(qpn), path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use ferroce_parts::PathLookup;
    use ferroce_wire::Service;

    #[test]
    fn datagrams_to_several_processes_take_turns_without_a_search() {
        const NAME: &str = "addressing::tests::datagrams_to_several_processes_take_turns_without_a_search";
        in_namespace(NAME, || {
            let side = Side::new(&open(), Service::Ud, 64);
            let ah = create_ah(&side.pd, side.av()).unwrap();
            let adapter = side.context.adapter().unwrap();
            // In slots that no process of this host has.
            let qpn = |process: u32| side.qp.qpn() ^ (process + 1) << 17;
            let is_known =
                |process| matches!(ah.path_to(adapter.generation(), qpn(process)), PathLookup::Known(_));
            let many = Ah::PATHS as u32;
            for process in 0..many {
                adapter.find_path(&ah, qpn(process));
            }
            assert!((0..many).all(is_known));
            // One more takes the place of the oldest.
            adapter.find_path(&ah, qpn(many));
            assert!((1..=many).all(is_known) && !is_known(0));
            ah.destroy();
            drop(ah);
            side.close();
        });
    }
}
