//! What the library does in the thread that fetches an event, before the program has it: it shows what is known of the id, makes
//! the id of a request, and leads the queue pair through the connection.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;

use ferroce_abi::verbs::{ibv_ah_attr, ibv_global_route, ibv_sa_path_rec};
use ferroce_connect::{
    CmEvent, ConnectionEvent, ConnectionRoute, Incoming, RejectReason, Reply, Request, SidrReply,
    SidrRequest, SidrStatus,
};
use ferroce_entry::call::{Outcome, Refusal};
use ferroce_ibverbs::calls;

use crate::abi::*;
use crate::address;
use crate::agreed::{self, Agreed, Own, PACKET_LIFE};
use crate::block::IdBlock;
use crate::devices;
use crate::event::{EventBlock, no_param, no_ud};
use crate::explained;
use crate::group::{Joined, mlid_of};
use crate::id::{CmId, IdStep, QueuedEvent};
use crate::news::IdNews;
use crate::place::{HOP_LIMIT, IdPlace, PeerRoute, gid};
use crate::qp;

/// Bytes of a request with the addresses of the requester, before the consumer's.
const HEADER: usize = 36;
/// Bytes of private data in a lookup.
const MOST_OF_LOOKUP: usize = 180;
/// The QPN of groups.
const MULTICAST_QPN: u32 = 0xff_ffff;

/// Makes the program's event of queued news; `None` if the program gets no event.
///
/// # Safety
/// Called from a function that the program has called on a channel of its own.
pub(crate) unsafe fn deliver(queued: QueuedEvent) -> Option<*mut rdma_cm_event> {
    let QueuedEvent { id: shared, news } = queued;
    let id = shared.program();
    let mut block = EventBlock::new(shared.clone(), id);
    // The queue has dropped its reference.
    let Some(news) = Arc::into_inner(news) else {
        shared.unacked.undelivered();
        return None;
    };
    // SAFETY: the id isn't destroyed before this event is acknowledged.
    let wanted = unsafe { fill(&mut block, &shared, id, news) };
    match wanted {
        Ok(true) => Some(block.give()),
        Ok(false) => {
            shared.unacked.undelivered();
            None
        }
        Err(refusal) => {
            tracing::warn!("an event is dropped: {}", refusal.why);
            shared.unacked.undelivered();
            None
        }
    }
}

