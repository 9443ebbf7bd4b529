//! Requests on borrowed memory, which end before a call returns.

use crate::verbs::core::Core;
use crate::verbs::cq::{CqCore, Operated};
use crate::verbs::ops::{sealed::Flags, token_error};
use crate::verbs::slots::Kept;
use ferroce_buffers::rights::{Reads, Writes};
use ferroce_buffers::{Borrows, Error, Fault, Held, Remote, Result, Segments, borrowing};
use ferroce_proto::SendOp;
use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What completions report to a scope.
#[derive(Default)]
pub(crate) struct Scoped(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    outstanding: u32,
    /// The first failure.
    fault: Option<Fault>,
    /// Lengths of messages that were received, in order.
    received: Vec<usize>,
}

impl Scoped {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has ended, and its memory isn't lent any more.
    pub(crate) fn note(&self, what: Operated, len: usize, fault: Option<Fault>) {
        let mut counts = self.counts();
        counts.outstanding -= 1;
        match fault {
            None if what == Operated::Received => counts.received.push(len),
            None => {}
            // What was flushed because of the failure isn't the reason.
            Some(fault) => _ = counts.fault.get_or_insert(fault),
        }
    }
}

/// Posts requests on borrowed memory. [`Qp::scope`](crate::verbs::Qp::scope) makes it.
pub struct Scope<'s, 'env> {
    ends: &'s RefCell<EndOfScope<'s>>,
    borrows: &'s Borrows<'env>,
}

/// Both ends of a queue pair, and its requests on borrowed memory.
struct EndOfScope<'s> {
    core: &'s mut Core,
    cq: &'s mut CqCore,
    scoped: Arc<Scoped>,
}

impl EndOfScope<'_> {
    /// Waits until at most so many requests are outstanding.
    fn drain(&mut self, most: u32) -> Result<()> {
        while self.scoped.counts().outstanding > most {
            self.core.check("finish")?;
            self.cq.keep_completions()?;
        }
        Ok(())
    }
}

/// When it is dropped, no request of the scope is outstanding.
struct Guard<'s, 'e>(&'s RefCell<EndOfScope<'e>>);

impl Drop for Guard<'_, '_> {
    fn drop(&mut self) {
        let ends = &mut *self.0.borrow_mut();
        // After a panic, or without the device, nothing is waited for.
        if ends.scoped.counts().outstanding > 0 {
            drop(ends.core.destroy());
        }
    }
}

pub(crate) fn scope<'env, R>(
    core: &mut Core,
    cq: &mut CqCore,
    f: impl FnOnce(&Scope<'_, 'env>) -> R,
) -> Result<R> {
    if !core.completes_in(cq.shared()) {
        return Err(Error::invalid("scope", "the queue pair doesn't complete in this completion queue"));
    }
    borrowing(|borrows| {
        let ends = RefCell::new(EndOfScope { core, cq, scoped: Arc::default() });
        let _guard = Guard(&ends);
        let scope = Scope { ends: &ends, borrows };
        let result = f(&scope);
        scope.finish().map(|_| result)
    })
}

impl<'env> Scope<'_, 'env> {
    /// Sends these bytes.
    ///
    /// # Errors
    /// The device refuses to register them, they are too long for a message, other requests fill the send queue
    /// ([`Kind::Full`](crate::Kind::Full)), or the queue pair is destroyed.
    pub fn send(&self, bytes: &'env [u8]) -> Result<()> {
        self.read_for(bytes, SendOp::Send, Operated::Sent)
    }

    /// Writes these bytes to the beginning of the peer's memory.
    ///
    /// # Errors
    /// As [`Scope::send`]; or the peer's memory is shorter.
    pub fn write<A: Writes>(&self, bytes: &'env [u8], to: Remote<A>) -> Result<()> {
        let len = bytes.len() as u64;
        if len > to.len() {
            return Err(token_error(len, to.len()));
        }
        let op = SendOp::Write { va: to.address(), rkey: to.key() };
        self.read_for(bytes, op, Operated::Written)
    }

    fn read_for(&self, bytes: &'env [u8], op: SendOp, what: Operated) -> Result<()> {
        let mut ends = self.ends.borrow_mut();
        let memory = ends.core.domain().borrow(self.borrows, bytes)?;
        Self::post(&mut ends, op, what, memory)
    }

    /// Reads all of the peer's memory to the beginning of these bytes. They can be used after the scope.
    ///
    /// # Errors
    /// As [`Scope::send`]; or the peer's memory is longer.
    pub fn read<A: Reads>(&self, into: &'env mut [u8], from: Remote<A>) -> Result<()> {
        let len = usize::try_from(from.len()).ok().filter(|len| *len <= into.len());
        let Some(len) = len else {
            return Err(token_error(from.len(), into.len() as u64));
        };
        let mut ends = self.ends.borrow_mut();
        let memory = ends.core.domain().borrow_mut(self.borrows, &mut into[..len])?;
        let op = SendOp::Read { va: from.address(), rkey: from.key() };
        Self::post(&mut ends, op, Operated::Read, memory)
    }

    fn post(
        ends: &mut EndOfScope<'_>,
        op: SendOp,
        what: Operated,
        (segments, held): (Segments, Held),
    ) -> Result<()> {
        while ends.core.room() == 0 && ends.scoped.counts().outstanding > 0 {
            ends.core.check("post")?;
            ends.cq.keep_completions()?;
        }
        let kept = Kept::Scoped(ends.scoped.clone());
        let prepared = ends.core.prepare_borrowed(op, Flags::default(), what, segments, held, kept)?;
        ends.scoped.counts().outstanding += 1;
        ends.core.commit(prepared);
        Ok(())
    }

    /// Posts these bytes for a message. They can be used after the scope.
    ///
    /// # Errors
    /// As [`Scope::send`]; or the receive queue has no room, or is shared.
    pub fn recv(&self, into: &'env mut [u8]) -> Result<()> {
        let mut ends = self.ends.borrow_mut();
        let (segments, held) = ends.core.domain().borrow_mut(self.borrows, into)?;
        let kept = Kept::Scoped(ends.scoped.clone());
        let scoped = ends.scoped.clone();
        // Its completion may be taken as soon as it is posted.
        scoped.counts().outstanding += 1;
        let posted = ends.core.recv_borrowed(segments, held, kept);
        posted.inspect_err(|_| scoped.counts().outstanding -= 1)
    }

    /// Waits until all requests of the scope have ended, and returns the lengths of the messages that were received since the last
    /// time, in order. The end of the scope does the same.
    ///
    /// # Errors
    /// The first failure of a request, or the device can't be used any more.
    ///
    /// # Panics
    /// In a simulation: a request will never end.
    pub fn finish(&self) -> Result<Vec<usize>> {
        let mut ends = self.ends.borrow_mut();
        ends.drain(0)?;
        self.borrows.settle();
        let mut counts = ends.scoped.counts();
        match counts.fault.take() {
            Some(fault) => Err(fault.into()),
            None => Ok(std::mem::take(&mut counts.received)),
        }
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outstanding = self.ends.borrow().scoped.counts().outstanding;
        f.debug_struct("Scope").field("outstanding", &outstanding).finish()
    }
}
