//! Multicast groups: rdma_join_multicast(3), rdma_join_multicast_ex(3), rdma_leave_multicast(3).

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferroce_ibverbs::abi::{IBV_QPT_UD, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp};
use ferroce_ibverbs::call::{Outcome, Refusal, at};
use ferroce_ibverbs::{calls, entry};
use ferroce_netdev::LinkLayer;
use libc::sockaddr;

use crate::abi::*;
use crate::address;
use crate::bind;
use crate::connect::HOP_LIMIT;
use crate::event::{self, News};
use crate::id::{Id, IdBlock, Step};

/// The QPN of groups.
const MULTICAST_QPN: u32 = 0xff_ffff;

/// The MLID that the group has, where ports have LIDs.
fn mlid_of(mgid: ibv_gid) -> u16 {
    match LinkLayer::current() {
        LinkLayer::Ethernet => 0,
        LinkLayer::InfiniBand => ferroce_netdev::mlid_of(mgid.bytes()),
    }
}

/// A group that an id is in, or is about to be.
pub(crate) struct Group {
    number: u64,
    address: SocketAddr,
    mgid: ibv_gid,
    /// The queue pair that is attached to it.
    qp: Option<*mut ibv_qp>,
}

// SAFETY: a pointer to an object of the library, which any thread may use.
unsafe impl Send for Group {}

impl Group {
    /// Leaves it.
    pub(crate) fn leave(self) {
        if let Some(qp) = self.qp {
            // SAFETY: a queue pair, unless the program has destroyed it before it left; the call finds that out.
            unsafe { calls::ibv_detach_mcast(qp, &raw const self.mgid, mlid_of(self.mgid)) };
        }
    }
}

/// A group was joined: for the thread that fetches the event.
pub(crate) struct Joined {
    number: u64,
    mgid: ibv_gid,
    context: *mut c_void,
    is_send_only: bool,
    sgid_index: u8,
}

// SAFETY: the pointer is the program's, and is only given back to it.
unsafe impl Send for Joined {}
// SAFETY: as above.
unsafe impl Sync for Joined {}

/// Attaches the id's queue pair; what the event says, and its status.
///
/// # Safety
/// `id` is the id that `shared` belongs to.
pub(crate) unsafe fn attach(
    shared: &Arc<Id>,
    id: *mut rdma_cm_id,
    joined: &Joined,
) -> Option<(rdma_ud_param, c_int)> {
    let is_left = || shared.state.lock().groups.iter().all(|group| group.number != joined.number);
    if is_left() {
        return None;
    }
    let mut ud = event::no_ud();
    ud.private_data = joined.context;
    // SAFETY: the caller's promise.
    let qp = unsafe { (*id).qp };
    if !qp.is_null() && !joined.is_send_only {
        // SAFETY: the caller's promise.
        if unsafe { calls::ibv_attach_mcast(qp, &raw const joined.mgid, mlid_of(joined.mgid)) } != 0 {
            shared.state.lock().groups.retain(|group| group.number != joined.number);
            return Some((ud, -1));
        }
        let mut state = shared.state.lock();
        let group = state.groups.iter_mut().find(|group| group.number == joined.number);
        let is_member = group.map(|group| group.qp = Some(qp)).is_some();
        drop(state);
        if !is_member {
            // Another thread has left the group meanwhile.
            // SAFETY: the caller's promise.
            unsafe { calls::ibv_detach_mcast(qp, &raw const joined.mgid, mlid_of(joined.mgid)) };
            return None;
        }
    }
    ud.qp_num = MULTICAST_QPN;
    ud.qkey = RDMA_UDP_QKEY;
    ud.ah_attr = ibv_ah_attr {
        grh: ibv_global_route {
            dgid: joined.mgid,
            flow_label: 0,
            sgid_index: joined.sgid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
        },
        dlid: mlid_of(joined.mgid),
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: 1,
    };
    Some((ud, 0))
}

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
    let mgid = bind::gid(address.ip());
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    {
        let mut state = shared.state.lock();
        if !matches!(state.step, Step::Bound | Step::AddrResolved | Step::RouteResolved | Step::Connecting) {
            return Err(Refusal::invalid(format!(
                "the id is {:?}: bind it, or resolve an address",
                state.step
            )));
        }
        state.groups.push(Group { number, address, mgid, qp: None });
    }
    let place = shared.state.lock().place;
    let of_source = |source: SocketAddr| {
        device.gid_of(source.ip(), address::scope_of(source)).map(|(index, _)| index as u8)
    };
    let sgid_index =
        place.way.map(|way| way.sgid_index).or_else(|| place.source.and_then(of_source)).unwrap_or(0);
    shared.push(News::Joined(Joined { number, mgid, context, is_send_only, sgid_index }));
    // SAFETY: the caller's promise.
    unsafe { crate::sync::complete(id, "rdma_join_multicast") }
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

/// A group is known by all that its address says.
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
            let joined = matches!(&*queued.news, News::Joined(joined) if joined.number == group.number);
            joined && Arc::ptr_eq(&queued.id, &shared)
        });
        group.leave();
        Ok(0)
    }
}
