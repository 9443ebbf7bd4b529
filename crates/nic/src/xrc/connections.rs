//! SRQs of other processes. A target gives requests that name such an SRQ to the process that has it, over a connection to that
//! process's slot, and answers the initiator itself as the results come. The connection is closed when the other process dies or
//! gives up the QP.
//!
//! In here: both ends of such connections. The background thread reads them.

use super::Domain;
use super::guest::{Guest, Jobs, MAX_GUESTS};
use super::handle_message;
use super::message::{self, ReadRange, SrqReply};
use super::remote::Remote;
use super::serve::end_service;
use crate::adapter::Adapter;
use crate::qp::{Lost, Qp};
use ferroce_engine::Source;
use ferroce_host::frame;
use ferroce_hostlink::MAX_PAYLOAD;
use ferroce_os::{
    clock,
    sync::{Mutex, class},
    sys::{self, EngineFd},
};
use ferroce_proto::{DelegateError, Executed, Payload};
use ferroce_types::{AsyncEvent, Error, Result, slot_of};
use ferroce_wire::{Headers, NakCode};
use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// No message is longer.
const LONGEST: usize = MAX_PAYLOAD + 256;
/// So many requests are reported even if no receive waits for one of them: their count doesn't overflow.
const MOST_UNREPORTED: u32 = 1 << 16;
/// Messages of one connection in a row.
pub(super) const TURN: usize = 32;

/// The connections of a process.
#[derive(Debug)]
pub(crate) struct Connections {
    epoll: EngineFd,
    ends: Mutex<class::Ends, ConnectionEnds>,
    pub(super) jobs: Mutex<class::Jobs, Jobs>,
}

#[derive(Debug, Default)]
struct ConnectionEnds {
    next: u64,
    by_number: BTreeMap<u64, ConnectionEnd>,
}

#[derive(Clone, Debug)]
pub(super) enum ConnectionEnd {
    /// A target of this process.
    Asking(Weak<Qp>, Arc<EngineFd>),
    /// What executes requests of another process's target.
    Serving(Arc<Qp>, Arc<EngineFd>),
    /// Another process's handle of a target of this one.
    Guest(Arc<Guest>),
    /// A handle of another process's target.
    Remote(Weak<Remote>, Arc<EngineFd>),
}

impl ConnectionEnd {
    fn connection(&self) -> &Arc<EngineFd> {
        match self {
            Self::Asking(_, connection) | Self::Serving(_, connection) | Self::Remote(_, connection) => {
                connection
            }
            Self::Guest(guest) => &guest.connection,
        }
    }
}

/// A target's connection to a process with SRQs of its domain.
#[derive(Debug)]
pub(crate) struct SrqProcess {
    pub(crate) slot: u16,
    number: u64,
    connection: Arc<EngineFd>,
    /// It has answered the first message, and executes requests.
    pub(crate) is_reached: bool,
    outcomes: UnreportedOutcomes,
}

/// Requests that another process has executed. Their receives complete there when the acknowledgement is reported.
#[derive(Default, Debug)]
struct UnreportedOutcomes {
    /// Oldest first: the number of a request that a receive may wait for, and how many requests it is with those before it that none waits for. So
    /// the program's receives there bound the length, but for one entry in [`MOST_UNREPORTED`] requests.
    unacknowledged: VecDeque<(u64, u32)>,
    /// Requests after those.
    others: u32,
    /// Acknowledged, and not reported because the connection took nothing.
    acknowledged: u32,
}

