//! Addresses of ids: rdma_bind_addr(3), rdma_listen(3), rdma_get_src_port(3), rdma_get_dst_port(3).

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ferroce_abi::verbs::{IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND};
use ferroce_connect::{Bind, BoundPort, TransportService};
use ferroce_entry::call::{Outcome, Refusal};
use ferroce_entry::entry;
use ferroce_netdev::LocalAddresses;
use libc::sockaddr;

use crate::abi::*;
use crate::address;
use crate::block::IdBlock;
use crate::devices::{self, SharedDevice};
use crate::id::{CmId, IdStep};
use crate::place::gid;
use crate::sink::sink;

/// A source address that can be had: with the device that has it, unless it stands for all.
pub(crate) fn check_source(ip: IpAddr, scope_id: u32) -> Outcome<Option<SharedDevice>> {
    if address::is_any(ip) {
        return Ok(None);
    }
    if matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()) && scope_id == 0 {
        return Err(Refusal::invalid(format!(
            "{ip} is link-local: set sin6_scope_id to the index of the interface"
        )));
    }
    let local = LocalAddresses::read().map_err(|why| Refusal::new(libc::EIO, why.to_string()))?;
    if !local.contains(ip, scope_id) {
        return Err(Refusal::new(libc::EADDRNOTAVAIL, format!("{ip} isn't an address of this host")));
    }
    match devices::with_address(ip, scope_id)? {
        Some(device) => Ok(Some(device)),
        None => Err(Refusal::new(
            libc::ENODEV,
            format!("the interface of {ip} isn't a device; `ferroce devices` lists them"),
        )),
    }
}

/// Takes a port at `source`, which has been checked.
pub(crate) fn take_port(id: &CmId, source: SocketAddr, label: bool) -> Outcome<Arc<BoundPort>> {
    let Some(space) = id.space else {
        return Err(Refusal::invalid(
            "RDMA_PS_IPOIB: there is no IP over InfiniBand, the network is Ethernet",
        ));
    };
    let options = id.state.lock().options;
    let wanted = Bind { space, address: source, reuse: options.reuse, v6_only: options.v6_only, label };
    Ok(Arc::new(ferroce_connect::bind(&wanted)?))
}

/// Binds an idle id.
///
/// # Safety
/// `id` is an id.
pub(crate) unsafe fn bind(id: *mut rdma_cm_id, source: SocketAddr, label: bool) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let (block, shared) = unsafe { (IdBlock::block(id)?, IdBlock::of(id)?) };
    if shared.step() != IdStep::Idle {
        return Err(Refusal::invalid("the id has an address already"));
    }
    let device = check_source(source.ip(), address::scope_of(source))?;
    let port = take_port(&shared, source, label)?;
    let source = address::with_ip(port.address(), source.ip(), address::scope_of(source));
    if let Some(device) = device {
        block.attach(device)?;
    }
    {
        let mut state = shared.state.lock();
        state.step = IdStep::Bound;
        state.place.source = Some(source);
        state.port = Some(port);
    }
    // SAFETY: the caller's promise.
    unsafe { show_source(id, source, device.is_some()) };
    Ok(())
}

/// Shows the program an id's own address.
///
/// # Safety
/// `id` is an id.
pub(crate) unsafe fn show_source(id: *mut rdma_cm_id, source: SocketAddr, has_gid: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        (*id).route.addr.src_storage = address::to_c(source).0;
        if has_gid {
            (*id).route.addr.ibaddr.sgid = gid(source.ip());
            (*id).route.addr.ibaddr.dgid = gid(address::unspecified(source.ip()));
        }
    }
}

/// The service whose requests an id takes; `None`: lookups of datagram services.
pub(crate) fn transport_of(qp_type: c_int) -> Option<TransportService> {
    match qp_type {
        IBV_QPT_UD => None,
        IBV_QPT_UC => Some(TransportService::Uc),
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => Some(TransportService::Xrc),
        _ => Some(TransportService::Rc),
    }
}

entry! {
    fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> minus_one {
        // SAFETY: by the man page an id and an address.
        unsafe {
            IdBlock::block(id)?;
            bind(id, address::read(addr, "addr")?, false)?;
        }
        Ok(0)
    }
}

entry! {
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> minus_one {
        // SAFETY: by the man page an id.
        let (shared, qp_type) = unsafe { (IdBlock::of(id)?, (*id).qp_type) };
        if shared.step() == IdStep::Idle {
            // SAFETY: by the man page an id.
            unsafe { bind(id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), false)? };
        }
        let (port, source) = {
            let state = shared.state.lock();
            if state.step != IdStep::Bound {
                return Err(Refusal::invalid(format!("the id is {:?}, and listening begins with a bound one", state.step)));
            }
            (state.port.clone().expect("a bound id has a port"), state.place.source.expect("a bound id has an address"))
        };
        if address::is_any(source.ip()) {
            // Requests come to all of them.
            devices::all()?;
        }
        port.listen(transport_of(qp_type), bounded(backlog), sink(&shared))?;
        shared.state.lock().step = IdStep::Listening;
        Ok(0)
    }
}

/// Requests that may wait for rdma_get_cm_event(3): the kernel's bound, `net.rdma_ucm.max_backlog`, unless fewer are asked for.
fn bounded(backlog: c_int) -> u32 {
    const MOST: u32 = 1024;
    match u32::try_from(backlog) {
        Ok(0) | Err(_) => MOST,
        Ok(backlog) => backlog.min(MOST),
    }
}

/// The port of an address that is shown to the program, as it is there: in network order.
///
/// # Safety
/// `address` points to a `sockaddr_storage`.
unsafe fn port_of(address: *const libc::sockaddr_storage) -> u16 {
    // SAFETY: the caller's promise. Both families have the port at the same place.
    unsafe {
        match address::family_of(address.cast()) {
            libc::AF_INET | libc::AF_INET6 => {
                (&raw const (*address.cast::<libc::sockaddr_in>()).sin_port).read()
            }
            AF_IB => {
                (u64::from_be((&raw const (*address.cast::<sockaddr_ib>()).sib_sid).read()) as u16).to_be()
            }
            _ => 0,
        }
    }
}

entry! {
    fn rdma_get_src_port(id: *mut rdma_cm_id) -> value u16 = 0, {
        // SAFETY: by the man page an id.
        unsafe { if id.is_null() { 0 } else { port_of(&raw const (*id).route.addr.src_storage) } }
    }
}

entry! {
    fn rdma_get_dst_port(id: *mut rdma_cm_id) -> value u16 = 0, {
        // SAFETY: by the man page an id.
        unsafe { if id.is_null() { 0 } else { port_of(&raw const (*id).route.addr.dst_storage) } }
    }
}

#[cfg(test)]
mod tests {
    use super::bounded;

    #[test]
    fn a_backlog_has_a_bound() {
        assert_eq!([-1, 0, 1, 1024, 1025, i32::MAX].map(bounded), [1024, 1024, 1, 1024, 1024, 1024]);
    }
}
