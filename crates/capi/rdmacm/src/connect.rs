//! Connections: rdma_connect(3), rdma_accept(3), rdma_reject(3), rdma_establish(3), rdma_disconnect(3), rdma_notify(3), and
//! extended connection establishment.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ferroce_abi::verbs::*;
use ferroce_connect::{
    Accept, Connection, ConnectionQp, Ece, IpHeader, LookupReply, RejectReason, ServiceId, SidrStatus,
};
use ferroce_entry::call::{Outcome, Refusal, at, put};
use ferroce_entry::entry;
use ferroce_nic as nic;

use crate::abi::*;
use crate::agreed::{self, ACK_DELAY, Agreed, Own, starting_psn};
use crate::bind;
use crate::block::IdBlock;
use crate::early::{Early, PKEY, WantedConnection};
use crate::id::{CmId, IdStep};
use crate::place::PeerRoute;
use crate::qp;
use crate::sink::{self, sink};
use crate::sync;

/// Retries where the program sets none: the maximum.
const RETRIES: u8 = 7;

/// RDMA READs and atomics that a queue pair can have under way.
fn most_reads() -> u8 {
    nic::limits().max_qp_rd_atom.min(254) as u8
}

/// A program's parameters of a connection; `None` if it passes none.
///
/// # Safety
/// `param` is null or the caller's structure.
unsafe fn param_of(param: *const rdma_conn_param) -> Option<rdma_conn_param> {
    // SAFETY: the caller's promise.
    unsafe { param.as_ref() }.copied()
}

/// A program's private data.
///
/// # Safety
/// `data` is null or valid for `length` bytes.
unsafe fn private_data<'a>(data: *const c_void, length: u8) -> Outcome<&'a [u8]> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Refusal::invalid(format!("private_data is NULL, and its length {length}"))),
        // SAFETY: the caller's promise.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(data.cast(), length.into()) }),
    }
}

/// What the program wishes, within what the adapter can: 0xff and silence stand for the most.
fn reads(wished: Option<u8>, otherwise: u8, what: &str) -> Outcome<u8> {
    match wished {
        None | Some(RDMA_MAX_RESP_RES) => Ok(otherwise.min(most_reads())),
        Some(wished) if wished <= most_reads() => Ok(wished),
        Some(wished) => {
            Err(Refusal::invalid(format!("{what} {wished}: the device has {} at most", most_reads())))
        }
    }
}

/// The number of the queue pair for a connection, and whether it receives from an SRQ.
///
/// # Safety
/// `id` is an id.
unsafe fn queue_pair(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>) -> (u32, bool) {
    // SAFETY: the caller's promise.
    unsafe {
        match (*id).qp.as_ref() {
            Some(qp) => (qp.qp_num, !qp.srq.is_null()),
            None => param.map_or((0, false), |param| (param.qp_num & 0xff_ffff, param.srq != 0)),
        }
    }
}

/// The addresses of an id, in the form of a request.
fn header_of(shared: &CmId) -> Outcome<(IpHeader, ServiceId, PeerRoute)> {
    let state = shared.state.lock();
    let (Some(source), Some(destination), Some(way)) =
        (state.place.source, state.place.destination, state.place.way)
    else {
        return Err(Refusal::invalid("the route isn't resolved"));
    };
    let space = shared.space.ok_or_else(|| Refusal::invalid("RDMA_PS_IPOIB has no connections"))?;
    let header = IpHeader { source, destination: destination.ip() };
    Ok((header, ServiceId::of_port(space, destination.port()), way))
}

