//! Local addresses in use, and the paths that address vectors lead to.

use crate::Context;
use crate::adapter::Adapter;
use crate::device::AddressPair;
use ferroce_os::{clock, fork, sys};
use ferroce_parts::network::is_of_this_host;
use ferroce_parts::network::{Arrivals, LeftOut, Local};
use ferroce_parts::{AddressVector, Path, PeerSocket, ResolvedAv, settings};
use ferroce_types::{Error, HostAddr, MAX_FLOW_LABEL, Result, first_qpn, invalid, steering_of};
use ferroce_udp::{self, Endpoint};
use ferroce_wire::cm::GSI_QPN;
use smallvec::SmallVec;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

impl Context {
    /// Packets from addresses of the device that the kernel didn't take.
    pub(crate) fn dropped_packets(&self) -> u64 {
        let Some(adapter) = crate::adapter::current() else { return 0 };
        let gids = self.gids();
        let is_its = |local: &&Local| gids.iter().any(|(_, entry)| entry.ip == local.endpoint.address().ip());
        let dropped = |local: &Local| local.endpoint.stats().dropped.load(Ordering::Relaxed);
        adapter.addresses.snapshot().iter().filter(is_its).map(dropped).sum()
    }
}

impl Adapter {
    /// Makes a local address usable.
    ///
    /// # Errors
    /// EADDRINUSE when a process that doesn't share the port has it there; other errors of the system.
    pub(crate) fn add_address(&self, address: HostAddr) -> Result<()> {
        self.add_address_after(address, Duration::ZERO)
    }

    /// As [`Adapter::add_address`]. `waited` as in [`ferroce_host::Host::sockets`].
    fn add_address_after(&self, address: HostAddr, waited: Duration) -> Result<()> {
        if self.addresses.endpoint(address).is_some() {
            return Ok(());
        }
        let sockets = self.host.sockets(address, ferroce_udp::receiving_socket, waited)?;
        let endpoint = Arc::new(Endpoint::new(address, sockets));
        let mut locals = self.addresses.locals.write();
        if locals.iter().any(|l| l.endpoint.address() == address) {
            return Ok(());
        }
        let new =
            Local { endpoint, steerings: SmallVec::new(), is_gsi_watched: false, users: Arc::default() };
        *locals = Arc::new(locals.iter().map(Local::share).chain([new]).collect());
        drop(locals);
        self.watch_slots()
    }

    /// Makes a device's addresses usable. An address whose port another process has is left out, with one line in the log; a queue pair
    /// that names it later is refused, unless the port is free by then. An address that can't be used yet is left out without a line: the
    /// news of the network reports when it can. All holders that don't answer together are waited for as long as one of them.
    ///
    /// # Errors
    /// As [`Adapter::add_address`], but EADDRINUSE and EBUSY only when no address is left, or the port is taken at all addresses.
    pub(crate) fn use_addresses(&self, addresses: &[HostAddr]) -> Result<()> {
        let (mut usable, mut refused, mut waited) = (false, Vec::new(), Duration::ZERO);
        for (index, &address) in addresses.iter().enumerate() {
            // One address may be in several GIDs.
            if addresses[..index].contains(&address) {
                continue;
            }
            let is_it = |left_out: &LeftOut| left_out.address == address && left_out.for_good;
            if self.addresses.left_out.lock().iter().any(is_it) {
                // Asking its holder takes up to some seconds.
                continue;
            }
            let begun = clock::now();
            match self.add_address_after(address, waited).map_err(|error| (error.errno(), error)) {
                Ok(()) => usable = true,
                // Still tentative, or gone since the table was read: the news of the network reports either.
                Err((libc::EADDRNOTAVAIL, _)) => {
                    tracing::debug!(?address, "an address of the GID table can't be used now");
                }
                Err((libc::EADDRINUSE | libc::EBUSY, error)) => {
                    let for_good = waited.is_zero() && error.errno() == libc::EADDRINUSE;
                    waited += clock::now().since(begun);
                    refused.push((address, error, for_good));
                }
                Err((_, error)) => return Err(error),
            }
        }
        for (address, error, for_good) in refused {
            if !usable || is_held_everywhere() {
                return Err(error);
            }
            let mut left_out = self.addresses.left_out.lock();
            if let Some(known) = left_out.iter_mut().find(|known| known.address == address) {
                // Another thread has found out meanwhile, or the holder still doesn't answer.
                known.for_good |= for_good;
                continue;
            }
            left_out.push(LeftOut { address, for_good });
            drop(left_out);
            ferroce_parts::voice::tell(&format!(
                "{error}; the address is left out, the device's others work"
            ));
        }
        Ok(())
    }

    /// Makes a device's addresses usable when it has got new ones, in a thread of their own. A holder of the port that doesn't answer
    /// is waited for for up to 15 s, and no queue pair at another address waits with it.
    pub(crate) fn use_later(&'static self, addresses: &[HostAddr]) {
        if addresses.iter().all(|&address| self.is_local_address(address)) {
            return;
        }
        let mut arrivals = self.addresses.arrivals.lock();
        arrivals.waiting.extend(addresses);
        if std::mem::replace(&mut arrivals.has_thread, true) {
            return;
        }
        drop(arrivals);
        if let Err(error) = ferroce_engine::start_thread("ferroce-address", || self.use_arrivals()) {
            tracing::warn!(%error, "no thread makes a new address usable before a queue pair names it");
            *self.addresses.arrivals.lock() = Arrivals::default();
        }
    }

