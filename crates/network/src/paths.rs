//! The paths from local addresses to queue pairs, of this host and of others.

use crate::locals::is_of_this_host;
use crate::network::Network;
use ferroce_engine::Handler;
use ferroce_hostlink::{Link, LinkRefusal};
use ferroce_os::{clock, fork, sys, sys::EngineFd};
use ferroce_parts::{AddressVector, Path, PeerSocket, ResolvedAv, settings};
use ferroce_types::{Error, HostAddr, MAX_FLOW_LABEL, Result, invalid, slot_of, steering_of};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Both ends of an address vector.
pub struct AddressPair {
    /// An address of this host.
    pub from: HostAddr,
    /// The peer's, or a group's.
    pub to: HostAddr,
    /// "Hop limit" of the packets.
    pub hop_limit: u8,
}

impl<H: Handler> Network<H> {
    /// The way between both ends of an address vector.
    ///
    /// # Errors
    /// EINVAL for addresses of different families, or a destination that is none.
    pub fn route(&self, ends: &AddressPair, av: &AddressVector) -> Result<ResolvedAv> {
        let &AddressPair { from, to, hop_limit } = ends;
        if from.is_ipv6() != to.is_ipv6() {
            return invalid!(
                "the GID of index {} is {from}, the destination is {to}: both must be IPv4 or both IPv6 (another \
                 sgid_index, as with -g 1 or -x 1, helps)",
                av.sgid_index
            );
        }
        let none = match to.ip() {
            IpAddr::V4(ip) => ip.is_unspecified() || ip.is_broadcast(),
            IpAddr::V6(ip) => ip.is_unspecified(),
        };
        if none {
            return invalid!("the destination GID {to} isn't an address");
        }
        self.check_loopback(from, to)?;
        self.await_address(from)?;
        let flow_label = if to.is_ipv6() { av.flow_label & MAX_FLOW_LABEL } else { 0 };
        Ok(ResolvedAv { from, to, tos: av.traffic_class, ttl: hop_limit, flow_label })
    }

    /// Makes the address of a GID usable. GID 0 is in the table while the kernel still looks for duplicates of its
    /// address, which takes a second or two; until then no socket can have the address.
    fn await_address(&self, from: HostAddr) -> Result<()> {
        const PATIENCE: Duration = Duration::from_millis(2500);
        let begun = clock::now();
        while !self.is_local_address(from) {
            match self.add_address(from) {
                Err(error) if error.errno() == libc::EADDRNOTAVAIL => {
                    if clock::now().since(begun) >= PATIENCE {
                        return invalid!(
                            "{from} can't be used yet: the kernel still looks for another host with this address \
                             (tentative), or it has gone; another sgid_index works meanwhile"
                        );
                    }
                    fork::outside_library(|| sys::pause(Duration::from_millis(10)));
                }
                added => return added,
            }
        }
        Ok(())
    }

    /// A loopback address reaches this host only, and is reached from it only.
    fn check_loopback(&self, from: HostAddr, to: HostAddr) -> Result<()> {
        const MEND: &str = "a program that starts before its interface has carrier and address gets lo as its device: \
                            start it later, or name the interface in FERROCE_DEVICES";
        match (from.ip().is_loopback(), to.ip().is_loopback()) {
            (true, false) if !to.is_group() && !is_of_this_host(to) => {
                invalid!(
                    "{from} doesn't reach {to}: the one is this host's loopback address, the other another host's ({MEND})"
                )
            }
            (false, true) if !self.is_local_address(to) && !ferroce_host::is_held(to) => {
                invalid!(
                    "{from} doesn't reach {to} of another host: a loopback address leads to this host, where no verbs device has it (the peer's mistake: {MEND})"
                )
            }
            _ => Ok(()),
        }
    }

    /// The path to a QP.
    ///
    /// # Errors
    /// As [`Network::route`], or what kept a sending socket from being made.
    pub fn path(&self, ends: &AddressPair, av: &AddressVector, qpn: u32) -> Result<Path> {
        let route = self.route(ends, av)?;
        if route.to.is_group() {
            return invalid!("the destination {} is a multicast group, which only datagrams go to", route.to);
        }
        match self.shm_path(&route, qpn) {
            Some(path) => Ok(path),
            None => self.udp_path(&route, qpn),
        }
    }

