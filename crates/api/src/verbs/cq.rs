//! Completion queues.

use crate::verbs::backend::RawCq;
use crate::verbs::endpoint::{Endpoint, GRH};
use crate::verbs::loans::{Loan, RawLoan};
use crate::verbs::slots::{Entry, Kept, Queue, Shared};
use ferroce_buffers::rights::Right;
use ferroce_buffers::{Buffer, Ended, Error, Fault, Held, Part, Parts, Result};
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a request was.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Operated {
    /// A message was sent.
    Sent,
    /// A peer's memory was written.
    Written,
    /// A peer's memory was read.
    Read,
    /// An atomic was carried out.
    Atomic,
    /// Memory was lent to the peer.
    Lent,
    /// A message was received.
    Received,
    /// A peer has written memory of this side, and has sent 32 bits with it. The receive's own memory is unused.
    ReceivedWrite,
}

/// A completion queue.
///
/// It has room for the completions of all its queue pairs: [`build`](crate::verbs::Builder::build) fails otherwise.
pub struct Cq {
    inner: RawCq,
    shared: Arc<Shared>,
    /// Requests that have ended while a scope waited for its own.
    kept: VecDeque<Done>,
    /// Completions that were taken from the adapter.
    entries: VecDeque<Ended>,
    /// A completion whose quiet predecessors are reported first. It is of the queue that was found last.
    retiring: Option<Ended>,
    found: Option<Arc<Queue>>,
}

impl Cq {
    pub(crate) fn new(inner: RawCq, capacity: u32) -> Self {
        Self::with(inner, Shared::new(capacity))
    }

    fn with(inner: RawCq, shared: Arc<Shared>) -> Self {
        let (kept, entries) = (VecDeque::new(), VecDeque::new());
        Self { inner, shared, kept, entries, retiring: None, found: None }
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) const fn inner(&self) -> &RawCq {
        &self.inner
    }

    /// The same queue, to build queue pairs with while another thread has the queue for itself. It isn't polled.
    pub(crate) fn for_builders(&self) -> Self {
        Self::with(self.inner.clone(), self.shared.clone())
    }

    fn has_entries(&self) -> bool {
        !self.kept.is_empty() || self.retiring.is_some() || !self.entries.is_empty()
    }