/// Fills an event in, and does what the library does at this moment. False: the program gets no event.
///
/// # Safety
/// `id` is the id that `shared` belongs to.
unsafe fn fill(
    block: &mut EventBlock,
    shared: &Arc<CmId>,
    id: *mut rdma_cm_id,
    news: IdNews,
) -> Outcome<bool> {
    match news {
        IdNews::AddrResolved => {
            let place = shared.state.lock().place;
            // SAFETY: the caller's promise.
            unsafe { show_place(id, &place)? };
            block.set(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
        }
        IdNews::AddrError(status) => {
            // SAFETY: the caller's promise.
            unsafe { (*id).route.addr.src_storage.ss_family = 0 };
            // SAFETY: the caller's promise.
            unsafe { explained::unresolved(id, status) };
            block.set(RDMA_CM_EVENT_ADDR_ERROR, status);
        }
        IdNews::RouteResolved => {
            if let Some(way) = shared.state.lock().place.way {
                // SAFETY: the caller's promise.
                unsafe { show_path(id, &way) };
            }
            block.set(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
        }
        // SAFETY: the caller's promise.
        IdNews::Cm(CmEvent::Request(incoming)) => unsafe { requested(block, id, incoming)? },
        // SAFETY: the caller's promise.
        IdNews::Cm(CmEvent::Lookup(incoming)) => unsafe { looked_up(block, id, incoming)? },
        // SAFETY: the caller's promise.
        IdNews::Cm(CmEvent::Of(ConnectionEvent::Reply(reply))) => unsafe {
            responded(block, shared, id, &reply)
        },
        IdNews::Cm(CmEvent::Of(ConnectionEvent::Established)) => block.set(RDMA_CM_EVENT_ESTABLISHED, 0),
        IdNews::Cm(CmEvent::Of(ConnectionEvent::Rejected(reject))) => {
            if shared.state.lock().connect_failed {
                return Ok(false);
            }
            // SAFETY: the caller's promise. A failure is logged.
            let _ = unsafe { qp::fail(id) };
            // SAFETY: the caller's promise.
            unsafe { explained::rejected(id, reject.reason) };
            block.set(RDMA_CM_EVENT_REJECTED, reject.reason.0.into());
            block.set_conn(no_param(), &reject.private_data);
        }
        IdNews::Cm(CmEvent::Of(ConnectionEvent::Unreachable)) => {
            // SAFETY: the caller's promise.
            unsafe { explained::unreachable(id) };
            block.set(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
        }
        IdNews::Cm(CmEvent::Of(ConnectionEvent::Disconnected { timed_out })) => {
            if shared.state.lock().connect_failed {
                return Ok(false);
            }
            // A program that is killed now couldn't agree later, and its peer would wait. What was over already stays so.
            if let Some(connection) = shared.connection() {
                let _ = connection.disconnect();
                // A program that polls next finds all that the peer has sent with success.
                connection.wait_for_receives();
            }
            block.set(RDMA_CM_EVENT_DISCONNECTED, if timed_out { -libc::ETIMEDOUT } else { 0 });
        }
        IdNews::Cm(CmEvent::Of(ConnectionEvent::TimewaitExit)) => block.set(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        IdNews::Cm(CmEvent::Of(ConnectionEvent::Answer(reply))) => answered(block, shared, &reply),
        IdNews::DeviceRemoval => block.set(RDMA_CM_EVENT_DEVICE_REMOVAL, 0),
        IdNews::AddrChange => block.set(RDMA_CM_EVENT_ADDR_CHANGE, 0),
        IdNews::Joined(joined) => {
            // SAFETY: the caller's promise.
            let Some((ud, status)) = (unsafe { attach(shared, id, &joined) }) else {
                return Ok(false);
            };
            let event =
                if status == 0 { RDMA_CM_EVENT_MULTICAST_JOIN } else { RDMA_CM_EVENT_MULTICAST_ERROR };
            block.set(event, status);
            block.c.param.ud = ud;
        }
        IdNews::AddrInfo(status) => {
            let event =
                if status == 0 { RDMA_CM_EVENT_ADDRINFO_RESOLVED } else { RDMA_CM_EVENT_ADDRINFO_ERROR };
            block.set(event, status);
        }
        IdNews::User { status, arg } => {
            block.set(RDMA_CM_EVENT_USER, status);
            block.c.param.arg = arg;
        }
    }
    Ok(true)
}

/// Shows the program the addresses of an id and binds it to the device.
///
/// # Safety
/// `id` is an id.
unsafe fn show_place(id: *mut rdma_cm_id, place: &IdPlace) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let block = IdBlock::block(id)?;
        if let Some(way) = &place.way {
            block.attach(way.device)?;
            (*id).route.addr.ibaddr =
                rdma_ib_addr { sgid: gid(way.route.from.ip()), dgid: gid(way.route.to.ip()), pkey: u16::MAX };
        }
        if let Some(source) = place.source {
            (*id).route.addr.src_storage = address::to_c(source).0;
        }
        if let Some(destination) = place.destination {
            (*id).route.addr.dst_storage = address::to_c(destination).0;
        }
    }
    Ok(())
}

/// Shows the program the path that a connection takes.
///
/// # Safety
/// `id` is an id.
unsafe fn show_path(id: *mut rdma_cm_id, way: &PeerRoute) {
    /// The kernel's flags: for the communication manager, primary, both directions.
    const FLAGS: u8 = (IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL) as u8;
    /// `IB_SA_EQ`.
    const EXACTLY: u8 = 2;
    let lids = way.lids();
    let record = ibv_sa_path_rec {
        dgid: gid(way.route.to.ip()),
        sgid: gid(way.route.from.ip()),
        dlid: lids.map_or(0, |lids| lids.to).to_be(),
        slid: lids.map_or(0, |lids| lids.from).to_be(),
        raw_traffic: 0,
        flow_label: way.route.flow_label.to_be(),
        hop_limit: way.route.hop_limit,
        traffic_class: way.route.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: u16::MAX,
        sl: way.route.sl,
        mtu_selector: EXACTLY,
        mtu: way.mtu,
        rate_selector: EXACTLY,
        rate: 0,
        packet_life_time_selector: EXACTLY,
        packet_life_time: PACKET_LIFE,
        preference: FLAGS,
    };
    // SAFETY: the caller's promise. The record is freed with the id; the place of an earlier one is used again.
    unsafe {
        if (*id).route.path_rec.is_null() {
            (*id).route.path_rec = Box::into_raw(Box::new(record));
        } else {
            (*id).route.path_rec.write(record);
        }
        (*id).route.num_paths = 1;
    }
}

/// The new id of a request that a listener has got, and its block.
///
/// # Safety
/// `listener` is an id.
unsafe fn child_of(listener: *mut rdma_cm_id, place: &IdPlace) -> Outcome<*mut rdma_cm_id> {
    // SAFETY: the caller's promise.
    unsafe {
        // That of a synchronous listener is synchronous, too.
        let is_sync = IdBlock::of(listener)?.is_sync();
        let channel = if is_sync { null_mut() } else { (*listener).channel };
        let child = IdBlock::allocate(channel, (*listener).context, (*listener).ps, (*listener).qp_type)?;
        if let Err(refusal) = show_place(child, place) {
            IdBlock::destroy(child, "rdma_get_cm_event")?;
            return Err(refusal);
        }
        Ok(child)
    }
}

/// Where the new id of a request is.
fn place_of(
    header: &ferroce_connect::IpHeader,
    listener: &CmId,
    route: ConnectionRoute,
    mtu: u8,
) -> Outcome<IdPlace> {
    let device = devices::with_address(route.from.ip(), route.from.scope_id())?;
    let found = device.and_then(|device| {
        device.gid_of(route.from.ip(), route.from.scope_id()).map(|(index, _)| (device, index as u8))
    });
    let (device, sgid_index) = found.ok_or_else(|| {
        Refusal::new(libc::ENODEV, format!("{} is no longer the address of a device", route.from))
    })?;
    let port = listener.state.lock().place.source.map_or(0, |source| source.port());
    Ok(IdPlace {
        source: Some((header.destination, port).into()),
        destination: Some(header.source),
        way: Some(PeerRoute { device, route, sgid_index, mtu }),
    })
}

/// # Safety
/// `listener` is an id.
unsafe fn requested(
    block: &mut EventBlock,
    listener: *mut rdma_cm_id,
    incoming: Incoming<Request>,
) -> Outcome<()> {
    let Incoming { connection, request, header, route } = incoming;
    connection.take();
    let route = ConnectionRoute { hop_limit: HOP_LIMIT, ..route };
    // SAFETY: the caller's promise.
    unsafe {
        let place = place_of(&header, &*IdBlock::of(listener)?, route, request.path_mtu)?;
        let child = child_of(listener, &place)?;
        let way = place.way.expect("a request came some way");
        show_path(child, &way);
        let param = rdma_conn_param {
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            flow_control: request.flow_control.into(),
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            srq: request.srq.into(),
            qp_num: request.qpn,
            ..no_param()
        };
        block.set_conn(param, &request.private_data[HEADER..]);
        let shared = IdBlock::of(child)?;
        let mut state = shared.state.lock();
        state.step = IdStep::Connecting;
        state.place = place;
        state.connection = Some(Arc::new(connection));
        let own = Own {
            starting_psn: agreed::starting_psn(),
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
        };
        state.agreed = Agreed::Wanted(request, own);
        drop(state);
        (block.c.id, block.c.listen_id) = (child, listener);
    }
    block.set(RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    Ok(())
}

/// # Safety
/// `listener` is an id.
unsafe fn looked_up(
    block: &mut EventBlock,
    listener: *mut rdma_cm_id,
    incoming: Incoming<SidrRequest>,
) -> Outcome<()> {
    let Incoming { connection, request, header, route } = incoming;
    connection.take();
    let route = ConnectionRoute { hop_limit: HOP_LIMIT, ..route };
    // SAFETY: the caller's promise.
    unsafe {
        let place = place_of(&header, &*IdBlock::of(listener)?, route, 0)?;
        let child = child_of(listener, &place)?;
        block.set_ud(no_ud(), &request.private_data[SidrRequest::PRIVATE_DATA - MOST_OF_LOOKUP..]);
        let shared = IdBlock::of(child)?;
        let mut state = shared.state.lock();
        state.step = IdStep::Connecting;
        state.place = place;
        state.connection = Some(Arc::new(connection));
        drop(state);
        (block.c.id, block.c.listen_id) = (child, listener);
    }
    block.set(RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    Ok(())
}

/// The peer has accepted. With a queue pair of the library's the connection is made now, by the thread that fetches the event.
///
/// # Safety
/// `id` is the id that `shared` belongs to.
unsafe fn responded(block: &mut EventBlock, shared: &Arc<CmId>, id: *mut rdma_cm_id, reply: &Reply) {
    let param = rdma_conn_param {
        responder_resources: reply.initiator_depth,
        initiator_depth: reply.responder_resources,
        flow_control: reply.flow_control.into(),
        rnr_retry_count: reply.rnr_retry_count,
        srq: reply.srq.into(),
        qp_num: reply.qpn,
        ..no_param()
    };
    block.set_conn(param, &reply.private_data);
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).qp.is_null() {
            block.set(RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
            return;
        }
        let made =
            qp::check_options(reply.ece).and_then(|()| qp::connect(id, reply.ece)).and_then(
                |()| match shared.connection() {
                    Some(connection) => Ok(connection.establish()?),
                    None => Err(Refusal::invalid("there is no connection")),
                },
            );
        match made {
            Ok(()) => block.set(RDMA_CM_EVENT_ESTABLISHED, 0),
            Err(refusal) => {
                tracing::warn!("the queue pair can't be connected: {}", refusal.why);
                shared.state.lock().connect_failed = true;
                // A failed flush is logged; a peer that has gone needs no reject.
                let _ = qp::fail(id);
                if let Some(connection) = shared.connection() {
                    let _ = connection.reject(RejectReason::CONSUMER, &[]);
                }
                block.set(RDMA_CM_EVENT_CONNECT_ERROR, -refusal.errno);
            }
        }
    }
}

/// A lookup has been answered.
fn answered(block: &mut EventBlock, shared: &Arc<CmId>, reply: &SidrReply) {
    let ah_attr = match (reply.status, shared.state.lock().place.way) {
        (SidrStatus::SUCCESS, Some(way)) => way.ah_attr(),
        // SAFETY: numbers only.
        _ => unsafe { zeroed::<ibv_ah_attr>() },
    };
    if reply.status == SidrStatus::SUCCESS {
        block.set(RDMA_CM_EVENT_ESTABLISHED, 0);
    } else {
        block.set(RDMA_CM_EVENT_UNREACHABLE, reply.status.0.into());
    }
    let param = rdma_ud_param { ah_attr, qp_num: reply.qpn, qkey: reply.qkey, ..no_ud() };
    block.set_ud(param, &reply.private_data);
}

/// Attaches the id's queue pair to the group; the event's parameters and status.
///
/// # Safety
/// `id` is the id that `shared` belongs to.
unsafe fn attach(shared: &Arc<CmId>, id: *mut rdma_cm_id, joined: &Joined) -> Option<(rdma_ud_param, c_int)> {
    let is_left = || shared.state.lock().groups.iter().all(|group| group.number != joined.number);
    if is_left() {
        return None;
    }
    let mut ud = no_ud();
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
