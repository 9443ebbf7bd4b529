//! Address handles: the way from a local address to a peer's, with the GRH that RoCE needs.

use std::ffi::{c_int, c_uint};
use std::net::IpAddr;
use std::ptr::NonNull;

use crate::abi::*;
use crate::verbs::ConnectionId;
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal, errno, zero};

/// An address handle.
#[derive(Debug)]
pub(crate) struct AddressHandle(NonNull<ibv_ah>);

// SAFETY: any thread may use and destroy it.
unsafe impl Send for AddressHandle {}

/// How many routers a datagram may pass.
const HOP_LIMIT: u8 = 64;

impl AddressHandle {
    /// From the address that `id` is bound to.
    pub(crate) fn new(id: &ConnectionId, peer: IpAddr) -> Outcome<Self> {
        let mut attr = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: gid_of(peer),
                sgid_index: source_index(id)?,
                hop_limit: HOP_LIMIT,
                ..ibv_global_route::default()
            },
            is_global: 1,
            port_num: port_of(id),
            ..ibv_ah_attr::default()
        };
        // SAFETY: a live domain, attributes that are copied.
        let handle = unsafe { ibv_create_ah(id.pd(), &mut attr) };
        NonNull::new(handle).map(Self).ok_or_else(|| SocketRefusal::last("no address handle"))
    }

    pub(crate) fn raw(&self) -> *mut ibv_ah {
        self.0.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: live and ours.
        unsafe { ibv_destroy_ah(self.raw()) };
    }
}

fn port_of(id: &ConnectionId) -> u8 {
    // SAFETY: a live id.
    unsafe { (*id.raw()).port_num }
}

/// The GID of an address of RoCEv2.
fn gid_of(address: IpAddr) -> ibv_gid {
    let v6 = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    ibv_gid { raw: v6.octets() }
}

/// The place of the id's address in its port's table of GIDs, that of RoCEv2 if there are several.
fn source_index(id: &ConnectionId) -> Outcome<u8> {
    let context = id.context()?;
    // SAFETY: a live id.
    let wanted = unsafe { (*id.raw()).route.addr.ibaddr.sgid };
    let mut found = None;
    for index in 0..=u8::MAX {
        let mut entry = ibv_gid_entry::default();
        // SAFETY: a live device, a place for an entry of this length.
        let result = unsafe {
            _ibv_query_gid_ex(
                context,
                port_of(id).into(),
                index.into(),
                &mut entry,
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        match result {
            0 if entry.gid.bytes() == wanted.bytes() => {
                found = Some(index);
                if entry.gid_type == IBV_GID_TYPE_ROCE_V2 as u32 {
                    break;
                }
            }
            0 => {}
            // An empty place; past the table there is another error.
            _ if result == libc::ENODATA || errno() == libc::ENODATA => {}
            _ => break,
        }
    }
    found.ok_or_else(|| SocketRefusal::new(libc::ENODEV, "the address has no GID"))
}

/// The longest datagram that the id's port carries.
pub(crate) fn mtu(id: &ConnectionId) -> Outcome<usize> {
    let mut port = ibv_port_attr::default();
    // SAFETY: a live device, a place for the attributes.
    let result = unsafe { ibv_query_port(id.context()?, port_of(id), &mut port) };
    zero(result, "ibv_query_port")?;
    let exponent = c_uint::try_from(port.active_mtu).unwrap_or(0).clamp(1, 5);
    Ok(128 << exponent as c_int)
}
