//! Completion queues.

use crate::verbs::backend::RawCq;
use crate::verbs::endpoint::{Endpoint, GRH};
use crate::verbs::extra::Extra;
use crate::verbs::loans::{Loan, RawLoan};
use crate::verbs::slots::{Entry, Kept, Queue, Shared};
use ferroce_buffers::rights::Right;
use ferroce_buffers::{Buffer, Ended, Error, Fault, Held, Part, Parts, Polled, Result, Rights, Stamp};
use ferroce_types::WcOpcode;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What a request was.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Operated {
    /// A message was sent.
    #[default]
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

/// The number of a completion's queue.
#[inline]
const fn number_of(ended: &Ended) -> u32 {
    (ended.wr_id >> 32) as u32
}

/// A completion queue, without the type of what completions contain besides.
pub(crate) struct CqCore {
    inner: RawCq,
    shared: Arc<Shared>,
    /// Requests that have ended while a scope waited for its own.
    kept: VecDeque<Done>,
    /// Completions that were taken from the adapter together.
    polled: Polled,
    /// The first of them that isn't reported: its quiet predecessors may be.
    next: usize,
    /// The queue that was found last.
    found: Option<Arc<Queue>>,
    /// The request that was retired last, until its [`Completion`] is dropped. If that was forgotten, until the next one retires.
    done: Done,
}

impl CqCore {
    pub(crate) fn new(inner: RawCq, capacity: u32) -> Self {
        Self::with(inner, Shared::new(capacity))
    }

    fn with(inner: RawCq, shared: Arc<Shared>) -> Self {
        let (kept, polled, done) = (VecDeque::new(), Polled::default(), Done::default());
        Self { inner, shared, kept, polled, next: 0, found: None, done }
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) const fn inner(&self) -> &RawCq {
        &self.inner
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<()> {
        if self.next < self.polled.len() {
            return Ok(());
        }
        if self.kept.is_empty() { self.take_entries() } else { Ok(()) }
    }

    /// Takes completions from the adapter. Those that were taken before are reported, also those before an error.
    #[inline(always)]
    fn take_entries(&mut self) -> Result<()> {
        self.polled.clear();
        self.next = 0;
        let result = self.inner.poll(&mut self.polled);
        self.note_returned();
        result
    }

    /// As [`CqCore::take_entries`], and waits for a completion. False: the limit was reached.
    fn await_entries(&mut self, limit: Option<Duration>) -> Result<bool> {
        self.polled.clear();
        self.next = 0;
        let mut waited = self.inner.wait(&mut self.polled, limit);
        if matches!(waited, Ok(true)) && self.polled.is_empty() {
            waited = self.inner.poll(&mut self.polled).map(|()| true);
        }
        self.note_returned();
        waited
    }

    /// Notes the keys that messages have invalidated. This is done when the completions are taken: later, the QPN may be that of another
    /// queue pair, and the receive has retired, so that the key is another loan's.
    #[inline]
    fn note_returned(&self) {
        if self.polled.is_unusual() {
            self.note_each_returned();
        }
    }

    #[inline(never)]
    fn note_each_returned(&self) {
        for place in 0..self.polled.len() {
            let Some(ended) = self.polled.get(place) else { continue };
            let Some(key) = ended.invalidated_rkey() else { continue };
            if self.polled.fault(place).is_some() {
                continue;
            }
            let queue = self.shared.find(number_of(ended));
            if queue.is_some_and(|queue| queue.is_outstanding(ended.wr_id as u32)) {
                self.shared.note_returned(ended.qp_num, key);
            }
        }
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<bool> {
        while !self.is_ready() {
            if !self.await_entries(limit)? {
                return Ok(false);
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

    /// As [`CqCore::is_ready`], without those that were kept.
    fn is_outstanding(&mut self) -> bool {
        while let Some(ended) = self.polled.get(self.next) {
            let queue = find(&mut self.found, &self.shared, number_of(ended));
            if queue.is_some_and(|queue| queue.is_outstanding(ended.wr_id as u32)) {
                return true;
            }
            self.next += 1;
        }
        false
    }

    fn arm(&mut self) -> Result<bool> {
        if self.is_ready() {
            return Ok(false);
        }
        self.inner.arm()?;
        // One that has come before is seen here, one that comes later is announced.
        self.take_entries()?;
        Ok(!self.is_ready())
    }

    /// As [`CqCore::retire`], and waits for a completion.
    fn next(&mut self, limit: Option<Duration>) -> Result<bool> {
        while self.wait(limit)? {
            if self.retire() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits for a completion, and keeps what has ended for [`CqCore::retire`], but for requests on borrowed memory.
    pub(crate) fn keep_completions(&mut self) -> Result<()> {
        let mut awaited = Ok(true);
        while awaited.is_ok() && !self.is_outstanding() {
            awaited = self.await_entries(None);
        }
        while self.retire_taken() {
            self.kept.push_back(std::mem::take(&mut self.done));
        }
        awaited.map(drop)
    }

    /// Has the next request that has ended in `done`. False: there is none.
    #[inline]
    fn retire(&mut self) -> bool {
        // While completions are kept, none of those that were taken is left: those that are kept are the older ones.
        self.retire_taken() || (!self.kept.is_empty() && self.retire_kept())
    }

    #[cold]
    fn retire_kept(&mut self) -> bool {
        let next = self.kept.pop_front();
        // A completion that was forgotten ends here.
        next.map(|next| self.done = next).is_some()
    }

    /// As [`CqCore::retire`], of those whose completions were taken.
    #[inline]
    fn retire_taken(&mut self) -> bool {
        self.retire_next().unwrap_or_else(|| self.retire_after())
    }

    /// As [`CqCore::retire_taken`], after a completion that has ended no request of the program.
    #[cold]
    fn retire_after(&mut self) -> bool {
        loop {
            if let Some(retired) = self.retire_next() {
                return retired;
            }
        }
    }

    /// Has what the next completion ends in `done`. `None`: nothing of the program, so there may be more behind it. A completion
    /// that belongs to no outstanding request is dropped (rules S4, S11).
    #[inline(always)]
    fn retire_next(&mut self) -> Option<bool> {
        let Self { shared, polled, next, found, done, .. } = self;
        let Some(ended) = polled.get(*next) else { return Some(false) };
        let Some(queue) = find(found, shared, number_of(ended)) else {
            *next += 1;
            return None;
        };
        // The slot gets an entry of nothing, also if a completion was forgotten.
        done.release();
        let Some(is_last) = queue.retire(ended.wr_id as u32, &mut done.entry) else {
            *next += 1;
            return None;
        };
        done.ended = *ended;
        if polled.is_unusual() {
            done.note_unusual(polled, *next, is_last);
        }
        *next += usize::from(is_last);
        // A scope's request has no completion.
        done.complete().then_some(true)
    }
}

/// The queue with this number, which `found` is from here on.
#[inline]
fn find<'f>(found: &'f mut Option<Arc<Queue>>, shared: &Shared, number: u32) -> Option<&'f Queue> {
    if found.as_ref().is_none_or(|queue| queue.number() != number) {
        find_another(found, shared, number);
    }
    found.as_deref()
}

#[cold]
fn find_another(found: &mut Option<Arc<Queue>>, shared: &Shared, number: u32) {
    *found = shared.find(number);
}

impl fmt::Debug for CqCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").field("capacity", &self.shared.capacity()).finish()
    }
}

/// A completion queue. Its completions contain an [`Extra`] besides, if it was [made](crate::verbs::Domain::cq_with) for that.
///
/// It has room for the completions of all its queue pairs: [`build`](crate::verbs::Builder::build) fails otherwise.
pub struct Cq<X = ()> {
    core: CqCore,
    extra: PhantomData<fn() -> X>,
}

/// A completion queue with any [`Extra`].
pub trait AnyCq: sealed::Sealed {}

impl<X: Extra> AnyCq for Cq<X> {}

mod sealed {
    use super::{Cq, CqCore, Extra};

    pub trait Sealed {
        #[doc(hidden)]
        #[allow(private_interfaces)] // The trait can't be named elsewhere.
        fn core(&self) -> &CqCore;
    }

    impl<X: Extra> Sealed for Cq<X> {
        #[allow(private_interfaces)]
        fn core(&self) -> &CqCore {
            &self.core
        }
    }
}

impl<X: Extra> Cq<X> {
    pub(crate) fn new(inner: RawCq, capacity: u32) -> Self {
        Self { core: CqCore::new(inner, capacity), extra: PhantomData }
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        self.core.shared()
    }

    /// The same queue, to build queue pairs with while another thread has the queue for itself. It isn't polled.
    pub(crate) fn for_builders(&self) -> Self {
        let core = CqCore::with(self.core.inner.clone(), self.core.shared.clone());
        Self { core, extra: PhantomData }
    }

    pub(crate) const fn core_mut(&mut self) -> &mut CqCore {
        &mut self.core
    }

    /// Completions that have happened. On [`Device::native`](crate::verbs::Device::native) a poll also lets the adapter send and
    /// receive. In a simulation, a poll that finds nothing lets other programs run and time pass.
    ///
    /// # Errors
    /// The device can't be used any more.
    #[inline]
    pub fn poll(&mut self) -> Result<Completions<'_, X>> {
        self.core.poll()?;
        Ok(Completions { cq: &mut self.core, extra: PhantomData })
    }

    /// Waits for a completion, at most for `limit`. False if none came.
    ///
    /// # Errors
    /// The device can't be used any more ([`Kind::Dead`](crate::Kind::Dead)): in a simulation, its host has crashed since.
    ///
    /// # Panics
    /// In a simulation without a limit: no completion will ever come. The message contains what each queue pair waits for.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<bool> {
        self.core.wait(limit)
    }

    /// The descriptor for an event loop (epoll, `AsyncFd`), if the device has one; a simulated one has none. After [`Cq::arm`] it is
    /// readable as soon as there is a completion. Programs don't read it.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.core.inner.descriptor()
    }

    /// Prepares a sleep on the [descriptor](Cq::descriptor). False: there are completions, so poll before the sleep. A loop that
    /// polls until the queue is empty, arms, and sleeps if that returns true, misses no completion.
    ///
    /// # Errors
    /// As [`Cq::poll`].
    pub fn arm(&mut self) -> Result<bool> {
        self.core.arm()
    }

    /// Waits for the next completion, at most for `limit`.
    ///
    /// # Errors
    /// As [`Cq::wait`].
    ///
    /// # Panics
    /// As [`Cq::wait`].
    pub fn next(&mut self, limit: Option<Duration>) -> Result<Option<Completion<'_, X>>> {
        Ok(self.core.next(limit)?.then(|| Completion::new(&mut self.core.done)))
    }
}

