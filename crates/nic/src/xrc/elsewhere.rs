//! SRQs of other processes. A target gives requests that name one to the process that has it, over a connection to that
//! process's slot, one at a time, and answers the initiator itself. The connection's end is the other's end: a process
//! that dies or lets go of the QP closes it.
//!
//! In here: both ends of such connections. The background thread reads them.

use super::guest::{self, Guest, Jobs, MAX_GUESTS};
use super::handle_message;
use super::message::{self, Answer, Hello, Range, Request};
use super::remote::Remote;
use super::{Domain, XrcTarget};
use crate::clock;
use crate::engine::{self, Engine};
use crate::error::{Error, Result};
use crate::events::AsyncEvent;
use crate::mem::{MrTable, copy};
use crate::qp::Qp;
use crate::rendezvous::{handover, slot_of};
use crate::shm::MAX_PAYLOAD;
use crate::sys::{self, EngineFd};
use ferroce_proto::{Executed, Payload, RemoteAccess, RemoteError};
use ferroce_wire::{Headers, NakCode};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long the other process may take to answer the first message.
const PATIENCE: Duration = Duration::from_millis(100);
/// No message is longer.
const LONGEST: usize = MAX_PAYLOAD + 256;
/// Messages of one connection in a row.
const TURN: usize = 16;

/// The connections of a process.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    epoll: EngineFd,
    ends: Mutex<Ends>,
    pub(super) jobs: Mutex<Jobs>,
}

#[derive(Debug, Default)]
struct Ends {
    next: u64,
    by_number: HashMap<u64, End>,
}

#[derive(Clone, Debug)]
pub(super) enum End {
    /// A target of this process.
    Asking(Weak<Qp>, Arc<EngineFd>),
    /// What executes requests of another process's target.
    Serving(Arc<Qp>, Arc<EngineFd>),
    /// Another process's handle of a target of this one.
    Guest(Arc<Guest>),
    /// A handle of another process's target.
    Remote(Weak<Remote>, Arc<EngineFd>),
}

impl End {
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
pub(crate) struct Reached {
    pub(crate) slot: u16,
    number: u64,
    connection: Arc<EngineFd>,
}

impl Reached {
    /// Tells it from all others of this process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Gives a request away; false when the other process is gone.
    pub(crate) fn execute(&self, headers: &Headers, payload: &impl Payload) -> bool {
        let Some((mut bytes, at)) = message::execute(headers, payload.len()) else { return false };
        payload.copy(&mut bytes[at..]).is_ok() && send(&self.connection, &mut bytes)
    }

    /// Asks for bytes of the other process's memory.
    pub(crate) fn fetch(&self, range: &Range) -> bool {
        send(&self.connection, &mut message::fetch(range))
    }
}

pub(super) fn send(connection: &EngineFd, bytes: &mut [u8]) -> bool {
    handover::send_with(connection.raw(), bytes, &[]).is_ok()
}

/// Tells another process that it has a handle of a target. Never blocks.
pub(crate) fn welcome(connection: &EngineFd) -> bool {
    send(connection, &mut handover::frame(handover::GRANTED))
}

/// Tells it of an event, or not when it doesn't read what it is sent. Never blocks.
pub(crate) fn tell(connection: &EngineFd, event: AsyncEvent) {
    if let Some(mut bytes) = handle_message::event(event) {
        send(connection, &mut bytes);
    }
}

impl Elsewhere {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> Result<Self> {
        let epoll = sys::epoll_create().map_err(Error::os("epoll_create1"))?;
        Ok(Self { epoll, ends: Mutex::default(), jobs: Mutex::default() })
    }

    /// Readable when [`Engine::attend_elsewhere`] has something to do.
    pub(crate) fn poll_fd(&self) -> RawFd {
        self.epoll.raw()
    }

    pub(super) fn add(&self, end: End) -> Option<u64> {
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
        self.ends.lock().by_number.values().filter(|end| matches!(end, End::Guest(_))).count() < MAX_GUESTS
    }

