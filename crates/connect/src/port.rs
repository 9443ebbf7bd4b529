//! The ports of this host, and the listeners at them.

use crate::manager::manager;
use crate::state::{Manager, Sink};
use crate::{PortSpace, TransportService};
use ferroce_cm::{Listen, ListenerId};
use ferroce_host::{HeldPort, PortAddress, PortError};
use ferroce_os::sync::{Mutex, class};
use ferroce_os::sys;
use ferroce_types::{Error, HostAddr, Result, invalid};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the kernel's is unknown: that of `net.ipv4.ip_local_port_range`.
const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;
/// Below `net.ipv4.ip_unprivileged_port_start`, if that is unknown.
const PRIVILEGED: u16 = 1024;
/// Bit of CAP_NET_BIND_SERVICE.
const NET_BIND_SERVICE: u32 = 10;

/// What a port is wanted for (rdma_bind_addr(3)).
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// The port space.
    pub space: PortSpace,
    /// Address, perhaps the unspecified or a loopback one, which both stand for all of this host's; port 0 has one chosen.
    pub address: SocketAddr,
    /// Ids that have this option too may share the port, until one of them listens (`RDMA_OPTION_ID_REUSEADDR`).
    pub reuse: bool,
    /// `::` doesn't stand for IPv4 addresses (`RDMA_OPTION_ID_AFONLY`).
    pub v6_only: bool,
    /// The port is only shown to peers: other ids may have it, and no id can listen at it. For rdma_resolve_addr(3) of an id that
    /// isn't bound: connections without number need neither names nor descriptors.
    pub label: bool,
}

/// A bound port. It is free again when this is dropped, or when the process dies.
#[derive(Debug)]
pub struct BoundPort {
    manager: &'static Manager,
    wanted: Bind,
    listening: Mutex<class::ListeningPort, PortListener>,
}

#[derive(Debug)]
struct PortListener {
    /// `None`: a label.
    held: Option<HeldPort>,
    listener: Option<ListenerId>,
}

/// Takes a port.
///
/// # Errors
/// EADDRNOTAVAIL when a process of this host has it and one of the two addresses stands for all, EADDRINUSE when both have the same
/// address of one interface, as the kernel decides; EADDRNOTAVAIL also when no port is left to choose, EACCES for a port below 1024 without CAP_NET_BIND_SERVICE.
pub fn bind(wanted: &Bind) -> Result<BoundPort> {
    let manager = manager()?;
    let mut wanted = *wanted;
    let held = match (wanted.address.port(), wanted.label) {
        (0, label) => {
            let (port, held) = any_port(manager, &wanted, label)?;
            wanted.address.set_port(port);
            held
        }
        (_, true) => None,
        (port, false) => {
            check_right(port)?;
            Some(hold(manager, &wanted, port)?.map_err(|error| taken(error, &port_address(&wanted, port)))?)
        }
    };
    let listening = Mutex::new(PortListener { held, listener: None });
    Ok(BoundPort { manager, wanted, listening })
}

impl BoundPort {
    /// Address and port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.wanted.address
    }

    /// Takes requests from now on: `sink` gets [`CmEvent::Request`](crate::CmEvent::Request)s for `transport`, and
    /// [`CmEvent::Lookup`](crate::CmEvent::Lookup)s when it is `None`. Once `backlog` of them haven't been
    /// [taken](crate::Connection::take), further ones are dropped silently: the peer asks again.
    ///
    /// # Errors
    /// EINVAL when it listens already, or is a label; as [`bind`] when the port is shared.
    pub fn listen(
        &self,
        transport: Option<TransportService>,
        backlog: u32,
        sink: Arc<dyn Sink>,
    ) -> Result<()> {
        let mut listening = self.listening.lock();
        let address = self.wanted.address;
        if listening.listener.is_some() {
            return invalid!("{address} is listened at already");
        }
        let Some(held) = &mut listening.held else {
            return invalid!(
                "port {} was chosen for a connection: bind the id before it listens",
                address.port()
            );
        };
        held.stop_sharing().map_err(|error| taken(error, &held.address()))?;
        let listen = Listen {
            space: self.wanted.space,
            port: address.port(),
            address: address.ip(),
            v6_only: self.wanted.v6_only,
            transport,
            backlog,
        };
        let id = self.manager.with(|state| {
            let id = state.cm.listen(listen);
            state.listeners.insert(id, sink);
            id
        })?;
        listening.listener = Some(id);
        Ok(())
    }
}