impl<X> fmt::Debug for Cq<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

/// The completions that [`Cq::poll`] has found. Those that aren't taken are there for the next poll.
pub struct Completions<'c, X = ()> {
    cq: &'c mut CqCore,
    extra: PhantomData<fn() -> X>,
}

impl<X> fmt::Debug for Completions<'_, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions").finish_non_exhaustive()
    }
}

impl<X: Extra> Completions<'_, X> {
    /// The next one.
    #[allow(clippy::should_implement_trait)] // It lends.
    #[inline]
    pub fn next(&mut self) -> Option<Completion<'_, X>> {
        if self.cq.retire() { Some(Completion::new(&mut self.cq.done)) } else { None }
    }
}

/// A request that has ended.
#[derive(Default)]
struct Done {
    /// In exchange for it, the slot has got that of the request before.
    entry: Box<Entry>,
    /// For a quiet request, that of the later one with which it ended.
    ended: Ended,
    /// If the queue was made for that.
    stamp: Stamp,
    /// Its own: a quiet request that ended before the one that the completion is of has none.
    fault: Option<Fault>,
    /// Bytes that were written to the memory that is left in the entry.
    written: Option<usize>,
    /// The result of an atomic.
    value: Option<u64>,
    /// Of a request with [`Kept::Grh`].
    source: Option<Endpoint>,
}

