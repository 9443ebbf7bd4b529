//! Events: rdma_get_cm_event(3), rdma_ack_cm_event(3), and the work that is done in the thread that fetches one.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce_connect::{
    Event, Incoming, IncomingLookup, Reject, RejectReason, Reply, Route, SidrReply, SidrRequest, SidrStatus,
};
use ferroce_ibverbs::abi::{ibv_ah_attr, ibv_sa_path_rec};
use ferroce_ibverbs::call::{self, Outcome, Refusal, put};
use ferroce_ibverbs::calls::{Sleep, Woken};
use ferroce_ibverbs::entry;
use ferroce_nic as nic;

use crate::abi::*;
use crate::address;
use crate::agreed::{self, Agreed, Own, PACKET_LIFE};
use crate::bind::{self, Way};
use crate::channel::{self, ChannelBlock, Queue, Queued};
use crate::connect;
use crate::devices;
use crate::id::{Id, IdBlock, Step};
use crate::multicast;
use crate::qp;

/// What is new, until the program fetches it.
pub(crate) enum News {
    AddrResolved,
    AddrError(c_int),
    RouteResolved,
    /// A peer wants a connection.
    Request(Box<Incoming>),
    /// A peer looks up a datagram service.
    Lookup(Box<IncomingLookup>),
    Response(Box<Reply>),
    Established,
    Rejected(Box<Reject>),
    Unreachable,
    Disconnected {
        timed_out: bool,
    },
    TimewaitExit,
    Answer(Box<SidrReply>),
    DeviceRemoval,
    Joined(multicast::Joined),
    AddrInfo(c_int),
    User {
        status: c_int,
        arg: u64,
    },
}

/// Something has happened to the port or to the connection of `id`.
pub(crate) fn told(id: &Arc<Id>, event: Event) {
    let news = match event {
        Event::Request(incoming) => News::Request(Box::new(incoming)),
        Event::Lookup(incoming) => News::Lookup(Box::new(incoming)),
        Event::Reply(reply) => {
            let mut state = id.state.lock();
            state.agreed = match std::mem::replace(&mut state.agreed, Agreed::Nothing) {
                Agreed::Asked(own) => Agreed::Answered(own, reply.clone()),
                other => other,
            };
            drop(state);
            News::Response(reply)
        }
        Event::Established => News::Established,
        Event::Rejected(reject) => {
            id.state.lock().agreed = Agreed::Over;
            News::Rejected(reject)
        }
        Event::Unreachable => {
            id.state.lock().agreed = Agreed::Over;
            News::Unreachable
        }
        Event::Disconnected { timed_out } => {
            id.state.lock().agreed = Agreed::Over;
            News::Disconnected { timed_out }
        }
        Event::TimewaitExit => News::TimewaitExit,
        Event::Answer(reply) => News::Answer(reply),
    };
    id.push(news);
}

/// Room for private data behind an event.
const PRIVATE_DATA: usize = 256;

/// An event as the program has it.
#[repr(C)]
struct EventBlock {
    c: rdma_cm_event,
    /// Whom it counts against.
    counted: Arc<Id>,
    private_data: [u8; PRIVATE_DATA],
}

impl EventBlock {
    fn new(counted: Arc<Id>, id: *mut rdma_cm_id) -> Box<Self> {
        // SAFETY: numbers and pointers.
        let mut c: rdma_cm_event = unsafe { zeroed() };
        c.id = id;
        Box::new(Self { c, counted, private_data: [0; PRIVATE_DATA] })
    }

    /// Keeps private data with the event; where it is, and how long.
    fn keep(&mut self, data: &[u8]) -> (*const c_void, u8) {
        self.private_data[..data.len()].copy_from_slice(data);
        (self.private_data.as_ptr().cast(), data.len() as u8)
    }

    fn set(&mut self, event: c_int, status: c_int) {
        (self.c.event, self.c.status) = (event, status);
    }

    fn set_conn(&mut self, param: rdma_conn_param, data: &[u8]) {
        let (private_data, private_data_len) = self.keep(data);
        self.c.param.conn = rdma_conn_param { private_data, private_data_len, ..param };
    }

    fn set_ud(&mut self, param: rdma_ud_param, data: &[u8]) {
        let (private_data, private_data_len) = self.keep(data);
        self.c.param.ud = rdma_ud_param { private_data, private_data_len, ..param };
    }
}

fn no_param() -> rdma_conn_param {
    // SAFETY: numbers and a pointer.
    unsafe { zeroed() }
}

pub(crate) fn no_ud() -> rdma_ud_param {
    // SAFETY: numbers and a pointer.
    unsafe { zeroed() }
}

