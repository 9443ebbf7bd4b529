//! Multicast groups: rdma_join_multicast(3), rdma_join_multicast_ex(3), rdma_leave_multicast(3).

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_abi::verbs::IBV_QPT_UD;
use ferroce_entry::call::{Outcome, Refusal, at};
use ferroce_entry::entry;
use libc::sockaddr;

use crate::abi::*;
use crate::address;
use crate::block::IdBlock;
use crate::group::{CmGroup, Joined};
use crate::id::IdStep;
use crate::news::IdNews;
use crate::place::gid;
use crate::sync;

/// # Safety
/// `id` is null or an id, `address` null or an address.
unsafe fn join(
    id: *mut rdma_cm_id,
    address: *const sockaddr,
    context: *mut c_void,
    is_send_only: bool,
) -> Outcome<c_int> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    // SAFETY: the caller's promise.
    let (shared, device, qp_type) =
        unsafe { (IdBlock::of(id)?, IdBlock::block(id)?.device()?, (*id).qp_type) };
    // SAFETY: the caller's promise.
    let address = unsafe { address::read(address, "addr") }?;
    if qp_type != IBV_QPT_UD {
        return Err(Refusal::invalid("groups are for datagrams: an id of RDMA_PS_UDP"));
    }
    if address.ip().is_unspecified() {
        return Err(Refusal::invalid("the group's address is unspecified"));
    }
    let mgid = gid(address.ip());
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    {
        let mut state = shared.state.lock();
        if !matches!(
            state.step,
            IdStep::Bound | IdStep::AddrResolved | IdStep::RouteResolved | IdStep::Connecting
        ) {
            return Err(Refusal::invalid(format!(
                "the id is {:?}: bind it, or resolve an address",
                state.step
            )));
        }
        state.groups.push(CmGroup { number, address, mgid, qp: None });
    }
    let place = shared.state.lock().place;
    let of_source = |source: SocketAddr| {
        device.gid_of(source.ip(), address::scope_of(source)).map(|(index, _)| index as u8)
    };
    let sgid_index =
        place.way.map(|way| way.sgid_index).or_else(|| place.source.and_then(of_source)).unwrap_or(0);
    shared.push(IdNews::Joined(Joined { number, mgid, context, is_send_only, sgid_index }));
    // SAFETY: the caller's promise.
    unsafe { sync::complete(id, "rdma_join_multicast") }
}

entry! {
    fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> minus_one {
        // SAFETY: by the man page an id and an address.
        unsafe { join(id, addr, context, false) }
    }
}

entry! {
    fn rdma_join_multicast_ex(
        id: *mut rdma_cm_id,
        mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
        context: *mut c_void,
    ) -> minus_one {
        const KNOWN: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        // SAFETY: by the man page an id and the caller's structure.
        unsafe {
            let attr = at(mc_join_attr, "mc_join_attr")?;
            if attr.comp_mask & !KNOWN != 0 {
                return Err(Refusal::new(libc::ENOTSUP, format!("comp_mask {:#x}: unknown bits", attr.comp_mask)));
            }
            if attr.comp_mask != KNOWN {
                return Err(Refusal::invalid("comp_mask: RDMA_CM_JOIN_MC_ATTR_ADDRESS and _JOIN_FLAGS, both"));
            }
            let is_send_only = match attr.join_flags {
                RDMA_MC_JOIN_FLAG_FULLMEMBER => false,
                RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => true,
                other => return Err(Refusal::invalid(format!("join_flags {other}: full member, or for sending only"))),
            };
            join(id, attr.addr, context, is_send_only)
        }
    }
}

/// Groups are equal if address, port and scope are. For IPv4, address and port suffice.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    one == other
        || one.port() == other.port()
            && matches!((one.ip(), other.ip()), (IpAddr::V4(a), IpAddr::V4(b)) if a == b)
}

entry! {
    fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> minus_one {
        // SAFETY: by the man page an id and an address.
        let (shared, address) = unsafe { (IdBlock::of(id)?, address::read(addr, "addr")?) };
        let (group, queue) = {
            let mut state = shared.state.lock();
            let place = state.groups.iter().position(|group| is_same(group.address, address));
            (place.map(|place| state.groups.remove(place)), state.queue.clone())
        };
        let Some(group) = group else {
            return Err(Refusal::new(libc::EADDRNOTAVAIL, format!("the id isn't in the group {}", address.ip())));
        };
        // A program that waits for a channel to be readable isn't woken by a join that it has cancelled.
        queue.withdraw(|queued| {
            let joined = matches!(&*queued.news, IdNews::Joined(joined) if joined.number == group.number);
            joined && Arc::ptr_eq(&queued.id, &shared)
        });
        group.leave();
        Ok(0)
    }
}