impl Done {
    /// Notes what few completions have: a time, or a fault. `is_last`: the completion at this place is its own.
    #[inline(never)]
    fn note_unusual(&mut self, polled: &Polled, place: usize, is_last: bool) {
        if let Some(stamp) = polled.stamp_of(place) {
            self.stamp = stamp;
        }
        if let Some(fault) = polled.fault(place) {
            self.ended = self.ended.of_failure();
            self.fault = is_last.then(|| fault.clone());
        }
    }

    /// Completes the entry, which was retired. False for a request of a scope, which gets no completion.
    #[inline]
    fn complete(&mut self) -> bool {
        self.written = match self.entry.what {
            Operated::Sent | Operated::Written | Operated::Atomic | Operated::Lent => None,
            Operated::Read | Operated::Received | Operated::ReceivedWrite => self.written(),
        };
        self.entry.kept.is_none() || self.complete_kept()
    }

    /// Bytes that were written to the memory.
    #[inline]
    fn written(&mut self) -> Option<usize> {
        match self.entry.what {
            Operated::Received if self.fault.is_none() => {
                if self.ended.opcode == WcOpcode::RecvRdmaWithImm as u32 {
                    self.entry.what = Operated::ReceivedWrite;
                    return None;
                }
                Some(self.ended.byte_len as usize)
            }
            Operated::Read if self.fault.is_none() => Some(self.entry.len as usize),
            _ => None,
        }
    }

