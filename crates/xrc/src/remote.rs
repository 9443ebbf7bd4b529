//! Handles of target QPs that other processes have created.

use crate::Domain;
use crate::connections::{ConnectionEnd, Connections, Target};
use crate::handle_message::{self, Call, News, Open};
use crate::process::send;
use ferroce_host::{Host, frame};
use ferroce_os::{
    fork,
    sync::{Changed, Mutex, MutexGuard, class},
    sys::{self, EngineFd},
};
use ferroce_parts::QpAttr;
use ferroce_types::{AsyncEvent, Error, QpState, Result, invalid, slot_of};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the other process may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it is tried again while too many wait to ask it.
const CROWD_PATIENCE: Duration = Duration::from_millis(100);
/// Timeout of a modify request once the owner has started it.
const CARRYING_OUT: Duration = Duration::from_secs(10);
/// Events of one handle that the program hasn't read, at most: what is beyond is lost.
const MAX_UNREAD: usize = 64;

/// What has a handle, and gets its events.
pub trait HandleOwner: Debug + Send + Sync {
    /// An event has happened, which is made with the handle's user handle.
    fn raise(&self, event: fn(usize) -> AsyncEvent);

    /// How many of its events the program hasn't read.
    fn unread(&self) -> usize;
}

/// A handle of another process's target QP.
#[derive(Debug)]
pub struct Remote<Q: Target> {
    opener: Arc<dyn HandleOwner>,
    connections: &'static Connections<Q>,
    /// How many forks lie between the first process and the one that has opened it.
    generation: u32,
    connection: Arc<EngineFd>,
    /// The number of the connection, which no other connection of this process has.
    end: AtomicU64,
    state: Mutex<class::RemoteTarget, RemoteState>,
    changed: Changed,
}

#[derive(Debug, Default)]
struct RemoteState {
    /// The number of the last call.
    calls: u32,
    /// The last call isn't finished.
    calling: bool,
    answer: Option<(u32, CallResult)>,
    /// The number of the change of attributes that a thread waits for, while it isn't confirmed.
    proposed: Option<u32>,
    /// The other process has ended.
    gone: bool,
    /// The program has given the handle up.
    closed: bool,
}

type Guard<'a> = MutexGuard<'a, class::RemoteTarget, RemoteState>;

/// Lets the next call begin when it is dropped, also by unwinding.
struct Calling<'a, Q: Target>(&'a Remote<Q>);

impl<Q: Target> Drop for Calling<'_, Q> {
    fn drop(&mut self) {
        self.0.state.lock().calling = false;
        self.0.changed.tell();
    }
}

#[derive(Debug)]
enum CallResult {
    Queried(QpAttr),
    Done(Result<()>),
}