/// Asks for a connection.
///
/// # Safety
/// `id` is an id.
unsafe fn ask(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>, data: &[u8]) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let (shared, qp_type, (qpn, srq)) = unsafe { (IdBlock::of(id)?, (*id).qp_type, queue_pair(id, param)) };
    // SAFETY: the caller's promise.
    if param.is_none() && unsafe { (*id).qp.is_null() } {
        return Err(Refusal::invalid(
            "conn_param is NULL, and the id has no queue pair: set conn_param->qp_num, or create the id's queue pair",
        ));
    }
    let (header, service_id, way) = header_of(&shared)?;
    let options = shared.state.lock().options;
    let transport =
        bind::transport_of(qp_type).ok_or_else(|| Refusal::invalid("a datagram id has no connection"))?;
    let own = ConnectionQp {
        transport,
        qpn,
        srq,
        starting_psn: starting_psn(),
        pkey: PKEY,
        path_mtu: way.mtu,
        responder_resources: reads(
            param.map(|p| p.responder_resources),
            most_reads(),
            "responder_resources",
        )?,
        initiator_depth: reads(param.map(|p| p.initiator_depth), most_reads(), "initiator_depth")?,
        flow_control: param.is_none_or(|p| p.flow_control != 0),
        retry_count: param.map_or(RETRIES, |p| p.retry_count.min(RETRIES)),
        rnr_retry_count: param.map_or(RETRIES, |p| p.rnr_retry_count.min(RETRIES)),
        ack_timeout: agreed::ack_timeout(ACK_DELAY, agreed::packet_life(options.ack_timeout)),
    };
    // SAFETY: the caller's promise.
    let ece = unsafe { offered(id)? };
    let wanted =
        WantedConnection { way, service_id, header, qp: Some((own, ece)), private_data: data.to_vec() };
    begin(&shared, Agreed::Asked(own), wanted)
}

/// How long a request is repeated while no process has the port. The peer may be about to listen: perftest's `-R` lets both sides continue
/// at the same moment, one to listen and one to connect, and this side is faster than the kernel's.
const NOBODY_YET: Duration = Duration::from_millis(100);

/// The id goes from its route to a connection.
fn begin(shared: &Arc<CmId>, agreed: Agreed, wanted: WantedConnection) -> Outcome<()> {
    {
        let mut state = shared.state.lock();
        if state.step != IdStep::RouteResolved {
            return Err(Refusal::invalid(format!(
                "the id is {:?}: a connection begins with a resolved route",
                state.step
            )));
        }
        state.step = IdStep::Connecting;
        state.agreed = agreed;
        let until = Instant::now() + NOBODY_YET;
        state.early = Some(Early { wanted: wanted.clone(), until, refused: None });
    }
    shared.make_connection(|| wanted.ask(sink(shared))).inspect_err(|_| {
        let mut state = shared.state.lock();
        state.step = IdStep::RouteResolved;
        state.agreed = Agreed::Nothing;
        state.early = None;
    })
}

/// Looks up a datagram service.
fn look_up(shared: &Arc<CmId>, data: &[u8]) -> Outcome<()> {
    let (header, service_id, way) = header_of(shared)?;
    let wanted = WantedConnection { way, service_id, header, qp: None, private_data: data.to_vec() };
    begin(shared, Agreed::Nothing, wanted)
}

/// What this side offers beyond the specification: its queue pair's options, or those that the program has set.
///
/// # Safety
/// `id` is an id.
unsafe fn offered(id: *mut rdma_cm_id) -> Outcome<Ece> {
    // SAFETY: the caller's promise.
    unsafe {
        if (*id).qp.is_null() {
            return Ok(IdBlock::of(id)?.state.lock().own_ece);
        }
        Ok(qp::options_of(id))
    }
}

entry! {
    fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> minus_one {
        // SAFETY: by the man page an id and the caller's structure.
        unsafe {
            let shared = IdBlock::of(id)?;
            let param = param_of(conn_param);
            let given = match &param {
                Some(param) => private_data(param.private_data, param.private_data_len)?,
                None => &[],
            };
            let data = IdBlock::block(id)?.ep.private_data(given)?;
            if (*id).qp_type == IBV_QPT_UD {
                look_up(&shared, &data)?;
            } else {
                ask(id, param.as_ref(), &data)?;
            }
            sync::complete(id, "rdma_connect")
        }
    }
}

