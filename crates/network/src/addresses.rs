//! Local addresses in use: their sockets, and which queue pairs expect packets there.

use crate::locals::{Arrivals, LeftOut, Local};
use crate::network::Network;
use ferroce_engine::Handler;
use ferroce_os::{clock, fork};
use ferroce_parts::Path;
use ferroce_types::{Error, HostAddr, Result, first_qpn, steering_of};
use ferroce_udp::{self, Endpoint};
use ferroce_wire::cm::GSI_QPN;
use smallvec::SmallVec;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl<H: Handler> Network<H> {
    /// Makes a local address usable.
    ///
    /// # Errors
    /// EADDRINUSE when a process that doesn't share the port has it there; other errors of the system.
    pub fn add_address(&self, address: HostAddr) -> Result<()> {
        self.add_address_after(address, Duration::ZERO)
    }

    /// As [`Network::add_address`]. `waited` as in [`ferroce_host::Host::sockets`].
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
    /// As [`Network::add_address`], but EADDRINUSE and EBUSY only when no address is left, or the port is taken at all addresses.
    pub fn use_addresses(&self, addresses: &[HostAddr]) -> Result<()> {
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
    pub fn use_later(&'static self, addresses: &[HostAddr]) {
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
    pub fn watch_slots(&self) -> Result<()> {
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
    pub fn take_over(&self) {
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
    pub fn listen(&self, qpn: u32, using: bool, path: Option<&Path>) {
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

    /// Packets from addresses with these IP addresses that the kernel didn't take.
    pub fn dropped_packets(&self, is_its: impl Fn(IpAddr) -> bool) -> u64 {
        let locals = self.addresses.snapshot();
        let its = locals.iter().filter(|local| is_its(local.endpoint.address().ip()));
        its.map(|local| local.endpoint.stats().dropped.load(Ordering::Relaxed)).sum()
    }

    /// Is this an address of a device that this process has open?
    pub fn is_local_address(&self, address: HostAddr) -> bool {
        self.addresses.endpoint(address).is_some()
    }
}

/// A process has bound the port to the unspecified address, and so has it at all addresses of this host.
fn is_held_everywhere() -> bool {
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    any.into_iter().any(|ip| ferroce_host::is_held(HostAddr::new(ip, 0)))
}