    /// Until none waits.
    fn use_arrivals(&self) {
        let Ok(_inside) = fork::enter_library() else { return };
        loop {
            let mut arrivals = self.addresses.arrivals.lock();
            let addresses = std::mem::take(&mut arrivals.waiting);
            arrivals.has_thread = !addresses.is_empty();
            drop(arrivals);
            if addresses.is_empty() {
                return;
            }
            let addresses: Vec<HostAddr> = addresses.into_iter().collect();
            if let Err(error) = self.use_addresses(&addresses) {
                tracing::warn!(%error, "addresses of a device can't be used");
            }
        }
    }

    /// Sees to it that the sockets of all this process's slots, at all its addresses, are read, and that of QP 1 if there are
    /// connections: by the background thread, because pollers read the sockets of their QPs only.
    ///
    /// # Errors
    /// The system refused.
    pub(crate) fn watch_slots(&self) -> Result<()> {
        // Asked under the lock: an older answer must not replace a newer one.
        let mut locals = self.addresses.locals.write();
        let mut steerings: SmallVec<[u8; 4]> =
            self.host.slots().iter().map(|&slot| steering_of(first_qpn(slot))).collect();
        let is_gsi_read = self.gsi.is_read();
        steerings.sort_unstable();
        steerings.dedup();
        let mut watched = Vec::with_capacity(locals.len());
        for local in locals.iter() {
            let Some(gsi) = local.endpoint.fd(steering_of(GSI_QPN)) else {
                // Another user's processes read them.
                watched.push(local.share());
                continue;
            };
            for &steering in steerings.iter().filter(|s| !local.steerings.contains(s)) {
                let Some(fd) = local.endpoint.fd(steering) else { continue };
                self.engine.watch(fd).map_err(Error::os("epoll_ctl of a RoCE socket"))?;
            }
            if is_gsi_read && !local.is_gsi_watched {
                self.engine.watch_control(gsi)?;
            }
            watched.push(Local {
                steerings: steerings.clone(),
                is_gsi_watched: is_gsi_read,
                ..local.share()
            });
        }
        *locals = Arc::new(watched);
        Ok(())
    }

    /// Receives at addresses whose sockets another user had until now.
    pub(super) fn take_over(&self) {
        for local in self.addresses.snapshot().iter() {
            if local.endpoint.fd(0).is_none()
                && let Some(group) = self.host.group(local.endpoint.address())
            {
                local.endpoint.receive_by(group);
            }
        }
        if let Err(error) = self.watch_slots() {
            tracing::warn!(%error, "the sockets of UDP port 4791 can't be watched");
        }
    }

    /// Counts a QP in or out at the addresses where it expects packets: pollers read the sockets of these only.
    pub(crate) fn listen(&self, qpn: u32, using: bool, path: Option<&Path>) {
        let mut listeners = self.addresses.listeners.lock();
        for users in listeners.remove(&qpn).unwrap_or_default() {
            users.fetch_sub(1, Ordering::Relaxed);
            self.addresses.users.fetch_sub(1, Ordering::Relaxed);
        }
        if !using || matches!(path, Some(Path::Shm { link, .. }) if link.is_to_itself()) {
            return;
        }
        let at = |local: &&Local| match path {
            Some(Path::Udp { dest, .. }) => local.endpoint.address() == dest.endpoint().address(),
            Some(Path::Shm { meta, .. }) => local.endpoint.address().ip() == meta.src,
            _ => true,
        };
        let users: Vec<_> = self.addresses.snapshot().iter().filter(at).map(|l| l.users.clone()).collect();
        for users in &users {
            users.fetch_add(1, Ordering::Relaxed);
            self.addresses.users.fetch_add(1, Ordering::Relaxed);
        }
        listeners.insert(qpn, users);
    }

    /// Resolves both ends of an address vector.
    ///
    /// # Errors
    /// EINVAL for a source GID that doesn't exist, addresses of different families, or a destination that is none, such as a
    /// LID of no host.
    pub(crate) fn route(&self, context: &Context, av: &AddressVector) -> Result<ResolvedAv> {
        let AddressPair { from, to, hop_limit } = context.ends(av)?;
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

    /// Is this an address of a device that this process has open?
    pub(super) fn is_local_address(&self, address: HostAddr) -> bool {
        self.addresses.endpoint(address).is_some()
    }

    /// The path to a QP.
    ///
    /// # Errors
    /// As [`Adapter::route`], or what kept a sending socket from being made.
    pub(crate) fn path(&self, context: &Context, av: &AddressVector, qpn: u32) -> Result<Path> {
        let route = self.route(context, av)?;
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
    pub(crate) fn udp_path(&self, route: &ResolvedAv, qpn: u32) -> Result<Path> {
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

    /// Payload bytes that packets on this path may carry: a power of two from 256 to 4096.
    pub(crate) fn path_mtu(&self, path: &Path, context: &Context) -> u32 {
        match path {
            Path::Shm { .. } => ferroce_netdev::MAX_MTU,
            Path::Udp { dest, .. } => match dest.endpoint().path_mtu(dest.peer()) {
                // To an address of this host the route is `lo`, which carries more than the port.
                Ok(bytes) if settings::udp_only() => {
                    ferroce_netdev::active_mtu(bytes).min(context.port().active_mtu)
                }
                Ok(bytes) => ferroce_netdev::active_mtu(bytes),
                Err(error) => {
                    tracing::debug!(%error, ?dest, "no route: taking the port's MTU");
                    context.port().active_mtu
                }
            },
        }
    }
}

/// A process has bound the port to the unspecified address, and so has it at all addresses of this host.
fn is_held_everywhere() -> bool {
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    any.into_iter().any(|ip| ferroce_host::is_held(HostAddr::new(ip, 0)))
}