    /// Completions that have happened. Polling also makes progress: on [`Device::native`](crate::verbs::Device::native) for the
    /// adapter, in a simulation for other programs if there are none.
    ///
    /// # Errors
    /// The device can't be used any more.
    pub fn poll(&mut self) -> Result<Completions<'_>> {
        if !self.has_entries() {
            self.inner.poll(&mut self.entries)?;
        }
        Ok(Completions { cq: self })
    }

    /// Waits for a completion, at most for `limit`. False if none came.
    ///
    /// # Errors
    /// The device can't be used any more. (A simulated one always can.)
    ///
    /// # Panics
    /// In a simulation without a limit: no completion will ever come. The message contains what each queue pair waits for.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<bool> {
        while !self.is_ready() {
            if !self.inner.wait(&mut self.entries, limit)? {
                return Ok(false);
            }
            if self.entries.is_empty() {
                self.inner.poll(&mut self.entries)?;
            }
        }
        Ok(true)
    }

    /// Whether a completion was taken whose request is outstanding. Those of queue pairs that were destroyed since are dropped.
    fn is_ready(&mut self) -> bool {
        if !self.kept.is_empty() {
            return true;
        }
        self.is_outstanding()
    }

    /// As [`Cq::is_ready`], without those that were kept.
    fn is_outstanding(&mut self) -> bool {
        loop {
            if let (Some(completion), Some(queue)) = (&self.retiring, &self.found) {
                if queue.is_outstanding(completion.wr_id as u32) {
                    return true;
                }
                self.retiring = None;
            }
            self.retiring = self.entries.pop_front();
            let Some(completion) = &self.retiring else { return false };
            self.found = self.shared.find_again(self.found.take(), (completion.wr_id >> 32) as u32);
        }
    }

    /// The descriptor for an event loop (epoll, `AsyncFd`), if the device has one; a simulated one has none. After [`Cq::arm`] it is
    /// readable as soon as there is a completion. Programs don't read it.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    /// Prepares a sleep on the [descriptor](Cq::descriptor). False: there are completions, so poll before the sleep. A loop that
    /// polls until the queue is empty, arms, and sleeps if that returns true, misses no completion.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub fn arm(&mut self) -> Result<bool> {
        if self.is_ready() {
            return Ok(false);
        }
        self.inner.arm()?;
        // One that has come before is seen here, one that comes later is announced.
        self.inner.poll(&mut self.entries)?;
        Ok(!self.is_ready())
    }

    /// Waits for the next completion, at most for `limit`.
    ///
    /// # Errors
    /// As [`Cq::wait`].
    ///
    /// # Panics
    /// As [`Cq::wait`].
    pub fn next(&mut self, limit: Option<Duration>) -> Result<Option<Completion<'_>>> {
        loop {
            if !self.wait(limit)? {
                return Ok(None);
            }
            if let Some(done) = self.retire() {
                return Ok(Some(Completion { done, cq: PhantomData }));
            }
        }
    }

    /// Waits for a completion, and keeps what has ended for [`Cq::next`], but for requests on borrowed memory.
    pub(crate) fn keep_completions(&mut self) -> Result<()> {
        while !self.is_outstanding() {
            self.inner.wait(&mut self.entries, None)?;
            if self.entries.is_empty() {
                self.inner.poll(&mut self.entries)?;
            }
        }
        while let Some(done) = self.retire_taken() {
            self.kept.push_back(done);
        }
        Ok(())
    }

    fn retire(&mut self) -> Option<Done> {
        self.kept.pop_front().or_else(|| self.retire_taken())
    }

    /// The next completion among those that were taken. One that belongs to no outstanding request is dropped (rules S4, S11).
    fn retire_taken(&mut self) -> Option<Done> {
        loop {
            if let (Some(completion), Some(queue)) = (&self.retiring, &self.found) {
                let slot = completion.wr_id as u32;
                // Before the receive retires: its key may be used again after that.
                if let Some(key) = completion.invalidated.filter(|_| queue.is_outstanding(slot)) {
                    self.shared.note_returned(completion.qpn, key);
                }
                let retired = queue.retire(slot);
                let last = retired.as_ref().is_none_or(|(_, last)| *last);
                let done = retired.map(|(entry, last)| Done::new(entry, completion, last));
                if last {
                    self.retiring = None;
                }
                match done {
                    Some(Some(done)) => return Some(done),
                    // It was a scope's. There may be more behind it.
                    Some(None) => continue,
                    None => {}
                }
            }
            self.retiring = self.entries.pop_front();
            let number = (self.retiring.as_ref()?.wr_id >> 32) as u32;
            self.found = self.shared.find_again(self.found.take(), number);
        }
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").field("capacity", &self.shared.capacity()).finish()
    }
}

/// The completions that [`Cq::poll`] has found. Those that aren't taken are there for the next poll.
#[derive(Debug)]
pub struct Completions<'c> {
    cq: &'c mut Cq,
}

impl Completions<'_> {
    /// The next one.
    #[allow(clippy::should_implement_trait)] // It lends.
    pub fn next(&mut self) -> Option<Completion<'_>> {
        self.cq.retire().map(|done| Completion { done, cq: PhantomData })
    }
}

/// A request that has ended.
struct Done {
    tag: u64,
    qp: u32,
    what: Operated,
    fault: Option<Fault>,
    len: u32,
    immediate: Option<u32>,
    value: Option<u64>,
    source: Option<Endpoint>,
    returned: Option<u32>,
    loan: Option<RawLoan>,
    parts: Parts,
}

impl Done {
    /// `last` is false for a quiet request, which ended before the one that the completion is of. `None` for a request of a scope.
    fn new(entry: Entry, completion: &Ended, last: bool) -> Option<Self> {
        let Entry { tag, what, len, held, kept } = entry;
        let fault = completion.fault.clone().filter(|_| last);
        let done = fault.is_none();
        let &Ended { qpn, byte_len, immediate, .. } = completion;
        let (what, len, immediate) = match what {
            Operated::Received if done && completion.is_write => {
                (Operated::ReceivedWrite, byte_len, immediate)
            }
            Operated::Received if done => (what, byte_len, immediate),
            Operated::Read if done => (what, len, None),
            what => (what, 0, None),
        };
        let written = match what {
            Operated::Received | Operated::Read if done => Some(len as usize),
            Operated::Atomic => Some(8),
            _ => None,
        };
        let returned = completion.invalidated.filter(|_| what == Operated::Received);
        let (held, loan) = match &kept {
            Some(Kept::Window(lent, receives)) if done => {
                (Held::default(), Some(RawLoan::new(lent.clone(), receives.clone(), held)))
            }
            Some(Kept::Window(lent, receives)) => {
                lent.end(Some(receives));
                (held, None)
            }
            _ => (held, None),
        };
        let (value, source, parts) = (None, None, held.settle(written));
        let mut done =
            Self { tag, qp: qpn, what, fault, len, immediate, value, source, returned, loan, parts };
        match kept {
            // The result's memory is the queue pair's.
            None if what == Operated::Atomic => done.take_value(),
            Some(Kept::Grh(qkey)) => done.take_grh(completion, qkey.load(Ordering::Relaxed)),
            Some(Kept::Scoped(scoped)) => {
                // The loans end before the scope learns that the request has.
                done.parts = Parts::default();
                scoped.note(what, done.len as usize, done.fault);
                return None;
            }
            None | Some(Kept::Address(_) | Kept::Window(..)) => {}
        }
        Some(done)
    }

