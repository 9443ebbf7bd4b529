//! The way to a peer: rdma_resolve_addr(3), rdma_resolve_route(3).
//!
//! It comes from the kernel's routing table. A neighbour that the kernel doesn't know yet is looked for, as the kernel's communication
//! manager does: for a moment by the calling thread, since most hosts answer at once, then by the thread of `later`. A neighbour that isn't
//! found within the program's time is an event.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce_connect::ConnectionRoute;
use ferroce_entry::call::{Outcome, Refusal};
use ferroce_entry::entry;
use ferroce_netdev::{Netdev, RouteKind, is_neighbour_known, look_for_neighbour, route_to, way};
use ferroce_types::HostAddr;
use libc::sockaddr;

use crate::abi::*;
use crate::address;
use crate::bind;
use crate::block::IdBlock;
use crate::devices;
use crate::id::{CmId, IdStep};
use crate::later::{self, Task};
use crate::news::IdNews;
use crate::place::{HOP_LIMIT, PeerRoute};
use crate::sync;

/// How long the calling thread itself waits for a neighbour.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// How often the neighbour is asked for.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// How often the way is looked up again.
const BETWEEN_ROUTES: Duration = Duration::from_millis(100);
/// How a destination is reached.
struct Reached {
    source: SocketAddr,
    way: PeerRoute,
    /// The neighbour whose hardware address has to be known first.
    neighbour: Option<(IpAddr, u32)>,
}

/// Path MTU as a code: what is left of an interface's MTU beside the headers, rounded down. `None` below the least.
pub(crate) fn mtu_code(mtu: u32) -> Option<u8> {
    /// Of IP, UDP, transport and checksum at most, as the kernel counts.
    const HEADERS: u32 = 96;
    let payload = mtu.saturating_sub(HEADERS).min(4096);
    (payload >= 256).then(|| (payload.ilog2() - 7) as u8)
}

/// What a path to an address of this host has to do with no network: the largest.
const LOCAL_MTU: u32 = 65_535;

fn no_way(destination: IpAddr) -> Refusal {
    Refusal::new(
        libc::ENETUNREACH,
        format!("no route leads to {destination}; check with `ip route get {destination}`"),
    )
}

fn unreadable(why: ferroce_netdev::NetError) -> Refusal {
    Refusal::new(why.errno(), why.to_string())
}

/// The interface of an address of this host: a group is reached from there, whatever routes there are. 0 when no device has it.
fn interface_of(source: SocketAddr) -> Outcome<u32> {
    let scope = address::scope_of(source);
    let device = devices::with_address(source.ip(), scope)?;
    let entry = device.and_then(|device| device.gid_of(source.ip(), scope));
    Ok(entry.map_or(0, |(_, entry)| entry.ifindex))
}

