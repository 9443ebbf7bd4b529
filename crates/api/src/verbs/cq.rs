//! Completion queues, and the slots of the queue pairs that use them.

use crate::verbs::backend::{Ended, RawCq, Taken};
use ferroce_buffers::slots::Retirer;
use ferroce_buffers::{Buffer, Error, Fault, Held, Kind, Part, Parts, Result};
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

    #[inline]
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

    /// The queue with this number.
    fn find(&self, number: u32) -> Option<Arc<Queue>> {
        self.queues().joined.get(&number).cloned()
    }
}

/// The number of a completion's queue.
#[inline]
const fn number_of(completion: &Ended) -> u32 {
    (completion.inner.wr_id >> 32) as u32
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
            if self.found.as_ref().is_none_or(|queue| queue.number != number_of(completion)) {
                self.found = self.shared.find(number_of(completion));
            }
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
    #[inline(always)]
    fn retire(&mut self) -> Option<Done> {
        loop {
            if let (Some(completion), Some(queue)) = (&self.retiring, &self.found) {
                let mut retirer = queue.retirer();
                let number = completion.inner.wr_id as u32;
                if retirer.is_outstanding(number) {
                    let last = retirer.oldest() == Some(number);
                    let done = Done::new(retirer.pop()?, completion, last);
                    drop(retirer);
                    if last {
                        self.retiring = None;
                    }
                    return Some(done);
                }
                self.retiring = None;
            }
            self.retiring = self.entries.pop();
            let completion = self.retiring.as_ref()?;
            if self.found.as_ref().is_none_or(|queue| queue.number != number_of(completion)) {
                self.found = self.shared.find(number_of(completion));
            }
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
    #[inline]
    pub fn next(&mut self) -> Option<Completion<'_>> {
        self.cq.retire().map(|done| Completion { done, cq: PhantomData })
    }
}

/// A request that has ended.
struct Done {
    entry: Entry,
    qp: u32,
    len: u32,
    immediate: Option<[u8; 4]>,
    value: Option<u64>,
    fault: Option<Fault>,
    /// Bytes that were written to the memory that is left in the entry.
    written: Option<usize>,
}

impl Done {
    /// `last` is false for a quiet request, which ended before the one that the completion is of.
    #[inline(always)]
    fn new(entry: Entry, completion: &Ended, last: bool) -> Self {
        let Ended { inner, qpn, fault } = completion;
        let fault = if last { fault.clone() } else { None };
        let done = fault.is_none();
        let mut this = Self { entry, qp: *qpn, len: 0, immediate: None, value: None, fault, written: None };
        match this.entry.what {
            Operated::Received if done => {
                (this.len, this.immediate) = (inner.byte_len, inner.immediate);
                if inner.opcode == WcOpcode::RecvRdmaWithImm {
                    this.entry.what = Operated::ReceivedWrite;
                } else {
                    this.written = Some(this.len as usize);
                }
            }
            Operated::Read if done => {
                this.len = this.entry.len;
                this.written = Some(this.len as usize);
            }
            Operated::Atomic => this.take_value(done),
            _ => {}
        }
        this
    }

    /// Takes the result of an atomic, which is memory of the queue pair.
    fn take_value(&mut self, done: bool) {
        self.written = Some(8);
        let result = self.buffer();
        let value = result.and_then(|result| result[..].try_into().ok());
        self.value = value.filter(|_| done).map(u64::from_ne_bytes);
    }

    /// The first buffer that is left.
    #[inline]
    fn buffer(&mut self) -> Option<Buffer> {
        loop {
            if let Part::Buffer(buffer) = self.entry.held.take(&mut self.written)? {
                return Some(buffer);
            }
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
        self.done.entry.tag
    }

    /// The QPN of the queue pair.
    #[must_use]
    pub const fn qp(&self) -> u32 {
        self.done.qp
    }

    /// What the request was.
    #[must_use]
    pub const fn what(&self) -> Operated {
        self.done.entry.what
    }

    /// Whether it has succeeded.
    ///
    /// # Errors
    /// Why it has failed.
    #[inline]
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
        match self.done.immediate {
            Some(bytes) => Some(u32::from_be_bytes(bytes)),
            None => None,
        }
    }

    /// Of an atomic that has succeeded: the word before.
    #[must_use]
    pub const fn value(&self) -> Option<u64> {
        self.done.value
    }

    /// The memory of the request. Buffers of a receive or a READ have the length of what was written to them.
    #[inline]
    pub fn take(&mut self) -> Parts {
        std::mem::take(&mut self.done.entry.held).settle(self.done.written)
    }

    /// The first buffer of the request that wasn't taken, if the request has succeeded.
    ///
    /// # Errors
    /// Why the request has failed.
    #[inline]
    pub fn buffer(&mut self) -> Result<Option<Buffer>, Fault> {
        self.result()?;
        Ok(self.done.buffer())
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Done { entry: Entry { tag, what, .. }, qp, fault, len, .. } = &self.done;
        let mut text = f.debug_struct("Completion");
        text.field("tag", tag).field("qp", qp).field("what", what).field("len", len);
        text.field("fault", fault).finish()
    }
}