impl SrqProcess {
    /// The number of the connection, which no other connection of this process has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Gives a request away.
    ///
    /// # Errors
    /// [`DelegateError::Full`] when the connection takes no more, or the payload can't be had.
    pub(crate) fn execute(
        &self,
        headers: &Headers,
        payload: &impl Payload,
        run: u32,
    ) -> std::result::Result<(), DelegateError> {
        let Some((mut bytes, at)) = message::execute(headers, payload.len(), run) else {
            return Err(DelegateError::Gone);
        };
        payload.copy(&mut bytes[at..]).map_err(|_| DelegateError::Full)?;
        frame::send(self.connection.checked(), &mut bytes, &[]).map_err(|error| match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => DelegateError::Full,
            _ => DelegateError::Gone,
        })
    }

    /// The process has executed a request with this number, or hasn't looked at it. `receives`: a receive may wait for the acknowledgement.
    pub(crate) fn note_outcome(&mut self, number: u64, receives: bool) {
        let UnreportedOutcomes { unacknowledged, others, .. } = &mut self.outcomes;
        *others += 1;
        if receives || *others >= MOST_UNREPORTED {
            unacknowledged.push_back((number, std::mem::take(others)));
        }
    }

    /// The initiator has the answers to all requests before this number, or gets none: reports that to the process if a receive waits for it,
    /// or if there are many.
    pub(crate) fn report_acknowledged(&mut self, from: u64) {
        let UnreportedOutcomes { unacknowledged, acknowledged, .. } = &mut self.outcomes;
        while let Some(&(number, count)) = unacknowledged.front()
            && number < from
        {
            unacknowledged.pop_front();
            *acknowledged += count;
        }
        // If the connection takes nothing now, the process still has requests to answer, and each answer comes back here.
        if *acknowledged > 0 && send(&self.connection, &mut message::acknowledged(*acknowledged)) {
            *acknowledged = 0;
        }
    }

    /// Asks for bytes of the other process's memory.
    pub(crate) fn fetch(&self, range: &ReadRange) -> bool {
        send(&self.connection, &mut message::fetch(range))
    }
}

/// The bytes of the next message; `Some(None)` when there is none, `None` when there will be none.
pub(super) fn receive(connection: &EngineFd, bytes: &mut [u8]) -> Option<Option<usize>> {
    loop {
        return match frame::receive(connection.checked(), bytes) {
            Ok((len, _)) if len > 0 => Some(Some(len)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Some(None),
            // Returned once if the other end was closed with unread messages: the messages that it has sent can still be read.
            Err(e) if e.kind() == ErrorKind::ConnectionReset => continue,
            _ => None,
        };
    }
}

/// Why a process with SRQs isn't asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectError {
    /// There is none.
    NoSrq,
    /// The system refuses it just now.
    Refused,
}

pub(super) fn send(connection: &EngineFd, bytes: &mut [u8]) -> bool {
    frame::send(connection.checked(), bytes, &[]).is_ok()
}

/// Grants another process a handle of a target. Never blocks.
pub(crate) fn grant_handle(connection: &EngineFd) -> bool {
    send(connection, &mut frame::header(frame::GRANTED))
}

/// Sends another process an event. The event is lost if the process doesn't read its messages. Never blocks.
pub(crate) fn send_event(connection: &EngineFd, event: AsyncEvent) {
    if let Some(mut bytes) = handle_message::event(event) {
        send(connection, &mut bytes);
    }
}

impl Connections {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> Result<Self> {
        let epoll = sys::epoll_create().map_err(Error::os("epoll_create1"))?;
        Ok(Self { epoll, ends: Mutex::default(), jobs: Mutex::default() })
    }

    /// Readable when [`Adapter::attend_xrc`] has something to do.
    pub(crate) fn poll_fd(&self) -> RawFd {
        self.epoll.raw()
    }

    pub(super) fn add(&self, end: ConnectionEnd) -> Option<u64> {
        let mut ends = self.ends.lock();
        ends.next += 1;
        let (epoll, fd) = (self.epoll.raw(), end.connection().raw());
        sys::epoll_control(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, ends.next).ok()?;
        let number = ends.next;
        ends.by_number.insert(number, end);
        Some(number)
    }

    /// There is room for one more handle of another process.
    pub(super) fn has_room(&self) -> bool {
        self.ends.lock().by_number.values().filter(|end| matches!(end, ConnectionEnd::Guest(_))).count()
            < MAX_GUESTS
    }

    /// Waits for the answer of a process with SRQs, which the background thread reads.
    pub(crate) fn await_answer(
        &self,
        qp: &Arc<Qp>,
        slot: u16,
        connection: EngineFd,
    ) -> std::result::Result<SrqProcess, ConnectError> {
        let connection = Arc::new(connection);
        let asking = ConnectionEnd::Asking(Arc::downgrade(qp), connection.clone());
        let number = self.add(asking).ok_or(ConnectError::Refused)?;
        Ok(SrqProcess {
            slot,
            number,
            connection,
            is_reached: false,
            outcomes: UnreportedOutcomes::default(),
        })
    }