    /// The path to a QP over UDP.
    ///
    /// # Errors
    /// What kept a sending socket from being made.
    pub fn udp_path(&self, route: &ResolvedAv, qpn: u32) -> Result<Path> {
        let Some(endpoint) = self.addresses.endpoint(route.from) else {
            return invalid!("{} isn't an address of an open device", route.from);
        };
        let dest =
            endpoint.dest(route.to, route.tos, route.ttl, qpn).map_err(Error::os("a sending socket"))?;
        let dest = dest.labelled(route.flow_label);
        let key = (route.to, steering_of(qpn));
        let mut sockets = self.addresses.peer_sockets.lock();
        let socket = sockets.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            sockets.retain(|_, socket| socket.strong_count() > 0);
            let on_this_host = self.addresses.endpoint(route.to).map(|endpoint| (endpoint, key.1));
            let socket = Arc::new(PeerSocket::new(endpoint.receive_buffer(), on_this_host));
            sockets.insert(key, Arc::downgrade(&socket));
            socket
        });
        Ok(Path::Udp { dest, socket, from: None })
    }

    /// The path to a QP of this process or of another of this host, if there is shared memory with it. May take a tenth of a second
    /// when that process doesn't answer, and as much before while too many wait to ask it.
    pub fn shm_path(&self, route: &ResolvedAv, qpn: u32) -> Option<Path> {
        // Another host may have a queue pair of the same number.
        if !self.is_local_address(route.to) && !is_of_this_host(route.to) {
            return None;
        }
        let slot = slot_of(qpn);
        let is_own = self.host.owns(qpn);
        let known = || match is_own {
            true => self.links.to_itself().cloned(),
            false => self.links.to_slot(slot, || self.dial_for_link(slot)),
        };
        let link = match known() {
            Some(link) => link,
            None => {
                let _making = self.links.making();
                // Another thread may have made it meanwhile.
                let make = || match is_own {
                    true => self.links.make_to_itself().cloned(),
                    false => self.make_link(slot),
                };
                known().or_else(make)?
            }
        };
        // A ring into which the program has written by mistake isn't made anew.
        (!is_own || !link.is_dead()).then(|| Path::Shm { meta: route.meta(0), link })
    }

    fn make_link(&self, slot: u16) -> Option<Arc<Link>> {
        if self.links.own().is_none() || self.links.refusal(slot) == Some(LinkRefusal::Refused) {
            return None;
        }
        let connection = match self.dial_for_link(slot) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            dialled => dialled.ok(),
        };
        let opened = connection
            .and_then(|connection| self.links.open(connection, slot, &mut || self.host.answer_requests()));
        if opened.is_none() {
            self.links.refused(slot, LinkRefusal::Refused);
        }
        opened
    }

    /// A connection to the process that holds a slot. Any user can fill its queue of connections, which isn't a refusal: a QP whose path is chosen
    /// now has it for life. A process whose queue stays full (it is stopped) is waited for once, and tried once for each QP that follows.
    fn dial_for_link(&self, slot: u16) -> io::Result<EngineFd> {
        const PATIENCE: Duration = Duration::from_millis(100);
        let is_known = self.links.refusal(slot).is_some();
        let within = if is_known { Duration::ZERO } else { PATIENCE };
        let dialled = self.host.dial_trusted(slot, within);
        if !is_known && dialled.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            self.links.refused(slot, LinkRefusal::Crowded);
        }
        dialled
    }
}

/// Payload bytes that packets on this path may carry: a power of two from 256 to 4096. `of_port` is that of the port.
pub fn path_mtu(path: &Path, of_port: impl FnOnce() -> u32) -> u32 {
    match path {
        Path::Shm { .. } => ferroce_netdev::MAX_MTU,
        Path::Udp { dest, .. } => match dest.endpoint().path_mtu(dest.peer()) {
            // To an address of this host the route is `lo`, which carries more than the port.
            Ok(bytes) if settings::udp_only() => ferroce_netdev::active_mtu(bytes).min(of_port()),
            Ok(bytes) => ferroce_netdev::active_mtu(bytes),
            Err(error) => {
                tracing::debug!(%error, ?dest, "no route: taking the port's MTU");
                of_port()
            }
        },
    }
}