/// Finds the way from `source`, whose address may be unspecified, to `destination`. The inner error is an event's status.
fn find(source: SocketAddr, destination: SocketAddr, tos: u8) -> Outcome<Result<Reached, c_int>> {
    let to = destination.ip().to_canonical();
    if address::is_any(to) {
        return around(source, to, tos);
    }
    let scope = match address::scope_of(destination) {
        0 if to.is_multicast() && !address::is_any(source.ip()) => interface_of(source)?,
        scope => scope,
    };
    let route = route_to(to, scope).map_err(unreadable)?.ok_or_else(|| no_way(to))?;
    let bound = (!address::is_any(source.ip())).then_some(source.ip().to_canonical());
    let (from, neighbour) = match route.kind {
        RouteKind::Local => (bound.unwrap_or(to), None),
        RouteKind::Unicast => {
            let from = bound.or(route.source).ok_or_else(|| no_way(to))?;
            (from, route.ifindex.map(|ifindex| (route.gateway.unwrap_or(to), ifindex)))
        }
        RouteKind::Other(libc::RTN_MULTICAST) => (bound.or(route.source).ok_or_else(|| no_way(to))?, None),
        RouteKind::Other(_) => return Err(no_way(to)),
    };
    let from_scope = match address::scope_of(source) {
        0 => address::scope_of(destination),
        scope => scope,
    };
    let Some(device) = devices::with_address(from, from_scope)? else {
        tracing::warn!("the interface of {from}, from which {to} is reached, isn't a device");
        return Ok(Err(-libc::ENODEV));
    };
    let Some((sgid_index, entry)) = device.gid_of(from, from_scope) else { return Ok(Err(-libc::ENODEV)) };
    let mtu = match (route.kind == RouteKind::Local, way(from, to, scope).map_err(unreadable)?) {
        (true, _) => Some(device.nic().device().info().netdev.mtu),
        (false, Some((_, Some(mtu)))) => Some(mtu),
        (false, Some((ifindex, None))) => Netdev::read(ifindex).ok().map(|netdev| netdev.mtu),
        (false, None) => None,
    };
    // A neighbour that needs no hardware address: a tunnel, a loopback.
    let neighbour = neighbour.filter(|&(_, ifindex)| {
        Netdev::read(ifindex).is_ok_and(|netdev| {
            netdev.flags & (libc::IFF_NOARP | libc::IFF_LOOPBACK | libc::IFF_POINTOPOINT) as u32 == 0
        })
    });
    let to_scope = if scope != 0 {
        scope
    } else {
        entry.scope_id.max(if to.is_multicast() { entry.ifindex } else { 0 })
    };
    let route = ConnectionRoute {
        from: HostAddr::new(from, entry.scope_id),
        to: HostAddr::new(to, to_scope),
        traffic_class: tos,
        hop_limit: HOP_LIMIT,
        flow_label: 0,
        sl: 0,
    };
    let mtu = mtu.and_then(mtu_code).unwrap_or(0);
    let way = PeerRoute { device, route, sgid_index: sgid_index as u8, mtu };
    Ok(Ok(Reached { source: address::with_ip(source, from, entry.scope_id), way, neighbour }))
}

/// The way to a loopback address, which stands for this host: from and to the address of a device, and the programs see the
/// loopback address.
fn around(source: SocketAddr, to: IpAddr, tos: u8) -> Outcome<Result<Reached, c_int>> {
    let of_bound = if address::is_any(source.ip()) {
        None
    } else {
        devices::with_address(source.ip(), address::scope_of(source))?
            .and_then(|device| Some((device, device.gid_of(source.ip(), address::scope_of(source))?.1)))
    };
    let found = match of_bound {
        Some(found) => Some(found),
        // The loopback interface is a device itself where there is no other.
        None => match devices::with_address(to, 0)? {
            Some(device) => device.gid_of(to, 0).map(|(_, entry)| (device, entry)),
            None => devices::first_usable(to)?,
        },
    };
    let Some((device, entry)) = found else { return Ok(Err(-libc::ENODEV)) };
    let Some((sgid_index, _)) = device.gid_of(entry.ip, entry.scope_id) else {
        return Ok(Err(-libc::ENODEV));
    };
    let here = HostAddr::new(entry.ip, entry.scope_id);
    let route = ConnectionRoute {
        from: here,
        to: here,
        traffic_class: tos,
        hop_limit: HOP_LIMIT,
        flow_label: 0,
        sl: 0,
    };
    let mtu = device.nic().device().info().netdev.mtu.min(LOCAL_MTU);
    let way = PeerRoute { device, route, sgid_index: sgid_index as u8, mtu: mtu_code(mtu).unwrap_or(0) };
    let shown = if address::is_any(source.ip()) { to } else { source.ip() };
    Ok(Ok(Reached { source: address::with_ip(source, shown, 0), way, neighbour: None }))
}

/// The search of an id is over: the id's address and the way, or an event's status.
fn found(id: &Arc<CmId>, reached: Result<(SocketAddr, PeerRoute), c_int>) {
    {
        let mut state = id.state.lock();
        if state.step != IdStep::Resolving {
            return;
        }
        state.step = if reached.is_ok() { IdStep::AddrResolved } else { IdStep::Bound };
        if let Ok((source, way)) = reached {
            state.place.source = Some(source);
            state.place.way = Some(way);
        }
    }
    id.push(reached.map_or_else(IdNews::AddrError, |_| IdNews::AddrResolved));
}