    fn take_value(&mut self) {
        let result = std::mem::take(&mut self.parts).buffer();
        let value = result.and_then(|result| result[..].try_into().ok());
        self.value = value.filter(|_| self.fault.is_none()).map(u64::from_ne_bytes);
    }

    /// Of a datagram, the first bytes are of its GRH, whose memory is the queue pair's.
    fn take_grh(&mut self, completion: &Ended, qkey: u32) {
        let Some(Part::Buffer(grh)) = self.parts.next() else { return };
        self.len = self.len.saturating_sub(GRH as u32);
        if self.fault.is_none() && completion.has_grh {
            self.source = Endpoint::of_sender(&grh, completion.source, qkey);
        }
    }
}

/// The end of a request. Dropping it drops the memory that [`Completion::take`] would return.
pub struct Completion<'c> {
    done: Done,
    cq: PhantomData<&'c mut Cq>,
}

impl Completion<'_> {
    /// The tag of the request.
    #[must_use]
    pub const fn tag(&self) -> u64 {
        self.done.tag
    }

    /// The QPN of the queue pair.
    #[must_use]
    pub const fn qp(&self) -> u32 {
        self.done.qp
    }

    /// What the request was.
    #[must_use]
    pub const fn what(&self) -> Operated {
        self.done.what
    }

    /// Whether it has succeeded.
    ///
    /// # Errors
    /// Why it has failed.
    pub fn result(&self) -> Result<(), Fault> {
        self.done.fault.clone().map_or(Ok(()), Err)
    }

    /// Bytes that were received, or read, or (`ReceivedWrite`) written by the peer.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.done.len as usize
    }

    /// Nothing was received, read or written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The 32 bits that came with the message.
    #[must_use]
    pub const fn imm(&self) -> Option<u32> {
        self.done.immediate
    }

    /// Of an atomic that has succeeded: the word before.
    #[must_use]
    pub const fn value(&self) -> Option<u64> {
        self.done.value
    }

    /// Of a datagram that was received: the queue pair that has sent it, with the Q_Key of this one.
    /// [`Domain::address`](crate::verbs::Domain::address) makes an address of it for an answer.
    #[must_use]
    pub const fn source(&self) -> Option<&Endpoint> {
        self.done.source.as_ref()
    }

    /// Of a message that [returns](crate::verbs::Send::returning) a loan: the key of its token.
    #[must_use]
    pub const fn returned(&self) -> Option<u32> {
        self.done.returned
    }

    /// Of a request that has [lent](crate::verbs::Lend) memory with these rights: the loan. If the completion is dropped with it, the
    /// memory is recalled.
    ///
    /// # Errors
    /// Why the request has failed. Or it has lent nothing, or not with these rights, or the loan was taken
    /// ([`Kind::Invalid`](crate::Kind::Invalid)).
    pub fn loan<A: Right>(&mut self) -> Result<Loan<A>> {
        self.result()?;
        let loan = self.done.loan.take_if(|loan| loan.rights() == A::RIGHTS).map(Loan::new);
        loan.ok_or_else(|| Error::invalid("loan", "the completion has no loan with these rights"))
    }

    /// The memory of the request. Buffers of a receive or a READ have the length of what was written to them.
    pub fn take(&mut self) -> Parts {
        std::mem::take(&mut self.done.parts)
    }

    /// The first buffer of the request, if the request has succeeded.
    ///
    /// # Errors
    /// Why the request has failed.
    pub fn buffer(&mut self) -> Result<Option<Buffer>, Fault> {
        self.result()?;
        Ok(self.take().buffer())
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Done { tag, qp, what, fault, len, .. } = &self.done;
        let mut text = f.debug_struct("Completion");
        text.field("tag", tag).field("qp", qp).field("what", what).field("len", len);
        text.field("fault", fault).finish()
    }
}