/// Acknowledges an event.
///
/// # Safety
/// `event` is null, or an event that isn't acknowledged.
pub(crate) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    if !event.is_null() {
        // SAFETY: made by `deliver` of a box.
        let block = unsafe { Box::from_raw(event.cast::<EventBlock>()) };
        block.counted.unacked.ack(1);
    }
}

/// Makes of queued news what the program gets; `None` where it gets nothing.
///
/// # Safety
/// Called from a function that the program has called on a channel of its own.
unsafe fn deliver(queued: Queued) -> Option<*mut rdma_cm_event> {
    let Queued { id: shared, news } = queued;
    let id = shared.program();
    let mut block = EventBlock::new(shared.clone(), id);
    // Whoever queued it has let go of it.
    let news = Arc::into_inner(news)?;
    // SAFETY: the id isn't destroyed before this event is acknowledged.
    let wanted = unsafe { fill(&mut block, &shared, id, news) };
    match wanted {
        Ok(true) => Some(Box::into_raw(block).cast()),
        Ok(false) => {
            shared.unacked.ack(1);
            None
        }
        Err(refusal) => {
            tracing::warn!("an event is dropped: {}", refusal.why);
            shared.unacked.ack(1);
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
            block.set(RDMA_CM_EVENT_REJECTED, reject.reason.0.into());
            block.set_conn(no_param(), &reject.private_data);
        }
        News::Unreachable => block.set(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        News::Disconnected { timed_out } => {
            if shared.state.lock().connect_failed {
                return Ok(false);
            }
            block.set(RDMA_CM_EVENT_DISCONNECTED, if timed_out { -libc::ETIMEDOUT } else { 0 });
        }
        News::TimewaitExit => block.set(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        News::Answer(reply) => answered(block, shared, &reply),
        News::DeviceRemoval => block.set(RDMA_CM_EVENT_DEVICE_REMOVAL, 0),
        News::Joined(joined) => {
            // SAFETY: the caller's promise.
            let (ud, status) = unsafe { multicast::attach(shared, id, &joined) };
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
pub(crate) unsafe fn show_path(id: *mut rdma_cm_id, way: &Way) {
    /// What the kernel's flags say: for the communication manager, primary, both directions.
    const FLAGS: u8 = (IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL) as u8;
    /// `IB_SA_EQ`.
    const EXACTLY: u8 = 2;
    let record = ibv_sa_path_rec {
        dgid: bind::gid(way.route.to.ip()),
        sgid: bind::gid(way.route.from.ip()),
        dlid: 0,
        slid: 0,
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
            IdBlock::destroy(child)?;
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
    let (device, sgid_index) =
        found.ok_or_else(|| Refusal::new(libc::ENODEV, format!("{} is no device's any more", route.from)))?;
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

/// What a step between two waits came to.
enum Looked {
    Nothing,
    Found(*mut rdma_cm_event),
}

/// Takes the next event that the program is told of.
///
/// # Safety
/// As [`deliver`].
unsafe fn next(queue: &Queue, announced: bool) -> Looked {
    while let Some(queued) = channel::take(queue) {
        // SAFETY: the caller's promise.
        if let Some(event) = unsafe { deliver(queued) } {
            return Looked::Found(event);
        }
    }
    if announced {
        queue.lower_if_empty();
    }
    Looked::Nothing
}

/// How long a thread waits before the log says for what.
const SPEAKS_AFTER: Duration = Duration::from_secs(1);

/// Waits for the next event of a synchronous id, as its descriptor's O_NONBLOCK says; EAGAIN isn't logged as a refusal: `None`.
///
/// # Safety
/// `channel` is a channel.
pub(crate) unsafe fn wait(
    channel: *mut rdma_event_channel,
    call: &'static str,
) -> Outcome<Option<*mut rdma_cm_event>> {
    let (since, mut spoken, mut announced) = (Instant::now(), false, false);
    // SAFETY: the caller's promise.
    let queue = unsafe { ChannelBlock::of(channel) }?.queue().clone();
    loop {
        // SAFETY: the caller's promise.
        if let Looked::Found(event) = unsafe { next(&queue, announced) } {
            return Ok(Some(event));
        }
        let mut sleep = asleep(queue.fd());
        if sleep.nonblocking {
            return Ok(None);
        }
        // SAFETY: this thread can't be cancelled here.
        match nic::outside_library(|| unsafe { sleep.wait() }) {
            Woken::ByEvent => announced = true,
            Woken::ByAnother => announced = false,
            Woken::InVain => {
                return Err(Refusal::new(call::last_errno(), "waiting for an event was interrupted"));
            }
        }
        if !spoken && since.elapsed() > SPEAKS_AFTER {
            spoken = true;
            tracing::info!("{call} waits for the peer");
        }
    }
}

/// Runs a step that can't be cancelled; `None` after a refusal, with errno set.
#[inline(never)]
fn step<T>(body: impl FnOnce() -> Outcome<T>) -> Option<T> {
    call::guard("rdma_get_cm_event", body).map_err(|refusal| call::set_errno(refusal.errno)).ok()
}

// Declared as what it is: a cancellation point, from which a cancelled thread unwinds.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Looks for an event, and puts it where the program wants it.
///
/// # Safety
/// `event` is null or the caller's variable.
unsafe fn look(queue: &Queue, event: *mut *mut rdma_cm_event, announced: bool) -> Outcome<bool> {
    if event.is_null() {
        return Err(Refusal::invalid("event is NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe {
        match next(queue, announced) {
            Looked::Found(found) => put(event, "event", found).map(|()| true),
            Looked::Nothing => Ok(false),
        }
    }
}

/// How a thread sleeps until there is an event. It makes no progress: connections aren't in a hurry, and a thread that waits for
/// completions as well, as most programs have one, would be in its way.
fn asleep(fd: c_int) -> Sleep {
    let timeout = libc::timespec { tv_sec: SPEAKS_AFTER.as_secs() as libc::time_t, tv_nsec: 0 };
    Sleep::on([fd, -1], Some(timeout))
}

/// rdma_get_cm_event(3). Nothing on its frames needs a destructor.
#[unsafe(export_name = "ferroce_c_rdma_get_cm_event")]
unsafe extern "C-unwind" fn get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: by the man page a channel. A program may destroy it while a thread waits (cmtime does): the thread keeps the queue,
    // for ever if it is cancelled.
    let kept =
        step(|| unsafe { ChannelBlock::of(channel) }.map(|block| Arc::into_raw(block.queue().clone())));
    let Some(queue) = kept else { return -1 };
    // SAFETY: kept, and the caller's variable; the count was taken above.
    unsafe {
        let result = get(&*queue, event);
        Arc::decrement_strong_count(queue);
        result
    }
}

/// # Safety
/// `event` is null or the caller's variable. Nothing on the frames above needs a destructor.
unsafe extern "C-unwind" fn get(queue: &Queue, event: *mut *mut rdma_cm_event) -> c_int {
    // SAFETY: numbers only.
    let mut sleep: Sleep = unsafe { zeroed() };
    let mut announced = false;
    let mut since = None;
    // SAFETY: nothing on this frame needs a destructor.
    unsafe { pthread_testcancel() };
    loop {
        // SAFETY: the caller's promise.
        match step(|| unsafe { look(queue, event, announced) }) {
            Some(true) => return 0,
            Some(false) => {}
            None => return -1,
        }
        if sleep.nonblocking {
            call::set_errno(libc::EAGAIN);
            return -1;
        }
        let prepared = step(|| {
            sleep = asleep(queue.fd());
            Ok(())
        });
        if prepared.is_none() {
            return -1;
        }
        if sleep.nonblocking {
            // The descriptor's flag is known now.
            continue;
        }
        if queue.fd() < 0 {
            // The program has destroyed the channel under this thread, as rping does, which takes an error here for its own.
            // SAFETY: nothing on this frame needs a destructor.
            unsafe { Sleep::for_ever() };
        }
        since = since.or_else(|| Some(Instant::now()));
        // SAFETY: nothing on this frame needs a destructor.
        match unsafe { sleep.wait() } {
            Woken::ByEvent => announced = true,
            Woken::InVain if queue.fd() < 0 => {}
            Woken::ByAnother if step(|| Ok(speak(&mut since))).is_some() => announced = false,
            _ => return -1,
        }
    }
}

/// Says after a second what a thread waits for.
fn speak(since: &mut Option<Instant>) {
    if since.is_some_and(|since| since.elapsed() > SPEAKS_AFTER) {
        tracing::debug!("rdma_get_cm_event waits for an event of the channel");
        // Once a call, but for one that lasts for centuries.
        *since = Some(Instant::now() + Duration::from_secs(1 << 32));
    }
}

entry! {
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> minus_one {
        if event.is_null() {
            return Err(Refusal::invalid("event is NULL"));
        }
        // SAFETY: by the man page an event that the caller gives up.
        unsafe { acknowledge(event) };
        Ok(0)
    }
}

entry! {
    fn rdma_write_cm_event(id: *mut rdma_cm_id, event: c_int, status: c_int, arg: u64) -> minus_one {
        // SAFETY: by the man page an id.
        let shared = unsafe { IdBlock::of(id) }?;
        if event != RDMA_CM_EVENT_USER {
            return Err(Refusal::invalid(format!("event {event}: only RDMA_CM_EVENT_USER can be written")));
        }
        shared.push(News::User { status, arg });
        Ok(0)
    }
}