/// An id that waits for a neighbour.
struct Search {
    id: Arc<CmId>,
    source: SocketAddr,
    destination: SocketAddr,
    tos: u8,
    /// The neighbour, and the way that leads there.
    neighbour: (IpAddr, u32),
    reached: (SocketAddr, PeerRoute),
    /// When the way is looked up again: the kernel's routes may have changed, for instance by an address that has just come.
    again: Instant,
    until: Instant,
}

impl Search {
    fn is_neighbour_known(&self) -> bool {
        let (ip, ifindex) = self.neighbour;
        // If the kernel can't be asked about neighbours, sending is tried.
        is_neighbour_known(ip, ifindex).unwrap_or(true)
    }

    /// Waits for the neighbour: a moment by itself, then by the thread for such things.
    fn begin(self) {
        let since = Instant::now();
        let first_look = FIRST_LOOK.min(self.until.saturating_duration_since(since));
        if self.is_neighbour_known() {
            return found(&self.id, Ok(self.reached));
        }
        look_for_neighbour(self.neighbour.0, self.neighbour.1);
        while since.elapsed() < first_look {
            ferroce_os::fork::outside_library(|| std::thread::sleep(BETWEEN_LOOKS));
            if self.is_neighbour_known() {
                return found(&self.id, Ok(self.reached));
            }
        }
        later::try_later(Box::new(self));
    }

    /// Looks the way up again. True: the search is over.
    fn look_again(&mut self) -> bool {
        let result = match find(self.source, self.destination, self.tos) {
            Ok(Ok(Reached { source, way, neighbour: None })) => Ok((source, way)),
            Ok(Ok(Reached { source, way, neighbour: Some(neighbour) })) => {
                if neighbour != self.neighbour {
                    look_for_neighbour(neighbour.0, neighbour.1);
                }
                (self.neighbour, self.reached) = (neighbour, (source, way));
                return false;
            }
            Ok(Err(status)) => Err(status),
            Err(refusal) => {
                tracing::info!("{}", refusal.why);
                Err(-refusal.errno)
            }
        };
        found(&self.id, result);
        true
    }
}

impl Task for Search {
    fn is_over(&mut self) -> bool {
        if self.id.step() != IdStep::Resolving {
            return true;
        }
        if self.is_neighbour_known() {
            found(&self.id, Ok(self.reached));
            return true;
        }
        let now = Instant::now();
        if now >= self.again {
            self.again = now + BETWEEN_ROUTES;
            if self.look_again() {
                return true;
            }
        }
        let is_late = now >= self.until;
        if is_late {
            tracing::info!("{} doesn't answer: no host of the link has the address", self.neighbour.0);
            found(&self.id, Err(-libc::ETIMEDOUT));
        }
        is_late
    }

    fn give_up(&mut self) {
        found(&self.id, Err(-libc::ENOMEM));
    }
}

/// # Safety
/// `id` is an id.
unsafe fn resolve(
    id: *mut rdma_cm_id,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    timeout: c_int,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let shared = unsafe { IdBlock::of(id) }?;
    if let Some(source) = source
        && source.is_ipv4() != destination.is_ipv4()
    {
        return Err(Refusal::invalid("src_addr and dst_addr are of different families"));
    }
    match shared.step() {
        IdStep::Idle => {
            let source = source.unwrap_or_else(|| SocketAddr::new(address::unspecified(destination.ip()), 0));
            // A port that the program hasn't asked for is only a label in messages to the peer.
            let label = source.port() == 0;
            // SAFETY: the caller's promise.
            unsafe { bind::bind(id, source, label)? };
        }
        IdStep::Bound => {}
        step => {
            return Err(Refusal::invalid(format!(
                "the id is {step:?}: an address is resolved once, by a new or a bound id"
            )));
        }
    }
    let (bound, tos) = {
        let mut state = shared.state.lock();
        state.step = IdStep::Resolving;
        state.place.destination = Some(destination);
        (state.place.source.expect("a bound id has an address"), state.options.tos)
    };
    // SAFETY: the caller's promise.
    unsafe { (*id).route.addr.dst_storage = address::to_c(destination).0 };
    let reached = find(bound, destination, tos).inspect_err(|_| shared.state.lock().step = IdStep::Bound)?;
    match reached {
        Err(status) => found(&shared, Err(status)),
        Ok(Reached { source, way, neighbour: None }) => found(&shared, Ok((source, way))),
        Ok(Reached { source, way, neighbour: Some(neighbour) }) => {
            let now = Instant::now();
            // A negative time is a very long one, as for the kernel.
            let until = now + Duration::from_millis((timeout as u32).into());
            let (again, reached) = (now + BETWEEN_ROUTES, (source, way));
            let search = Search {
                id: shared.clone(),
                source: bound,
                destination,
                tos,
                neighbour,
                reached,
                again,
                until,
            };
            search.begin();
        }
    }
    Ok(())
}