/// Accepts a request for a connection.
///
/// # Safety
/// `id` is an id.
unsafe fn accept(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>, data: &[u8]) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let (shared, (qpn, srq)) = unsafe { (IdBlock::of(id)?, queue_pair(id, param)) };
    let (request_ece, own, guid, request) = {
        let mut state = shared.state.lock();
        let Some(way) = state.place.way else { return Err(not_requested()) };
        let Agreed::Wanted(request, own) = &mut state.agreed else { return Err(not_requested()) };
        // What isn't asked of this side needn't be answered.
        *own = Own {
            starting_psn: own.starting_psn,
            responder_resources: reads(
                param.map(|p| p.responder_resources),
                request.initiator_depth,
                "responder_resources",
            )?,
            initiator_depth: reads(
                param.map(|p| p.initiator_depth),
                request.responder_resources,
                "initiator_depth",
            )?,
        };
        (request.ece, *own, way.device.guid(), request.clone())
    };
    let connection = shared.connection().ok_or_else(not_requested)?;
    // SAFETY: the caller's promise.
    let (has_qp, is_target) = unsafe { (!(*id).qp.is_null(), (*id).qp_type == IBV_QPT_XRC_RECV) };
    if has_qp {
        // SAFETY: the caller's promise.
        unsafe { qp::connect(id, request_ece)? };
    }
    // SAFETY: the caller's promise.
    let options = unsafe { offered(id)? };
    let ece = match request_ece.vendor_id {
        0 => Ece::default(),
        ferroce_netdev::VENDOR_ID => Ece { vendor_id: ferroce_netdev::VENDOR_ID, options: options.options },
        other if has_qp => Ece { vendor_id: other, options: 0 },
        other => Ece { vendor_id: other, options: options.options },
    };
    let answer = Accept {
        ca_guid: guid,
        qpn: if is_target { 0 } else { qpn },
        eecn: if is_target { qpn } else { 0 },
        srq,
        starting_psn: own.starting_psn,
        responder_resources: own.responder_resources,
        initiator_depth: own.initiator_depth,
        flow_control: param.map_or(request.flow_control, |p| p.flow_control != 0),
        rnr_retry_count: param.map_or(RETRIES, |p| p.rnr_retry_count.min(RETRIES)),
        target_ack_delay: ACK_DELAY,
        ece,
        private_data: data,
    };
    connection.accept(&answer, sink(&shared)).map_err(|error| {
        // SAFETY: the caller's promise. A failure is logged.
        let _ = unsafe { qp::fail(id) };
        Refusal::from(error)
    })
}

fn not_requested() -> Refusal {
    Refusal::invalid("the id has no request to answer")
}

/// Accepts a lookup.
///
/// # Safety
/// `id` is an id.
unsafe fn answer(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>, data: &[u8]) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let (shared, (qpn, _)) = unsafe { (IdBlock::of(id)?, queue_pair(id, param)) };
    let connection = requested(&shared)?;
    let reply = LookupReply {
        status: SidrStatus::SUCCESS,
        qpn,
        qkey: RDMA_UDP_QKEY,
        ece: Ece::default(),
        private_data: data,
    };
    Ok(connection.answer(&reply)?)
}

/// The connection of an id that has one, or wants one.
fn requested(shared: &CmId) -> Outcome<Arc<Connection>> {
    shared.connection().ok_or_else(not_requested)
}

entry! {
    fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> minus_one {
        // SAFETY: by the man page an id and the caller's structure.
        unsafe {
            IdBlock::block(id)?;
            let param = param_of(conn_param);
            let data = match &param {
                Some(param) => private_data(param.private_data, param.private_data_len)?,
                None => &[],
            };
            if (*id).qp_type == IBV_QPT_UD {
                // Nothing follows.
                answer(id, param.as_ref(), data).map(|()| 0)
            } else {
                accept(id, param.as_ref(), data)?;
                sync::complete(id, "rdma_accept")
            }
        }
    }
}

