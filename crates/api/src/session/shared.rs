//! The state of a connection, which its handles, its requests and its messages share.

use crate::session::Driver;
use crate::session::connecting::Managed;
use crate::session::line::{Later, Line, Ticket};
use crate::session::link::Link;
use crate::session::outcome::{Ending, Outcome};
use crate::session::slots::Slots;
use crate::verbs::{Completion, Operated, Qp, Reliable};
use ferroce_buffers::{Buffer, Error, Fault, Kind, ManagerNews, Pool, Status};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Wake, Waker};

/// The low half of the tag of receives. Slots have smaller numbers.
pub(crate) const RECEIVE: u32 = u32::MAX;

/// A message that the program hasn't fetched.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) buffer: Buffer,
    pub(crate) immediate: Option<u32>,
    pub(crate) written: Option<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// `None` before it is connected, and after its end.
    qp: Option<Qp<Reliable>>,
    slots: Slots,
    /// Places of the send queue that permits have.
    pub(crate) permits: u32,
    ready: Line,
    received: VecDeque<Received>,
    receivers: Line,
    /// Why it has ended.
    fault: Option<Fault>,
    watchers: Line,
    /// The pool had no buffer for a receive. [`Refill`] is woken when it has one.
    is_dry: bool,
    later: Later,
}

/// A request that couldn't be posted.
pub(crate) enum Refusal {
    Full,
    Error(Error),
}

/// A connection, but for its handles.
pub(crate) struct Shared {
    pub(crate) driver: Driver,
    pub(crate) qpn: u32,
    /// Its place in the driver's table: the high half of its tags.
    pub(crate) place: u32,
    pub(crate) send_depth: u32,
    pool: Pool,
    /// Posts receives when the pool has a buffer again.
    refill: Waker,
    state: Mutex<State>,
    /// Locked while the queue pair is out of the state to be aborted, which can take time. Code of the program never runs with it.
    aborting: Mutex<()>,
    /// The connection manager's side of it, until the end.
    link: Mutex<Option<Link>>,
    /// The peer's address and private data, of a connection by address.
    pub(crate) peer: OnceLock<(SocketAddr, Vec<u8>)>,
    /// Has the driver look at the link.
    ended: Waker,
}

/// The connection manager has news of a connection.
struct Ended(Weak<Shared>);

impl Wake for Ended {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.driver.nudge(shared.place, shared.qpn);
        }
    }
}

/// Posts receives of a connection when its pool has a buffer again.
struct Refill(Weak<Shared>);

impl Wake for Refill {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.change(|state| {
                state.is_dry = false;
                shared.post_receives(state);
            });
        }
    }
}