    /// Of a request that needs more than memory.
    #[inline(never)]
    fn complete_kept(&mut self) -> bool {
        match &self.entry.kept {
            Some(Kept::Result(results, number)) => {
                self.value = self.fault.is_none().then(|| results.load(*number));
                self.entry.kept = None;
            }
            Some(Kept::Grh(qkey)) => {
                let qkey = qkey.load(Ordering::Relaxed);
                self.take_grh(qkey);
            }
            // It has failed, so there is no loan.
            Some(Kept::Window(lent, receives)) if self.fault.is_some() => lent.end(Some(receives)),
            Some(Kept::Scoped(_)) => {
                let (what, len, fault) = (self.entry.what, self.len() as usize, self.fault.take());
                self.entry.end_scoped(what, len, fault);
                return false;
            }
            _ => {}
        }
        true
    }

    /// Whether it was a message that has arrived here.
    #[inline]
    fn has_message(&self) -> bool {
        matches!(self.entry.what, Operated::Received | Operated::ReceivedWrite) && self.fault.is_none()
    }

    /// Bytes that were received, read, or written by the peer.
    #[inline]
    fn len(&self) -> u32 {
        match self.entry.what {
            Operated::Read if self.fault.is_none() => self.entry.len,
            _ if self.has_message() => self.ended.byte_len,
            _ => 0,
        }
    }

    /// Takes the GRH of a datagram, which is memory of the queue pair.
    fn take_grh(&mut self, qkey: u32) {
        self.source = None;
        let Some(Part::Buffer(grh)) = self.entry.held.take(&mut self.written) else { return };
        let ended = &mut self.ended;
        ended.byte_len = ended.byte_len.saturating_sub(GRH as u32);
        if self.fault.is_none() && ended.has_grh() {
            self.source = Endpoint::of_sender(&grh, ended.src_qp, qkey);
        }
    }

    /// The loan of a request that has lent memory.
    fn loan(&mut self, rights: Rights) -> Option<RawLoan> {
        let is_it = |kept: &mut Kept| matches!(kept, Kept::Window(lent, _) if lent.rights() == rights);
        let Some(Kept::Window(lent, receives)) = self.entry.kept.take_if(is_it) else { return None };
        Some(RawLoan::new(lent, receives, std::mem::take(&mut self.entry.held)))
    }

    /// The first buffer that is left.
    #[inline]
    fn buffer(&mut self) -> Option<Buffer> {
        if self.has_loan() {
            return None;
        }
        match self.entry.held.take_buffer(&mut self.written) {
            None if !self.entry.held.is_empty() => self.next_buffer(),
            only => only,
        }
    }

    /// The first of several pieces of memory.
    #[inline(never)]
    fn next_buffer(&mut self) -> Option<Buffer> {
        loop {
            if let Part::Buffer(buffer) = self.entry.held.take(&mut self.written)? {
                return Some(buffer);
            }
        }
    }

    /// The memory is lent to the peer: it doesn't come back by itself.
    #[inline]
    fn has_loan(&self) -> bool {
        matches!(self.entry.kept, Some(Kept::Window(..))) && self.fault.is_none()
    }

    /// The memory that comes back.
    #[inline]
    fn parts(&mut self) -> Parts {
        let held = if self.has_loan() { Held::default() } else { std::mem::take(&mut self.entry.held) };
        held.settle(self.written)
    }

    #[cold]
    fn release_fault(&mut self) {
        self.fault = None;
    }

    #[cold]
    fn release_kept(&mut self) {
        if let Some(Kept::Window(lent, receives)) = self.entry.kept.take() {
            // The loan wasn't taken: the window ends before the memory is released.
            lent.end(Some(&receives));
        }
    }
}

impl Done {
    /// Drops what it owns, so that its entry is one of nothing.
    #[inline(always)]
    fn release(&mut self) {
        if self.entry.kept.is_some() {
            self.release_kept();
        }
        self.entry.held.clear();
        if self.fault.is_some() {
            self.release_fault();
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        self.release();
    }
}

/// The end of a request. Dropping it drops the memory that [`Completion::take`] would return.
pub struct Completion<'c, X = ()> {
    done: &'c mut Done,
    extra: PhantomData<fn() -> X>,
}