/// # Safety
/// `id` is null or an id, and `data` is null or valid for `length` bytes.
unsafe fn reject(
    id: *mut rdma_cm_id,
    data: *const c_void,
    length: u8,
    reason: RejectReason,
) -> Outcome<c_int> {
    // SAFETY: the caller's promise.
    let (shared, data, qp_type) = unsafe { (IdBlock::of(id)?, private_data(data, length)?, (*id).qp_type) };
    let connection = requested(&shared)?;
    if qp_type == IBV_QPT_UD {
        let refusal = LookupReply {
            status: SidrStatus::REJECT,
            qpn: 0,
            qkey: 0,
            ece: Ece::default(),
            private_data: data,
        };
        connection.answer(&refusal)?;
    } else {
        connection.reject(reason, data)?;
    }
    Ok(0)
}

entry! {
    fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> minus_one {
        // SAFETY: by the man page an id and the caller's bytes.
        unsafe { reject(id, data, length, RejectReason::CONSUMER) }
    }
}

entry! {
    fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> minus_one {
        // SAFETY: by the man page an id and the caller's bytes.
        unsafe { reject(id, data, length, RejectReason::VENDOR_OPTION) }
    }
}

entry! {
    fn rdma_establish(id: *mut rdma_cm_id) -> minus_one {
        // SAFETY: by the man page an id.
        let (shared, has_qp) = unsafe { (IdBlock::of(id)?, !(*id).qp.is_null()) };
        if has_qp {
            return Err(Refusal::invalid("the library has connected the id's queue pair by itself"));
        }
        requested(&shared)?.establish()?;
        Ok(0)
    }
}

entry! {
    fn rdma_disconnect(id: *mut rdma_cm_id) -> minus_one {
        // SAFETY: by the man page an id.
        unsafe {
            let shared = IdBlock::of(id)?;
            IdBlock::block(id)?.device()?;
            let connection = shared
                .connection()
                .ok_or_else(|| Refusal::invalid("the id was never connected"))?;
            qp::fail(id)?;
            let was_refused = sink::give_up(&shared);
            if (*id).qp_type == IBV_QPT_UD {
                return Ok(0);
            }
            shared.state.lock().agreed = Agreed::Over;
            connection.disconnect()?;
            // A synchronous id would wait for ever for the end of what the peer has rejected.
            if was_refused || connection.is_over() && shared.unread.load(Ordering::Acquire) == 0 {
                return Ok(0);
            }
            sync::complete(id, "rdma_disconnect")
        }
    }
}

entry! {
    fn rdma_notify(id: *mut rdma_cm_id, event: c_int) -> minus_one {
        // SAFETY: by the man page an id.
        let shared = unsafe { IdBlock::of(id) }?;
        if event != IBV_EVENT_COMM_EST {
            return Err(Refusal::invalid(format!("event {event}: only IBV_EVENT_COMM_EST is news to a connection")));
        }
        requested(&shared)?.notify_established()?;
        Ok(0)
    }
}

entry! {
    fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> minus_one {
        // SAFETY: by the man page an id and the caller's structure.
        unsafe {
            let shared = IdBlock::of(id)?;
            let ece = at(ece, "ece")?;
            if !(*id).qp.is_null() {
                return Err(Refusal::invalid("the id has a queue pair, whose options are announced"));
            }
            if ece.vendor_id == 0 || ece.comp_mask != 0 {
                return Err(Refusal::invalid("ece: a vendor_id, and a comp_mask of 0"));
            }
            shared.state.lock().own_ece = Ece { vendor_id: ece.vendor_id, options: ece.options };
        }
        Ok(0)
    }
}

entry! {
    fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> minus_one {
        // SAFETY: by the man page an id and the caller's structure.
        unsafe {
            let shared = IdBlock::of(id)?;
            if !(*id).qp.is_null() {
                return Err(Refusal::invalid("the id has a queue pair, whose options are in force"));
            }
            let peer = match &shared.state.lock().agreed {
                Agreed::Answered(_, reply) => reply.ece,
                Agreed::Wanted(request, _) => request.ece,
                _ => Ece::default(),
            };
            put(ece, "ece", ibv_ece { vendor_id: peer.vendor_id, options: peer.options, comp_mask: 0 })?;
        }
        Ok(0)
    }
}