impl<Q: Target> Remote<Q> {
    /// Asks the process with the slot of a QPN for a handle.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the domain has no target with that number there, or the process doesn't answer.
    pub fn open(
        (connections, host): (&'static Connections<Q>, &Host),
        domain: &Domain,
        qpn: u32,
        opener: Arc<dyn HandleOwner>,
    ) -> Result<Arc<Self>> {
        let Some(file) = domain.file.clone().filter(|_| !host.owns(qpn)) else {
            return invalid!("the XRC domain has no target queue pair {qpn:#x}");
        };
        let Some(connection) = connect(host, &Open { qpn, file }) else {
            return invalid!("no other process has a target queue pair {qpn:#x} of this XRC domain");
        };
        let remote = Arc::new(Self {
            opener,
            connections,
            generation: fork::generation(),
            connection: Arc::new(connection),
            end: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Changed::default(),
        });
        let end = ConnectionEnd::Remote(Arc::downgrade(&remote), remote.connection.clone());
        let Some(end) = connections.add(end) else {
            return Err(Error::NoMemory("another process's target queue pair can't be watched".into()));
        };
        remote.end.store(end, Ordering::Relaxed);
        Ok(remote)
    }

    /// Asks for a change of attributes. The other process first answers that it is ready, and makes the change after a confirmation: a
    /// change that was given up before isn't made later.
    ///
    /// # Errors
    /// [`Error::Busy`] when the other process doesn't answer: nothing is changed. [`Error::Dead`] when it has ended, or doesn't answer
    /// after the confirmation: then the handle has ended.
    pub fn modify(&self, attr: &QpAttr, bits: u32) -> Result<()> {
        match self.call(&Call::Modify(*attr, bits))? {
            CallResult::Done(result) => result,
            CallResult::Queried(_) => Err(nonsense()),
        }
    }

    /// The attributes. Of a QP that has ended with its process only the state is set, to ERR.
    pub fn query(&self) -> Result<QpAttr> {
        match self.call(&Call::Query) {
            Ok(CallResult::Queried(attr)) => Ok(attr),
            Ok(CallResult::Done(Err(error))) => Err(error),
            Ok(CallResult::Done(Ok(()))) => Err(nonsense()),
            Err(Error::Dead(_)) => {
                Ok(QpAttr { state: QpState::Err, cur_state: QpState::Err, ..QpAttr::default() })
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the handle up. No event of it comes any more.
    pub fn close(&self) {
        // The connection is the parent's.
        if self.is_inherited() {
            return;
        }
        self.state.lock().closed = true;
        if let Err(error) = self.call(&Call::Close) {
            tracing::debug!(%error, "closing a handle of another process's target queue pair");
        }
        self.connections.remove(self.end.load(Ordering::Relaxed));
        sys::shutdown(self.connection.checked());
    }

    fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    fn call(&self, call: &Call) -> Result<CallResult> {
        if self.is_inherited() {
            return Err(Error::Dead("the queue pair was opened before the fork".into()));
        }
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while state.calling {
            if Instant::now() >= deadline {
                return Err(silence());
            }
            state = self.wait(state, deadline);
        }
        state.calling = true;
        drop(state);
        let _calling = Calling(self);
        self.call_alone(call, deadline)
    }

    /// Waits for a change of the state; nothing is locked meanwhile.
    fn wait<'a>(&'a self, state: Guard<'a>, deadline: Instant) -> Guard<'a> {
        let seen = self.changed.seen();
        drop(state);
        self.changed.wait(seen, deadline);
        self.state.lock()
    }

    /// As [`Remote::call`], while no other thread is there.
    fn call_alone(&self, call: &Call, mut deadline: Instant) -> Result<CallResult> {
        let proposes = matches!(call, Call::Modify(..));
        let mut state = self.state.lock();
        state.calls = state.calls.wrapping_add(1);
        let number = state.calls;
        state.answer = None;
        if state.gone {
            return Err(dead());
        }
        state.proposed = proposes.then_some(number);
        match frame::send(self.connection.checked(), &mut handle_message::call(number, call), &[]) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(silence()),
            Err(_) => return Err(dead()),
        }
        // False once the change has been confirmed.
        let mut may_give_up = true;
        loop {
            match state.answer.take() {
                Some((of, answer)) if of == number => return Ok(answer),
                // To a call that was given up.
                Some(_) => {}
                None if state.gone => return Err(dead()),
                None if proposes && may_give_up && state.proposed.is_none() => {
                    may_give_up = false;
                    deadline = Instant::now() + CARRYING_OUT;
                }
                None if Instant::now() >= deadline => {
                    if may_give_up {
                        state.proposed = None;
                        return Err(silence());
                    }
                    drop(state);
                    self.lose();
                    sys::shutdown(self.connection.checked());
                    return Err(dead());
                }
                None => state = self.wait(state, deadline),
            }
        }
    }

    /// `None` ends the connection.
    pub fn take_message(&self, bytes: &[u8]) -> Option<()> {
        let news = handle_message::parse_news(bytes)?;
        let mut state = self.state.lock();
        match news {
            News::Event(event) => self.raise(&state, event),
            News::Ready(number) => {
                if state.proposed == Some(number) {
                    state.proposed = None;
                    if !send(&self.connection, &mut handle_message::call(number, &Call::CarryOut)) {
                        return None;
                    }
                }
            }
            News::Queried(number, attr) => state.answer = Some((number, CallResult::Queried(attr))),
            News::Done(number, result) => state.answer = Some((number, CallResult::Done(result))),
        }
        self.changed.tell();
        Some(())
    }

    /// The other process has ended, and the QP with it; or the outcome of a change is unknown.
    pub fn lose(&self) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.gone, true) {
            return;
        }
        if !state.closed {
            self.opener.raise(AsyncEvent::QpFatal);
        }
        self.changed.tell();
    }

    fn raise(&self, state: &RemoteState, event: fn(usize) -> AsyncEvent) {
        if !state.closed && self.opener.unread() < MAX_UNREAD {
            self.opener.raise(event);
        }
    }
}

impl<Q: Target> Drop for Remote<Q> {
    /// A handle that is dropped is given up, also if its creation fails halfway.
    fn drop(&mut self) {
        if !self.is_inherited() {
            self.connections.remove(self.end.load(Ordering::Relaxed));
        }
    }
}

/// A connection to the process that has the queue pair, which has granted the request.
fn connect(host: &Host, open: &Open) -> Option<EngineFd> {
    let connection = host.dial_within(slot_of(open.qpn), CROWD_PATIENCE).ok()?;
    let answers = || sys::wait_for(connection.raw(), libc::POLLIN, PATIENCE);
    if !send(&connection, &mut open.to_bytes()) || !fork::outside_library(answers) {
        return None;
    }
    let mut answer = [0; 8];
    let (length, _) = frame::receive(connection.checked(), &mut answer).ok()?;
    (frame::kind_of(&answer[..length]) == Some(frame::GRANTED)).then_some(connection)
}

fn dead() -> Error {
    Error::Dead("the process that has the queue pair has ended".into())
}

fn silence() -> Error {
    Error::Busy("the process that has the queue pair doesn't answer".into())
}

fn nonsense() -> Error {
    Error::Dead("the process that has the queue pair answers something else".into())
}