impl Drop for BoundPort {
    fn drop(&mut self) {
        let Some(id) = self.listening.get_mut().listener else { return };
        let sink = self.manager.with(|state| {
            state.cm.stop_listening(id);
            state.listeners.remove(&id)
        });
        drop(sink);
    }
}

/// Takes the names of a port.
fn hold(
    manager: &'static Manager,
    wanted: &Bind,
    port: u16,
) -> Result<std::result::Result<HeldPort, PortError>> {
    Ok(manager.gsi()?.host().take_port(port_address(wanted, port), wanted.reuse))
}

/// The port and its address as the host's processes know them.
fn port_address(wanted: &Bind, port: u16) -> PortAddress {
    PortAddress {
        space: wanted.space.number(),
        port,
        address: HostAddr::from(wanted.address),
        v6_only: wanted.v6_only && wanted.address.is_ipv6(),
    }
}

/// Takes one of the ports that programs don't choose, from a random one upwards. Ports that are only shown follow one another: peers distinguish a
/// program's connections by them.
fn any_port(manager: &'static Manager, wanted: &Bind, label: bool) -> Result<(u16, Option<HeldPort>)> {
    let range = ephemeral();
    let count = u32::from(range.end() - range.start()) + 1;
    let number = |index: u32| range.start() + (index % count) as u16;
    if label {
        return Ok((number(manager.shown_ports.fetch_add(1, Ordering::Relaxed)), None));
    }
    let first = sys::random() as u32 % count;
    for port in (first..first + count).map(number) {
        match manager.gsi()?.host().take_free_port(port_address(wanted, port), wanted.reuse) {
            Ok(held) => return Ok((port, Some(held))),
            Err(error @ PortError::System(_)) => return Err(taken(error, &port_address(wanted, port))),
            Err(_) => {}
        }
    }
    Err(refusal(libc::EADDRNOTAVAIL, "all ports of net.ipv4.ip_local_port_range are taken".into()))
}

fn refusal(errno: i32, why: String) -> Error {
    Error::Refused { errno, why }
}

/// The errno of a port that can't be had: for a wildcard address that is taken, the kernel returns EADDRNOTAVAIL.
fn taken(error: PortError, wanted: &PortAddress) -> Error {
    let PortAddress { port, address, .. } = wanted;
    match error {
        PortError::Taken if !wanted.is_wide() => refusal(
            libc::EADDRINUSE,
            format!("port {port} of {} is taken (another id, or another process)", address.ip()),
        ),
        PortError::Taken | PortError::Overlaps => refusal(
            libc::EADDRNOTAVAIL,
            format!(
                "port {port} is taken by another id or process, and {} or its address stands for all addresses",
                address.ip()
            ),
        ),
        PortError::OtherUsers(uid) => {
            let user = uid
                .map_or("another user, at a socket that doesn't listen".into(), |uid| format!("user {uid}"));
            refusal(libc::EADDRINUSE, format!("port {} is taken by a process of {user}", port))
        }
        PortError::Unanswered => refusal(
            libc::EADDRINUSE,
            format!("port {} is taken at another address by a process that doesn't answer (stopped?)", port),
        ),
        PortError::System(source) => Error::Os { what: "the name of a port", source },
    }
}

/// # Errors
/// EACCES for a port that only privileged programs may have.
fn check_right(port: u16) -> Result<()> {
    let first = number(c"/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or(PRIVILEGED);
    if port >= first || has_capability(NET_BIND_SERVICE) {
        return Ok(());
    }
    let why = format!("port {port} is below {first} and wants CAP_NET_BIND_SERVICE");
    Err(refusal(libc::EACCES, why))
}

fn ephemeral() -> RangeInclusive<u16> {
    let text = sys::read_file(c"/proc/sys/net/ipv4/ip_local_port_range", 64).unwrap_or_default();
    let mut numbers = std::str::from_utf8(&text).unwrap_or_default().split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) if 0 < first && first <= last => first..=last,
        _ => EPHEMERAL,
    }
}

fn number(path: &std::ffi::CStr) -> Option<u16> {
    std::str::from_utf8(&sys::read_file(path, 64).ok()?).ok()?.trim().parse().ok()
}

/// An effective capability of this thread.
fn has_capability(bit: u32) -> bool {
    let status = sys::read_file(c"/proc/thread-self/status", 16 << 10).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> bit & 1 != 0)
}