    pub(super) fn remove(&self, number: u64) -> Option<ConnectionEnd> {
        let end = self.ends.lock().by_number.remove(&number);
        if let Some(end) = &end {
            // Closing the descriptor removes it too, but another thread may keep it open for longer.
            let fd = end.connection().raw();
            let _ = sys::epoll_control(self.epoll.raw(), libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        end
    }

    /// A target lets go of a connection.
    pub(crate) fn close(&self, process: &SrqProcess) {
        self.remove(process.number);
    }
}

/// Ends a target whose last handle has gone.
pub(super) fn destroy(qp: &Arc<Qp>) {
    if let Err(error) = qp.destroy_target() {
        tracing::warn!(%error, "an XRC target that other processes had can't be destroyed");
    }
}

/// The connections as a source.
pub(crate) struct XrcSource(pub(crate) &'static Adapter);

impl Source for XrcSource {
    fn serve(&self) {
        self.0.attend_xrc();
    }
}

impl Adapter {
    /// Asks the process that has an SRQ to execute a target's requests. Doesn't wait for the answer: the process may be stopped.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub(crate) fn ask_srq_process(
        &'static self,
        qp: &Arc<Qp>,
        domain: &Domain,
        srqn: u32,
    ) -> std::result::Result<EngineFd, ConnectError> {
        let file = domain.file.clone().ok_or(ConnectError::NoSrq)?;
        let mut hello = qp.hello(srqn, file).to_bytes();
        let connection = self.host.dial(slot_of(srqn)).map_err(|error| match error.kind() {
            // Too many wait to ask the process: the peer sends its requests again.
            ErrorKind::WouldBlock => ConnectError::Refused,
            _ => ConnectError::NoSrq,
        })?;
        sys::large_buffer(connection.raw(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
        if send(&connection, &mut hello) { Ok(connection) } else { Err(ConnectError::Refused) }
    }

    /// Reads the messages of other processes.
    fn attend_xrc(&'static self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let ready = sys::epoll_wait(self.xrc.poll_fd(), &mut events, Some(Duration::ZERO));
        let mut bytes = Vec::new();
        for event in &events[..ready.unwrap_or(0)] {
            let number = event.u64;
            let end = self.xrc.ends.lock().by_number.get(&number).cloned();
            let Some(end) = end else { continue };
            bytes.resize(LONGEST, 0);
            let understood = match &end {
                ConnectionEnd::Serving(qp, connection) => self.execute_for(qp, connection, &mut bytes),
                _ => self.take_messages(number, &end, &mut bytes),
            };
            if understood.is_none() {
                self.end(number);
            }
        }
    }

    /// `None` ends the connection.
    fn take_messages(&'static self, number: u64, end: &ConnectionEnd, bytes: &mut [u8]) -> Option<()> {
        for _ in 0..TURN {
            let Some(len) = receive(end.connection(), bytes)? else { break };
            let bytes = &bytes[..len];
            match end {
                ConnectionEnd::Asking(qp, _) => {
                    let qp = qp.upgrade()?;
                    match frame::kind_of(bytes) {
                        None => self.take_answer(number, &qp, message::parse_answer(bytes)?),
                        Some(frame::GRANTED) => self.srq_process_reached(number, &qp),
                        // It has no such SRQ.
                        Some(_) => return None,
                    }
                }
                ConnectionEnd::Guest(guest) => guest.take_message(self, bytes)?,
                ConnectionEnd::Remote(remote, _) => remote.upgrade()?.take_message(bytes)?,
                ConnectionEnd::Serving(..) => return None,
            }
        }
        Some(())
    }

    /// A process executes requests of a target from here on.
    fn srq_process_reached(&'static self, number: u64, qp: &Arc<Qp>) {
        self.with_work(|work| {
            let now = clock::now();
            qp.work(work, now, |proto, env| {
                proto.note_result();
                env.srq_process_reached(number);
                env.handle_backlog(proto, now);
            });
        });
    }

    fn take_answer(&'static self, number: u64, qp: &Arc<Qp>, answer: SrqReply<'_>) {
        self.with_work(|work| {
            let now = clock::now();
            qp.work(work, now, |proto, env| {
                proto.note_result();
                match answer {
                    SrqReply::Executed(executed, count) => {
                        env.take_back(proto, number, count, Some(executed));
                    }
                    SrqReply::Dropped(count) => env.take_back(proto, number, count, None),
                    SrqReply::Fetched(result) => env.fetched(number, result.map(<[u8]>::to_vec)),
                }
                env.handle_backlog(proto, now);
            });
        });
    }

    /// Ends a queue pair that executes requests of another process's target, as its device context ends; the other process connects
    /// again. False: `qp` isn't such a queue pair.
    pub(crate) fn stop_serving(&'static self, qp: &Arc<Qp>) -> bool {
        let is_it =
            |end: &ConnectionEnd| matches!(end, ConnectionEnd::Serving(served, _) if Arc::ptr_eq(served, qp));
        let number = self.xrc.ends.lock().by_number.iter().find_map(|(n, end)| is_it(end).then_some(*n));
        if let Some(number) = number {
            self.end(number);
        }
        number.is_some()
    }

    /// The other process has ended, or has closed the connection.
    fn end(&'static self, number: u64) {
        match self.xrc.remove(number) {
            Some(ConnectionEnd::Serving(qp, connection)) => {
                // A thread that is reading the connection keeps it open for longer. Without the shutdown, requests that the peer sends
                // in that time would be lost.
                sys::shutdown(connection.raw());
                end_service(&qp);
            }
            Some(ConnectionEnd::Guest(guest)) => guest.leave(),
            Some(ConnectionEnd::Remote(remote, _)) => {
                if let Some(remote) = remote.upgrade() {
                    remote.lose();
                }
            }
            Some(ConnectionEnd::Asking(qp, _)) => {
                let Some(qp) = qp.upgrade() else { return };
                self.with_work(|work| {
                    qp.work(work, clock::now(), |proto, env| {
                        let now = clock::now();
                        match env.lose_srq_process(number) {
                            Lost::Nothing => {}
                            Lost::Requests => {
                                let code = NakCode::RemoteOperationalError;
                                proto.executed(Executed::Refused(code), env);
                                env.handle_backlog(proto, now);
                            }
                            Lost::Answer(slot) => env.refuse_backlog(proto, now, slot),
                        }
                    });
                });
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_connection_whose_number_has_become_the_programs_has_ended() {
        let [connection, _other] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let (program, peer) = UnixDatagram::pair().unwrap();
        ferroce_tests::take_number(connection.raw(), &program);
        peer.send(b"the program's").unwrap();
        let mut bytes = [0; 64];
        assert_eq!(receive(&connection, &mut bytes), None);
        assert!(!send(&connection, &mut bytes));
        let (connection, outcomes) = (Arc::new(connection), UnreportedOutcomes::default());
        let reached = SrqProcess { slot: 1, number: 1, connection, is_reached: true, outcomes };
        assert!(!reached.fetch(&ReadRange { srqn: 1, rkey: 1, va: 0, len: 1 }));
        assert_eq!(program.recv(&mut bytes).unwrap(), b"the program's".len());
        peer.set_nonblocking(true).unwrap();
        assert_eq!(peer.recv(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn acknowledgements_are_reported_where_a_receive_waits_for_them() {
        let [connection, other] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let (connection, outcomes) = (Arc::new(connection), UnreportedOutcomes::default());
        let mut process = SrqProcess { slot: 1, number: 1, connection, is_reached: true, outcomes };
        let mut bytes = [0; 64];
        let mut reported = || match receive(&other, &mut bytes) {
            Some(Some(len)) => match message::parse_request(&bytes[..len]) {
                Some(message::TargetRequest::Acknowledged(count)) => Some(count),
                other => panic!("{other:?}"),
            },
            Some(None) => None,
            None => panic!("the connection has ended"),
        };
        for (number, receives) in [(10, false), (11, true), (12, false), (13, true), (14, false)] {
            process.note_outcome(number, receives);
        }
        process.report_acknowledged(11);
        assert_eq!(reported(), None);
        process.report_acknowledged(12);
        assert_eq!(reported(), Some(2));
        process.report_acknowledged(u64::MAX);
        assert_eq!((reported(), reported()), (Some(2), None), "no receive waits for the last");
        process.note_outcome(15, true);
        process.report_acknowledged(u64::MAX);
        assert_eq!((reported(), reported()), (Some(2), None));
        (16..16 + u64::from(MOST_UNREPORTED)).for_each(|number| process.note_outcome(number, false));
        process.report_acknowledged(u64::MAX);
        assert_eq!((reported(), reported()), (Some(MOST_UNREPORTED), None), "many that no receive waits for");
    }
}