    pub(super) fn remove(&self, number: u64) -> Option<End> {
        let end = self.ends.lock().by_number.remove(&number);
        if let Some(end) = &end {
            // Closing it does as well, but somebody may still hold it.
            let fd = end.connection().raw();
            let _ = sys::epoll_control(self.epoll.raw(), libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        end
    }

    /// A target lets go of a connection.
    pub(crate) fn let_go(&self, reached: &Reached) {
        self.remove(reached.number);
    }
}

/// Another process asks for the execution of its target's requests, or for a handle of a target.
pub(crate) fn greet(connection: EngineFd, bytes: &[u8]) {
    if handover::framed(bytes) == Some(handover::KIND_TARGET) {
        return guest::admit(connection, bytes);
    }
    let served = Hello::parse(bytes).ok_or(()).and_then(|hello| serve(&hello));
    let (Ok(qp), Some(engine)) = (served, engine::current()) else {
        // Who is gone needs no answer.
        let _ = handover::send_with(connection.raw(), &mut handover::frame(handover::REFUSED), &[]);
        return;
    };
    let connection = Arc::new(connection);
    if engine.elsewhere().add(End::Serving(qp.clone(), connection.clone())).is_some() {
        send(&connection, &mut handover::frame(handover::GRANTED));
    } else {
        end_service(&qp);
    }
}

/// What executes the requests: a target with the other's number, which nobody finds.
fn serve(hello: &Hello) -> std::result::Result<Arc<Qp>, ()> {
    let engine = engine::current().ok_or(())?;
    let srq = engine.srq(hello.srqn).ok_or(())?;
    let xrcd = srq.xrcd().ok_or(())?;
    if xrcd.domain().file.as_ref() != Some(&hello.file) || hello.path_mtu == 0 {
        return Err(());
    }
    let (pd, init) = XrcTarget::parts(xrcd.context()).map_err(drop)?;
    let qp = Qp::create_proxy(&pd, init, xrcd.domain().clone(), hello.qpn).map_err(drop)?;
    qp.run_as_proxy(hello.dest_qpn, hello.path_mtu, hello.access);
    Ok(qp)
}

fn end_service(qp: &Arc<Qp>) {
    // The receive of a message in progress is flushed.
    qp.fail_proxy();
    destroy(qp);
}

/// Ends a target whose last handle has gone.
pub(super) fn destroy(qp: &Arc<Qp>) {
    if let Err(error) = qp.destroy_target() {
        tracing::warn!(%error, "an XRC target that other processes had can't be destroyed");
    }
}

impl Engine {
    /// Connects a target with the process that has an SRQ. May take a tenth of a second when that process doesn't answer.
    pub(crate) fn reach(&'static self, qp: &Arc<Qp>, domain: &Domain, srqn: u32) -> Option<Reached> {
        let file = domain.file.clone()?;
        let slot = slot_of(srqn);
        let connection = self.dial(slot)?;
        let mut hello = qp.hello(srqn, file).to_bytes();
        handover::send_with(connection.raw(), &mut hello, &[]).ok()?;
        let deadline = Instant::now() + PATIENCE;
        while !sys::wait_for(connection.raw(), libc::POLLIN, Duration::from_millis(2)) {
            if Instant::now() > deadline {
                tracing::debug!(slot, "the process with a shared receive queue doesn't answer");
                return None;
            }
            self.answer_requests();
        }
        let mut answer = [0; 16];
        let (len, _) = handover::receive(connection.raw(), &mut answer).ok()?;
        if handover::framed(&answer[..len]) != Some(handover::GRANTED) {
            return None;
        }
        let connection = Arc::new(connection);
        let number = self.elsewhere().add(End::Asking(Arc::downgrade(qp), connection.clone()))?;
        Some(Reached { slot, number, connection })
    }

    /// Reads what other processes say.
    pub(crate) fn attend_elsewhere(&'static self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let ready = sys::epoll_wait(self.elsewhere().poll_fd(), &mut events, Some(Duration::ZERO));
        for event in &events[..ready.unwrap_or(0)] {
            let number = event.u64;
            let end = self.elsewhere().ends.lock().by_number.get(&number).cloned();
            let Some(end) = end else { continue };
            let mut bytes = vec![0; LONGEST];
            for _ in 0..TURN {
                let understood = match handover::receive(end.connection().raw(), &mut bytes) {
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                    Ok((len, _)) if len > 0 => self.take_message(&end, &bytes[..len]),
                    _ => None,
                };
                if understood.is_none() {
                    self.end(number);
                    break;
                }
            }
        }
    }

    fn take_message(&'static self, end: &End, bytes: &[u8]) -> Option<()> {
        match end {
            End::Asking(qp, _) => {
                let answer = message::parse_answer(bytes)?;
                let qp = qp.upgrade()?;
                match answer {
                    Answer::Executed(executed) => self.executed(&qp, executed),
                    Answer::Fetched(result) => self.with_work(|work| {
                        let result = result.map(<[u8]>::to_vec);
                        qp.work(work, clock::now(), |_, env| env.fetched(result));
                    }),
                }
            }
            End::Guest(guest) => guest.take_message(self, bytes)?,
            End::Remote(remote, _) => remote.upgrade()?.take_message(bytes)?,
            End::Serving(qp, connection) => match message::parse_request(bytes)? {
                Request::Execute(headers, payload) => self.with_work(|work| {
                    qp.work(work, clock::now(), |proto, env| {
                        let executed = proto.execute_for(&headers, &payload.into(), env);
                        // Before the completion is published: the program may end after it.
                        send(connection, &mut message::executed(executed));
                    });
                }),
                Request::Fetch(range) => {
                    send(connection, &mut message::fetched(self.read_for(qp, &range)));
                }
            },
        }
        Some(())
    }

    fn executed(&'static self, qp: &Arc<Qp>, executed: Executed) {
        self.with_work(|work| {
            qp.work(work, clock::now(), |proto, env| {
                proto.executed(executed, env);
                env.handle_kept(proto, clock::now());
            });
        });
    }

    /// Bytes of this process's memory for another's READ response.
    fn read_for(&self, qp: &Qp, range: &Range) -> std::result::Result<Vec<u8>, RemoteError> {
        let srq = self.srq(range.srqn).filter(|srq| srq.xrcd().is_some_and(|d| qp.is_target_of(d.domain())));
        let srq = srq.ok_or(RemoteError::Access)?;
        if range.len as usize > MAX_PAYLOAD {
            return Err(RemoteError::Access);
        }
        let mut bytes = vec![0; range.len as usize];
        let (user, len) = (qp.user_of(&srq), u64::from(range.len));
        MrTable::global().remote(user, range.rkey, range.va, len, RemoteAccess::Read, |addr| {
            copy::read(addr, &mut bytes)
        })?;
        Ok(bytes)
    }

    /// The other process has gone, or let go.
    fn end(&'static self, number: u64) {
        match self.elsewhere().remove(number) {
            Some(End::Serving(qp, _)) => end_service(&qp),
            Some(End::Guest(guest)) => guest.leave(),
            Some(End::Remote(remote, _)) => {
                if let Some(remote) = remote.upgrade() {
                    remote.lose();
                }
            }
            Some(End::Asking(qp, _)) => {
                let Some(qp) = qp.upgrade() else { return };
                self.with_work(|work| {
                    qp.work(work, clock::now(), |proto, env| {
                        if env.unreach(number) {
                            let code = NakCode::RemoteOperationalError;
                            proto.executed(Executed::Refused(code), env);
                            env.handle_kept(proto, clock::now());
                        }
                    });
                });
            }
            None => {}
        }
    }
}
