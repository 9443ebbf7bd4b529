//! Completion queues, and the slots of the queue pairs that use them.

use crate::verbs::backend::{Ended, RawCq, Taken};
use ferroce_buffers::slots::Retirer;
use ferroce_buffers::{Buffer, Error, Fault, Held, Kind, Parts, Result};
use ferroce_proto::WcOpcode;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// A message was received.
    Received,
    /// A peer has written memory of this side, and has sent 32 bits with it. The receive's own memory is unused.
    ReceivedWrite,
}

/// What a slot contains.
pub(crate) struct Entry {
    pub(crate) tag: u64,
    pub(crate) what: Operated,
    /// Bytes that a READ asks for.
    pub(crate) len: u32,
    pub(crate) held: Held,
}

/// The slots of one direction of a queue pair, as the completion queue sees them.
pub(crate) struct Queue {
    number: u32,
    retirer: Mutex<Retirer<Entry>>,
}

impl Queue {
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    fn retirer(&self) -> MutexGuard<'_, Retirer<Entry>> {
        self.retirer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all entries. The queue pair is destroyed, so nothing uses them.
    pub(crate) fn drain(&self) -> Vec<(u64, Parts)> {
        let mut entries = Vec::new();
        // The lock isn't held while memory is released, which may run code of the program.
        while let Some(entry) = { self.retirer().pop() } {
            entries.push((entry.tag, entry.held.settle(None)));
        }
        entries
    }
}

/// What a completion queue shares with its queue pairs.
pub(crate) struct Shared {
    capacity: u32,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    joined: BTreeMap<u32, Arc<Queue>>,
    next: u32,
    /// Entries that completions of the queues may take.
    reserved: u32,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves entries for a queue: a completion queue never overruns (rule S10).
    pub(crate) fn reserve(&self, depth: u32) -> Result<()> {
        let mut queues = self.queues();
        let free = self.capacity - queues.reserved;
        if depth > free {
            let why = format!("the completion queue has room for {free} more requests, not for {depth}");
            return Err(Error::new(Kind::Full, "build", why));
        }
        queues.reserved += depth;
        Ok(())
    }

    /// Adds the slots of a queue.
    pub(crate) fn join(&self, retirer: Retirer<Entry>) -> Arc<Queue> {
        let mut queues = self.queues();
        // A number comes again after 2^32 queues.
        while queues.joined.contains_key(&queues.next) {
            queues.next = queues.next.wrapping_add(1);
        }
        let number = queues.next;
        queues.next = number.wrapping_add(1);
        let queue = Arc::new(Queue { number, retirer: Mutex::new(retirer) });
        queues.joined.insert(number, queue.clone());
        queue
    }

    /// Ends the reservation of a queue, whose queue pair is destroyed.
    pub(crate) fn leave(&self, queue: &Queue, depth: u32) {
        let mut queues = self.queues();
        queues.reserved -= depth;
        let removed = queues.joined.remove(&queue.number);
        drop(queues);
        drop(removed);
    }

    /// The queue of a completion, which may be the one that was found last.
    fn find_again(&self, last: Option<Arc<Queue>>, completion: &Ended) -> Option<Arc<Queue>> {
        let number = (completion.inner.wr_id >> 32) as u32;
        last.filter(|queue| queue.number == number).or_else(|| self.queues().joined.get(&number).cloned())
    }
}

/// A completion queue.
///
/// It has room for the completions of all its queue pairs: [`build`](crate::verbs::Builder::build) fails otherwise.
pub struct Cq {
    inner: RawCq,
    shared: Arc<Shared>,
    /// Completions that were taken from the adapter.
    entries: Taken,
    /// A completion whose quiet predecessors are reported first. It is of the queue that was found last.
    retiring: Option<Ended>,
    found: Option<Arc<Queue>>,
}

impl Cq {
    pub(crate) fn new(inner: RawCq, capacity: u32) -> Self {
        let shared = Arc::new(Shared { capacity, queues: Mutex::default() });
        let entries = inner.taken();
        Self { inner, shared, entries, retiring: None, found: None }
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) const fn inner(&self) -> &RawCq {
        &self.inner
    }

    /// The same queue, to build queue pairs with while another thread has the queue for itself. It isn't polled.
    pub(crate) fn for_builders(&self) -> Self {
        let (inner, shared) = (self.inner.clone(), self.shared.clone());
        Self { entries: inner.taken(), inner, shared, retiring: None, found: None }
    }

    fn has_entries(&self) -> bool {
        self.retiring.is_some() || !self.entries.is_empty()
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
        loop {
            if let (Some(completion), Some(queue)) = (&self.retiring, &self.found) {
                if queue.retirer().is_outstanding(completion.inner.wr_id as u32) {
                    return true;
                }
                self.retiring = None;
            }
            self.retiring = self.entries.pop();
            let Some(completion) = &self.retiring else { return false };
            self.found = self.shared.find_again(self.found.take(), completion);
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

    /// The next completion among those that were taken. One that belongs to no outstanding request is dropped (rules S4, S11).
    fn retire(&mut self) -> Option<Done> {
        loop {
            if let (Some(completion), Some(queue)) = (&self.retiring, &self.found) {
                let number = completion.inner.wr_id as u32;
                let (entry, last) = {
                    let mut retirer = queue.retirer();
                    let last = retirer.oldest() == Some(number);
                    (retirer.is_outstanding(number).then(|| retirer.pop()).flatten(), last)
                };
                let done = entry.map(|entry| Done::new(entry, completion, last));
                if last || done.is_none() {
                    self.retiring = None;
                }
                if done.is_some() {
                    return done;
                }
            }
            self.retiring = self.entries.pop();
            self.found = self.shared.find_again(self.found.take(), self.retiring.as_ref()?);
        }
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").field("capacity", &self.shared.capacity).finish()
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
    parts: Parts,
}

impl Done {
    /// `last` is false for a quiet request, which ended before the one that the completion is of.
    fn new(entry: Entry, completion: &Ended, last: bool) -> Self {
        let Entry { tag, what, len, held } = entry;
        let Ended { inner, qpn, fault } = completion;
        let fault = fault.clone().filter(|_| last);
        let done = fault.is_none();
        let (what, len, immediate) = match what {
            Operated::Received if done && inner.opcode == WcOpcode::RecvRdmaWithImm => {
                (Operated::ReceivedWrite, inner.byte_len, inner.immediate)
            }
            Operated::Received if done => (what, inner.byte_len, inner.immediate),
            Operated::Read if done => (what, len, None),
            what => (what, 0, None),
        };
        let written = match what {
            Operated::Received | Operated::Read if done => Some(len as usize),
            Operated::Atomic => Some(8),
            _ => None,
        };
        let mut done = Self {
            tag,
            qp: *qpn,
            what,
            fault,
            len,
            immediate: immediate.map(u32::from_be_bytes),
            value: None,
            parts: held.settle(written),
        };
        if what == Operated::Atomic {
            // The result's memory is the queue pair's.
            let result = std::mem::take(&mut done.parts).buffer();
            let value = result.and_then(|result| result[..].try_into().ok());
            done.value = value.filter(|_| done.fault.is_none()).map(u64::from_ne_bytes);
        }
        done
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