impl Shared {
    pub(crate) fn new(driver: &Driver, place: u32, qpn: u32, send_depth: u32, pool: &Pool) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            driver: driver.clone(),
            qpn,
            place,
            send_depth,
            pool: pool.clone(),
            refill: Waker::from(Arc::new(Refill(this.clone()))),
            state: Mutex::new(State { slots: Slots::with_capacity(send_depth), ..State::default() }),
            aborting: Mutex::new(()),
            link: Mutex::new(None),
            peer: OnceLock::new(),
            ended: Waker::from(Arc::new(Ended(this.clone()))),
        })
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and then wakes all whose turn has come. No lock is held while code of the program runs: a waker, or the owner of
    /// memory.
    #[inline]
    fn change<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = f(&mut state);
        state.wake();
        Self::release(state);
        result
    }

    /// Unlocks the state.
    #[inline]
    fn release(state: MutexGuard<'_, State>) {
        if !state.later.is_empty() {
            Self::release_and_wake(state);
        }
    }

    #[inline(never)]
    fn release_and_wake(mut state: MutexGuard<'_, State>) {
        let later = std::mem::take(&mut state.later);
        drop(state);
        later.happen();
    }

    fn aborting(&self) -> MutexGuard<'_, ()> {
        self.aborting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self) -> MutexGuard<'_, Option<Link>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is a connection by address.
    pub(crate) fn manage(&self, Managed { link, peer, private_data }: Managed) {
        *self.link() = Some(link);
        let _ = self.peer.set((peer, private_data));
    }

    pub(crate) fn with_link<R>(&self, f: impl FnOnce(&Link) -> Result<R, Error>) -> Result<R, Error> {
        match &*self.link() {
            Some(link) => f(link),
            None => Err(Error::new(Kind::Dead, "connect", "the connection has ended")),
        }
    }

    /// The next news of the connection manager.
    pub(crate) fn poll_link(&self, waker: &Waker) -> Option<ManagerNews> {
        match &*self.link() {
            Some(link) => link.poll(&self.driver, waker),
            None => Some(ManagerNews::Ended),
        }
    }

    /// Ends with the peer's end of it, from now on.
    pub(crate) fn watch_link(&self) {
        // News before the end register no waker, so the link is asked again.
        loop {
            let news = self.link().as_ref().and_then(|link| link.watch(&self.ended));
            match news {
                None => return,
                Some(ManagerNews::Ended | ManagerNews::Rejected { .. } | ManagerNews::Unreachable) => break,
                Some(_) => {}
            }
        }
        let why = "the peer has ended the connection";
        self.fail(&Fault::new(Status::Flushed, 0, Some(why.into()), None));
    }

    pub(crate) fn tag(&self, slot: u32) -> u64 {
        u64::from(self.place) << 32 | u64::from(slot)
    }

    /// Posts as many receives as there is room for and the pool has buffers for.
    fn post_receives(&self, state: &mut State) {
        let State { qp: Some(qp), fault: None, is_dry, later, .. } = state else { return };
        while !*is_dry && qp.recv_room() > 0 {
            let Some(buffer) = self.pool.poll_take(&self.refill) else {
                *is_dry = true;
                return;
            };
            if let Err(failed) = qp.recv(self.tag(RECEIVE), buffer) {
                return later.drop_buffer(failed.back);
            }
        }
    }

    /// It is connected. Its receives may have completed before.
    pub(crate) fn connected(&self, qp: Qp<Reliable>) {
        self.change(|state| {
            state.qp = Some(qp);
            self.post_receives(state);
        });
    }

    /// A request or a receive of this connection has ended.
    #[inline(always)]
    pub(crate) fn completed(&self, completion: &mut Completion<'_>) {
        self.change(|state| {
            let slot = completion.tag() as u32;
            if slot == RECEIVE {
                return self.received(state, completion);
            }
            if let Err(fault) = completion.result() {
                state.failed(&fault);
            }
            // The completion keeps the memory of a request that nothing waits for, and drops it when no lock is held.
            let State { slots, later, .. } = state;
            slots.end(slot, later, |ending| ending.take(completion));
        });
    }

    #[inline(always)]
    fn received(&self, state: &mut State, completion: &mut Completion<'_>) {
        match completion.buffer() {
            Ok(Some(mut buffer)) => {
                let is_write = completion.what() == Operated::ReceivedWrite;
                let written = is_write.then_some(completion.len());
                if is_write {
                    buffer.set_len(0);
                }
                state.received.push_back(Received { buffer, immediate: completion.imm(), written });
                if !state.is_dry {
                    self.post_receives(state);
                }
            }
            // A receive of a connection has a buffer.
            Ok(None) => {}
            Err(fault) => {
                state.failed(&fault);
                completion.take().buffer().into_iter().for_each(|buffer| state.later.drop_buffer(buffer));
            }
        }
    }

    /// Posts a request. A permit has its place already.
    #[inline]
    pub(crate) fn post<O: Outcome>(&self, operation: O, permitted: bool) -> Result<u32, (Refusal, O)> {
        // No waiter has more room after this, and nothing is dropped.
        self.post_locked(&mut self.lock(), operation, permitted)
    }

    #[inline]
    fn post_locked<O: Outcome>(
        &self,
        state: &mut State,
        operation: O,
        permitted: bool,
    ) -> Result<u32, (Refusal, O)> {
        if let Err(error) = state.check("post") {
            return Err((Refusal::Error(error), operation));
        }
        if !permitted && !state.ready.has_more(usize::from(state.room() > 0)) {
            return Err((Refusal::Full, operation));
        }
        let slot = state.slots.take();
        let Some(qp) = &mut state.qp else { unreachable!("checked above") };
        match qp.post(self.tag(slot), operation) {
            Ok(()) => {
                state.permits -= u32::from(permitted);
                Ok(slot)
            }
            Err(failed) => {
                state.slots.release(slot);
                Err((Refusal::Error(failed.error), failed.back))
            }
        }
    }

    /// Waits for room for `count` requests: it is reserved when that returns true.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn poll_ready(
        &self,
        ticket: &mut Ticket,
        count: u32,
        waker: &Waker,
    ) -> Option<Result<(), Error>> {
        self.change(|state| {
            if let Err(error) = state.check("ready") {
                state.ready.leave(ticket, &mut state.later);
                return Some(Err(error));
            }
            // The first in the line is served alone, so that one that needs much isn't overtaken.
            let served = usize::from(state.room() >= count);
            let has_turn = state.ready.poll(ticket, served, waker, &mut state.later);
            has_turn.then(|| {
                state.permits += count;
                Ok(())
            })
        })
    }

    /// A permit has gone.
    pub(crate) fn give_back(&self, permits: u32) {
        if permits > 0 {
            self.change(|state| state.permits -= permits);
        }
    }

    pub(crate) fn leave_ready(&self, ticket: &mut Ticket) {
        self.change(|state| state.ready.leave(ticket, &mut state.later));
    }

    pub(crate) fn poll_receive(&self, ticket: &mut Ticket, waker: &Waker) -> Option<Result<Received, Error>> {
        self.change(|state| {
            if state.receivers.poll(ticket, state.received.len(), waker, &mut state.later) {
                return state.received.pop_front().map(Ok);
            }
            state.check("recv").err().map(|error| {
                state.receivers.leave(ticket, &mut state.later);
                Err(error)
            })
        })
    }

    #[inline]
    pub(crate) fn try_receive(&self) -> Option<Result<Received, Error>> {
        let mut state = self.lock();
        if state.receivers.has_more(state.received.len()) {
            return state.received.pop_front().map(Ok);
        }
        state.check("recv").err().map(Err)
    }

    pub(crate) fn leave_receivers(&self, ticket: &mut Ticket) {
        self.change(|state| state.receivers.leave(ticket, &mut state.later));
    }

    pub(crate) fn poll_closed(&self, ticket: &mut Ticket, waker: &Waker) -> Option<Fault> {
        self.change(|state| {
            let ended = state.fault.clone();
            match ended {
                Some(_) => state.watchers.leave(ticket, &mut state.later),
                None => drop(state.watchers.poll(ticket, 0, waker, &mut state.later)),
            }
            ended
        })
    }

    pub(crate) fn leave_watchers(&self, ticket: &mut Ticket) {
        self.change(|state| state.watchers.leave(ticket, &mut state.later));
    }

    #[inline]
    pub(crate) fn look<R>(
        &self,
        slot: u32,
        waker: Option<&Waker>,
        take: impl FnOnce(&mut Ending) -> R,
    ) -> Option<R> {
        let mut state = self.lock();
        let State { slots, later, .. } = &mut *state;
        let taken = slots.look(slot, waker, later, take);
        Self::release(state);
        taken
    }

    pub(crate) fn abandon(&self, slot: u32) {
        let mut state = self.lock();
        let State { slots, later, .. } = &mut *state;
        slots.abandon(slot, later);
        Self::release(state);
    }

    /// The program has read a message: its buffer receives the next one.
    #[inline]
    pub(crate) fn read(&self, buffer: Buffer) {
        let mut state = self.lock();
        let State { qp, fault, later, .. } = &mut *state;
        let back = match qp {
            Some(qp) if qp.recv_room() > 0 && fault.is_none() => {
                qp.recv(self.tag(RECEIVE), buffer).err().map(|failed| failed.back)
            }
            _ => Some(buffer),
        };
        if let Some(buffer) = back {
            later.drop_buffer(buffer);
        }
        Self::release(state);
    }

    /// All requests end as flushed.
    pub(crate) fn fail(&self, fault: &Fault) {
        let aborting = self.aborting();
        if let Some(mut qp) = self.take_failed(fault) {
            // An abort waits for accesses to memory. Other threads use the state meanwhile.
            qp.abort();
            self.lock().qp = Some(qp);
        }
        drop(aborting);
        // Nothing waits on for what a failed connection doesn't do any more.
        self.change(|_| ());
    }

    /// Notes the failure, and takes the queue pair out of the state. From here on nothing is posted.
    fn take_failed(&self, fault: &Fault) -> Option<Qp<Reliable>> {
        let mut state = self.lock();
        state.failed(fault);
        state.qp.take()
    }

    /// Destroys the queue pair. What is outstanding ends with this fault, or with that of the first failure.
    pub(crate) fn end(&self, fault: Fault) {
        let aborting = self.aborting();
        let qp = self.take_failed(&fault);
        drop(aborting);
        self.change(|_| ());
        let Some(qp) = qp else { return };
        // The peer is notified at the end, when nothing is outstanding any more.
        let link = self.link().take();
        let first = self.lock().fault.clone().unwrap_or(fault);
        for (tag, parts) in qp.destroy() {
            let fault = Fault::new(Status::Flushed, 0, None, Some(first.clone()));
            let (slot, mut parts) = (tag as u32, Some(parts));
            if slot != RECEIVE {
                self.change(|state| {
                    let State { slots, later, .. } = state;
                    slots.end(slot, later, |ending| {
                        ending.flush(fault, parts.take().unwrap_or_default());
                    });
                });
            }
        }
        drop(link);
        self.driver.forget(self.place);
    }
}