/// Begins to resolve an address.
///
/// # Safety
/// `id` is an id, `source` null or an address, `destination` an address.
pub(crate) unsafe fn address(
    id: *mut rdma_cm_id,
    source: *const sockaddr,
    destination: *const sockaddr,
    timeout: c_int,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        // AF_UNSPEC is the same as no source.
        let silent = source.is_null() || address::family_of(source) == libc::AF_UNSPEC;
        let source = if silent { None } else { Some(address::read(source, "src_addr")?) };
        resolve(id, source, address::read(destination, "dst_addr")?, timeout)
    }
}

entry! {
    fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src_addr: *mut sockaddr,
        dst_addr: *mut sockaddr,
        timeout_ms: c_int,
    ) -> minus_one {
        // SAFETY: by the man page an id, NULL or an address, and an address.
        unsafe {
            IdBlock::block(id)?;
            address(id, src_addr, dst_addr, timeout_ms)?;
            sync::complete(id, "rdma_resolve_addr")
        }
    }
}

/// The flow label: the one in the program's address, or one computed from the ports.
fn flow_label(source: SocketAddr, destination: SocketAddr) -> u32 {
    const BITS: u32 = 0xf_ffff;
    let given = if let SocketAddr::V6(v6) = destination { u32::from_be(v6.flowinfo()) & BITS } else { 0 };
    if given != 0 { given } else { (u32::from(source.port()) * 31 + u32::from(destination.port())) & BITS }
}

/// Resolves the route of an id whose address is resolved.
///
/// # Safety
/// `id` is null or an id.
pub(crate) unsafe fn route(id: *mut rdma_cm_id) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let shared = unsafe { IdBlock::of(id) }?;
    {
        let mut state = shared.state.lock();
        if state.step != IdStep::AddrResolved {
            return Err(Refusal::invalid(format!(
                "the id is {:?}: a route follows a resolved address",
                state.step
            )));
        }
        let (source, destination) = (state.place.source, state.place.destination);
        let tos = state.options.tos;
        let way = state.place.way.as_mut().expect("a resolved id knows the way");
        if way.mtu == 0 {
            return Err(Refusal::invalid(
                "the MTU of the way is too small for the least path MTU, 256 bytes",
            ));
        }
        way.route.traffic_class = tos;
        if let (Some(source), Some(destination)) = (source, destination) {
            way.route.flow_label = flow_label(source, destination);
        }
        state.step = IdStep::RouteResolved;
    }
    shared.push(IdNews::RouteResolved);
    Ok(())
}

entry! {
    fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> minus_one {
        if timeout_ms == 0 {
            return Err(Refusal::invalid("timeout_ms is 0: no route can be found in no time"));
        }
        // SAFETY: by the man page an id.
        unsafe {
            route(id)?;
            sync::complete(id, "rdma_resolve_route")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtus_are_those_that_the_kernel_chooses() {
        assert_eq!(
            [1120, 2144, 4192, 1500, 9000, 352, 351, 0].map(mtu_code),
            [Some(3), Some(4), Some(5), Some(3), Some(5), Some(1), None, None]
        );
    }

    #[test]
    fn a_flow_label_is_the_programs_or_one_by_the_ports() {
        let address = |text: &str| text.parse().expect("an address");
        assert_eq!(
            flow_label(address("10.0.0.1:40000"), address("10.0.0.2:7000")),
            (40_000 * 31 + 7000) & 0xf_ffff
        );
        let SocketAddr::V6(mut to) = address("[fd00::1]:1") else { unreachable!() };
        to.set_flowinfo(0x6_1234_u32.to_be());
        assert_eq!(flow_label(address("[fd00::2]:2"), to.into()), 0x6_1234);
    }
}
