//! What the library does in the thread that fetches an event, before the program has it: it shows what is known of the id, makes
//! the id of a request, and leads the queue pair through the connection.

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;

use ferroce_connect::{
    Incoming, IncomingLookup, RejectReason, Reply, Route, SidrReply, SidrRequest, SidrStatus,
};
use ferroce_ibverbs::abi::{ibv_ah_attr, ibv_sa_path_rec};
use ferroce_ibverbs::call::{Outcome, Refusal};

use crate::abi::*;
use crate::address;
use crate::agreed::{self, Agreed, Own, PACKET_LIFE};
use crate::bind::{self, Way};
use crate::channel::Queued;
use crate::connect;
use crate::devices;
use crate::event::{EventBlock, News, no_param, no_ud};
use crate::explained;
use crate::id::{Id, IdBlock, Step};
use crate::multicast;
use crate::qp;

/// Makes of queued news what the program gets; `None` where it gets nothing.
///
/// # Safety
/// Called from a function that the program has called on a channel of its own.
pub(crate) unsafe fn deliver(queued: Queued) -> Option<*mut rdma_cm_event> {
    let Queued { id: shared, news } = queued;
    let id = shared.program();
    let mut block = EventBlock::new(shared.clone(), id);
    // The queue has dropped its reference.
    let Some(news) = Arc::into_inner(news) else {
        shared.unacked.untold();
        return None;
    };
    // SAFETY: the id isn't destroyed before this event is acknowledged.
    let wanted = unsafe { fill(&mut block, &shared, id, news) };
    match wanted {
        Ok(true) => Some(block.give()),
        Ok(false) => {
            shared.unacked.untold();
            None
        }
        Err(refusal) => {
            tracing::warn!("an event is dropped: {}", refusal.why);
            shared.unacked.untold();
            None
        }
    }
}

