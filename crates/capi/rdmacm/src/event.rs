//! Events: rdma_ack_cm_event(3), rdma_write_cm_event(3), and what there is to tell of an id.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::sync::Arc;

use ferroce_connect::{Event, Incoming, IncomingLookup, Reject, RejectReason, Reply, SidrReply, SidrStatus};
use ferroce_ibverbs::call::Refusal;
use ferroce_ibverbs::entry;

use crate::abi::*;
use crate::agreed::Agreed;
use crate::connect;
use crate::explained;
use crate::id::{Id, IdBlock};
use crate::multicast;

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
    AddrChange,
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
            let is_for_nobody = reject.reason == RejectReason::INVALID_SERVICE_ID;
            let Some(news) = unless_asked_again(id, is_for_nobody, News::Rejected(reject)) else { return };
            id.state.lock().agreed = Agreed::Over;
            news
        }
        Event::PortClosed { peer, rest } => return explained::port_closed(peer, rest),
        Event::Unreachable => {
            id.state.lock().agreed = Agreed::Over;
            News::Unreachable
        }
        Event::Disconnected { timed_out } => {
            id.state.lock().agreed = Agreed::Over;
            News::Disconnected { timed_out }
        }
        Event::TimewaitExit => News::TimewaitExit,
        Event::Answer(reply) => {
            let is_for_nobody = reply.status == SidrStatus::UNSUPPORTED;
            let Some(news) = unless_asked_again(id, is_for_nobody, News::Answer(reply)) else { return };
            news
        }
    };
    id.push(news);
}

/// An answer, unless it says that no process has the port and the request is made again.
fn unless_asked_again(id: &Arc<Id>, is_for_nobody: bool, answer: News) -> Option<News> {
    if is_for_nobody { connect::ask_again(id, answer) } else { Some(answer) }
}

/// Room for private data behind an event.
const PRIVATE_DATA: usize = 256;

/// An event as the program has it.
#[repr(C)]
pub(crate) struct EventBlock {
    pub(crate) c: rdma_cm_event,
    /// Whom it counts against.
    counted: Arc<Id>,
    /// What it is, whatever the program does to its structure.
    event: c_int,
    private_data: [u8; PRIVATE_DATA],
}

impl EventBlock {
    pub(crate) fn new(counted: Arc<Id>, id: *mut rdma_cm_id) -> Box<Self> {
        // SAFETY: numbers and pointers.
        let mut c: rdma_cm_event = unsafe { zeroed() };
        c.id = id;
        Box::new(Self { c, counted, event: -1, private_data: [0; PRIVATE_DATA] })
    }

    /// Gives it to the program.
    pub(crate) fn give(mut self: Box<Self>) -> *mut rdma_cm_event {
        self.event = self.c.event;
        self.counted.unacked.told(self.event);
        Box::into_raw(self).cast()
    }

    /// Keeps private data with the event; where it is, and how long.
    fn keep(&mut self, data: &[u8]) -> (*const c_void, u8) {
        self.private_data[..data.len()].copy_from_slice(data);
        (self.private_data.as_ptr().cast(), data.len() as u8)
    }

    pub(crate) fn set(&mut self, event: c_int, status: c_int) {
        (self.c.event, self.c.status) = (event, status);
    }

    pub(crate) fn set_conn(&mut self, param: rdma_conn_param, data: &[u8]) {
        let (private_data, private_data_len) = self.keep(data);
        self.c.param.conn = rdma_conn_param { private_data, private_data_len, ..param };
    }

    pub(crate) fn set_ud(&mut self, param: rdma_ud_param, data: &[u8]) {
        let (private_data, private_data_len) = self.keep(data);
        self.c.param.ud = rdma_ud_param { private_data, private_data_len, ..param };
    }
}

pub(crate) fn no_param() -> rdma_conn_param {
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
        block.counted.unacked.ack(block.event);
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