impl<X> Drop for Completion<'_, X> {
    #[inline]
    fn drop(&mut self) {
        self.done.release();
    }
}

impl<'c, X> Completion<'c, X> {
    #[inline]
    const fn new(done: &'c mut Done) -> Self {
        Self { done, extra: PhantomData }
    }
}

impl<X: Extra> Completion<'_, X> {
    /// What the completions of this queue contain besides. That of a quiet request is of the one that it was reported with.
    #[must_use]
    pub fn extra(&self) -> X {
        X::of(self.done.stamp)
    }

    /// The tag of the request.
    #[must_use]
    #[inline]
    pub fn tag(&self) -> u64 {
        self.done.entry.tag
    }

    /// The QPN of the queue pair.
    #[must_use]
    #[inline]
    pub fn qp(&self) -> u32 {
        self.done.ended.qp_num
    }

    /// What the request was.
    #[must_use]
    #[inline]
    pub fn what(&self) -> Operated {
        self.done.entry.what
    }

    /// Whether it has succeeded.
    ///
    /// # Errors
    /// Why it has failed.
    #[inline]
    pub fn result(&self) -> Result<(), Fault> {
        match &self.done.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    /// Bytes that were received, or read, or (`ReceivedWrite`) written by the peer.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.done.len() as usize
    }

    /// Nothing was received, read or written.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The 32 bits that came with the message.
    #[must_use]
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        let immediate = self.done.ended.immediate().filter(|_| self.done.has_message());
        immediate.map(u32::from_be_bytes)
    }

    /// Of an atomic that has succeeded: the word before.
    #[must_use]
    #[inline]
    pub fn value(&self) -> Option<u64> {
        self.done.value.filter(|_| self.done.entry.what == Operated::Atomic)
    }

    /// Of a datagram that was received: the queue pair that has sent it, with the Q_Key of this one.
    /// [`Domain::address`](crate::verbs::Domain::address) makes an address of it for an answer.
    #[must_use]
    #[inline]
    pub fn source(&self) -> Option<&Endpoint> {
        let has_source = matches!(self.done.entry.kept, Some(Kept::Grh(_)));
        self.done.source.as_ref().filter(|_| has_source)
    }

    /// Of a message that [returns](crate::verbs::Send::returning) a loan: the key of its token.
    #[must_use]
    #[inline]
    pub fn returned(&self) -> Option<u32> {
        self.done.ended.invalidated_rkey().filter(|_| self.done.has_message())
    }

    /// Of a request that has [lent](crate::verbs::Lend) memory with these rights: the loan. If the completion is dropped with it, the
    /// memory is recalled.
    ///
    /// # Errors
    /// Why the request has failed. Or it has lent nothing, or not with these rights, or the loan was taken
    /// ([`Kind::Invalid`](crate::Kind::Invalid)).
    pub fn loan<A: Right>(&mut self) -> Result<Loan<A>> {
        self.result()?;
        let loan = self.done.loan(A::RIGHTS).map(Loan::new);
        loan.ok_or_else(|| Error::invalid("loan", "the completion has no loan with these rights"))
    }

    /// The memory of the request. Buffers of a receive or a READ have the length of what was written to them.
    #[inline]
    pub fn take(&mut self) -> Parts {
        self.done.parts()
    }

    /// Exchanges what the request had for an entry of nothing, which a slot of a queue pair gets. Returns how many bytes were written to
    /// the memory. The completion has its result from here on, but not what the request was.
    #[inline]
    pub(crate) fn exchange(&mut self, entry: &mut Box<Entry>) -> Option<usize> {
        debug_assert!(
            entry.held.is_empty() && entry.kept.is_none(),
            "an entry with memory of another request"
        );
        std::mem::swap(&mut self.done.entry, entry);
        self.done.written
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

impl<X> fmt::Debug for Completion<'_, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Done { entry, ended, fault, .. } = &*self.done;
        let Entry { tag, what, .. } = &**entry;
        let mut text = f.debug_struct("Completion");
        text.field("tag", tag).field("qp", &ended.qp_num).field("what", what).field("len", &self.done.len());
        text.field("fault", fault).finish()
    }
}