/// Fills an event in, and does what the library does at this moment. False: the program isn't told.
///
/// # Safety
/// `id` is the id that `shared` belongs to.
unsafe fn fill(block: &mut EventBlock, shared: &Arc<Id>, id: *mut rdma_cm_id, news: News) -> Outcome<bool> {
    match news {
        News::AddrResolved => {
            let place = shared.state.lock().place;
            // SAFETY: the caller's promise.
            unsafe { show_place(id, &place)? };
            block.set(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
        }
        News::AddrError(status) => {
            // SAFETY: the caller's promise.
            unsafe { (*id).route.addr.src_storage.ss_family = 0 };
            // SAFETY: the caller's promise.
            unsafe { explained::unresolved(id, status) };
            block.set(RDMA_CM_EVENT_ADDR_ERROR, status);
        }
        News::RouteResolved => {
            if let Some(way) = shared.state.lock().place.way {
                // SAFETY: the caller's promise.
                unsafe { show_path(id, &way) };
            }
            block.set(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
        }
        // SAFETY: the caller's promise.
        News::Request(incoming) => unsafe { requested(block, id, *incoming)? },
        // SAFETY: the caller's promise.
        News::Lookup(incoming) => unsafe { looked_up(block, id, *incoming)? },
        // SAFETY: the caller's promise.
        News::Response(reply) => unsafe { responded(block, shared, id, &reply) },
        News::Established => block.set(RDMA_CM_EVENT_ESTABLISHED, 0),
        News::Rejected(reject) => {
            if shared.state.lock().connect_failed {
                return Ok(false);
            }
            // SAFETY: the caller's promise. What can't be flushed has said why.
            let _ = unsafe { qp::fail(id) };
            // SAFETY: the caller's promise.
            unsafe { explained::rejected(id, reject.reason) };
            block.set(RDMA_CM_EVENT_REJECTED, reject.reason.0.into());
            block.set_conn(no_param(), &reject.private_data);
        }
        News::Unreachable => {
            // SAFETY: the caller's promise.
            unsafe { explained::unreachable(id) };
            block.set(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
        }
        News::Disconnected { timed_out } => {
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
        News::TimewaitExit => block.set(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        News::Answer(reply) => answered(block, shared, &reply),
        News::DeviceRemoval => block.set(RDMA_CM_EVENT_DEVICE_REMOVAL, 0),
        News::AddrChange => block.set(RDMA_CM_EVENT_ADDR_CHANGE, 0),
        News::Joined(joined) => {
            // SAFETY: the caller's promise.
            let Some((ud, status)) = (unsafe { multicast::attach(shared, id, &joined) }) else {
                return Ok(false);
            };
            let event =
                if status == 0 { RDMA_CM_EVENT_MULTICAST_JOIN } else { RDMA_CM_EVENT_MULTICAST_ERROR };
            block.set(event, status);
            block.c.param.ud = ud;
        }
        News::AddrInfo(status) => {
            let event =
                if status == 0 { RDMA_CM_EVENT_ADDRINFO_RESOLVED } else { RDMA_CM_EVENT_ADDRINFO_ERROR };
            block.set(event, status);
        }
        News::User { status, arg } => {
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
unsafe fn show_place(id: *mut rdma_cm_id, place: &bind::Place) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let block = IdBlock::block(id)?;
        if let Some(way) = &place.way {
            block.attach(way.device)?;
            (*id).route.addr.ibaddr = rdma_ib_addr {
                sgid: bind::gid(way.route.from.ip()),
                dgid: bind::gid(way.route.to.ip()),
                pkey: u16::MAX,
            };
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
unsafe fn show_path(id: *mut rdma_cm_id, way: &Way) {
    /// What the kernel's flags say: for the communication manager, primary, both directions.
    const FLAGS: u8 = (IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL) as u8;
    /// `IB_SA_EQ`.
    const EXACTLY: u8 = 2;
    let lids = way.lids();
    let record = ibv_sa_path_rec {
        dgid: bind::gid(way.route.to.ip()),
        sgid: bind::gid(way.route.from.ip()),
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
unsafe fn child_of(listener: *mut rdma_cm_id, place: &bind::Place) -> Outcome<*mut rdma_cm_id> {
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
    listener: &Id,
    route: Route,
    mtu: u8,
) -> Outcome<bind::Place> {
    let device = devices::with_address(route.from.ip(), route.from.scope_id())?;
    let found = device.and_then(|device| {
        device.gid_of(route.from.ip(), route.from.scope_id()).map(|(index, _)| (device, index as u8))
    });
    let (device, sgid_index) = found.ok_or_else(|| {
        Refusal::new(libc::ENODEV, format!("{} is no longer the address of a device", route.from))
    })?;
    let port = listener.state.lock().place.source.map_or(0, |source| source.port());
    Ok(bind::Place {
        source: Some((header.destination, port).into()),
        destination: Some(header.source),
        way: Some(Way { device, route, sgid_index, mtu }),
    })
}

/// # Safety
/// `listener` is an id.
unsafe fn requested(block: &mut EventBlock, listener: *mut rdma_cm_id, incoming: Incoming) -> Outcome<()> {
    let Incoming { connection, request, header, local, remote } = incoming;
    connection.take();
    let path = &request.primary;
    let route = Route {
        from: local,
        to: remote,
        traffic_class: path.traffic_class,
        hop_limit: connect::HOP_LIMIT,
        flow_label: path.flow_label,
        sl: path.sl,
    };
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
        block.set_conn(param, &request.private_data[connect::HEADER..]);
        let shared = IdBlock::of(child)?;
        let mut state = shared.state.lock();
        state.step = Step::Connecting;
        state.place = place;
        state.connection = Some(Arc::new(connection));
        let own = Own {
            starting_psn: connect::starting_psn(),
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
    incoming: IncomingLookup,
) -> Outcome<()> {
    let IncomingLookup { connection, request, header, local, remote } = incoming;
    connection.take();
    let route = Route {
        from: local,
        to: remote,
        traffic_class: 0,
        hop_limit: connect::HOP_LIMIT,
        flow_label: 0,
        sl: 0,
    };
    // SAFETY: the caller's promise.
    unsafe {
        let place = place_of(&header, &*IdBlock::of(listener)?, route, 0)?;
        let child = child_of(listener, &place)?;
        block.set_ud(no_ud(), &request.private_data[SidrRequest::PRIVATE_DATA - connect::MOST_OF_LOOKUP..]);
        let shared = IdBlock::of(child)?;
        let mut state = shared.state.lock();
        state.step = Step::Connecting;
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
unsafe fn responded(block: &mut EventBlock, shared: &Arc<Id>, id: *mut rdma_cm_id, reply: &Reply) {
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
            connect::check_options(reply.ece).and_then(|()| qp::connect(id, reply.ece)).and_then(|()| {
                match shared.connection() {
                    Some(connection) => Ok(connection.establish()?),
                    None => Err(Refusal::invalid("there is no connection")),
                }
            });
        match made {
            Ok(()) => block.set(RDMA_CM_EVENT_ESTABLISHED, 0),
            Err(refusal) => {
                tracing::warn!("the queue pair can't be connected: {}", refusal.why);
                shared.state.lock().connect_failed = true;
                // What can't be flushed has said why; a peer that has gone needn't be told.
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
fn answered(block: &mut EventBlock, shared: &Arc<Id>, reply: &SidrReply) {
    let ah_attr = match (reply.status, shared.state.lock().place.way) {
        (SidrStatus::SUCCESS, Some(way)) => agreed::address_of(&way),
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