impl State {
    /// Requests that can be posted beyond those that are permitted.
    #[inline]
    fn room(&self) -> u32 {
        self.qp.as_ref().map_or(0, |qp| qp.room().saturating_sub(self.permits))
    }

    /// # Errors
    /// It has ended, or isn't connected.
    #[inline]
    fn check(&self, verb: &'static str) -> Result<(), Error> {
        if self.fault.is_none() && self.qp.is_some() { Ok(()) } else { Err(self.ended(verb)) }
    }

    #[cold]
    fn ended(&self, verb: &'static str) -> Error {
        match &self.fault {
            Some(fault) => fault.clone().into(),
            None => Error::new(Kind::Dead, verb, "it isn't connected"),
        }
    }

    /// Notes the first failure.
    fn failed(&mut self, fault: &Fault) {
        if self.fault.is_none() {
            self.fault = Some(fault.first().unwrap_or(fault).clone());
        }
    }

    /// Wakes all tasks whose turn it is; every task if the connection has ended.
    #[inline]
    fn wake(&mut self) {
        if !(self.ready.is_empty() && self.receivers.is_empty() && self.watchers.is_empty()) {
            self.wake_each();
        }
    }

    #[inline(never)]
    fn wake_each(&mut self) {
        let mut later = std::mem::take(&mut self.later);
        let all = |count: usize| if self.fault.is_some() { usize::MAX } else { count };
        self.ready.wake(all(usize::from(self.room() > 0)), &mut later);
        self.receivers.wake(all(self.received.len()), &mut later);
        self.watchers.wake(all(0), &mut later);
        self.later = later;
    }
}
