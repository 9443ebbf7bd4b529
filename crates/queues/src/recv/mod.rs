//! Receive queues: the RQ of a QP and the shared receive queue.

mod tags;

use tags::TagList;
pub use tags::{MAX_TAG_OPS, MAX_TAGS, TagEntry, TagOp, TagRequest};

use crate::cq::Cq;
use crate::events::Unacked;
use crate::late::{self, Late};
use crate::limits::Limits;
use ferroce_mem::{CountedQueue, Pd, QueueKind, ring_for};
use ferroce_os::sync::{Mutex, class};
use ferroce_proto::NoReceive;
use ferroce_ring::EntryRing;
use ferroce_types::{AsyncEvent, Error, Quota, QuotaPlace, RecvWqe, Result, SgeList, Users, invalid};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bounded queue of receive work requests.
#[derive(Debug)]
pub struct RecvQueue {
    wqes: EntryRing<RecvWqe>,
    max_wr: u32,
    max_sge: u32,
}

impl RecvQueue {
    /// A queue whose entries lie in memory of `pd`'s allocator. It may call the program: the caller must hold no lock.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the domain's allocator gives nothing.
    pub fn new(pd: &Pd, kind: QueueKind, max_wr: u32, max_sge: u32) -> Result<Self> {
        Ok(Self { wqes: ring_for(pd.queues(), max_wr as usize, kind)?, max_wr, max_sge })
    }

    /// Ends the queue. Drop what it returns after all locks are released.
    #[must_use]
    pub fn take(&mut self) -> impl Sized + use<> {
        self.max_wr = 0;
        std::mem::take(&mut self.wqes)
    }

    /// Work requests it can hold, and how many are in it.
    #[must_use]
    pub fn fill(&self) -> (u32, u32) {
        (self.max_wr, self.wqes.len() as u32)
    }

    /// Appends a work request.
    ///
    /// # Errors
    /// [`Error::Invalid`] for too many elements, [`Error::NoMemory`] when the queue is full.
    #[inline]
    pub fn push(&mut self, wqe: RecvWqe) -> Result<()> {
        if wqe.sges.len() > self.max_sge as usize || self.wqes.len() >= self.max_wr as usize {
            return Err(self.refusal(wqe.sges.len()));
        }
        self.wqes.push_back(wqe);
        Ok(())
    }

    /// Why it doesn't take a work request of so many elements.
    #[cold]
    fn refusal(&self, sges: usize) -> Error {
        if sges > self.max_sge as usize {
            return Error::Invalid(format!("{sges} scatter elements, the queue takes {}", self.max_sge));
        }
        Error::NoMemory(format!("the receive queue of {} work requests is full", self.max_wr))
    }

    /// Takes the next work request.
    #[inline]
    pub fn pop(&mut self) -> Option<RecvWqe> {
        self.wqes.pop_front()
    }

    /// The next work request.
    #[inline]
    #[must_use]
    pub fn front(&self) -> Option<&RecvWqe> {
        self.wqes.front()
    }

    /// Drops the next work request where it lies: a move costs more.
    #[inline(always)]
    pub fn drop_front(&mut self) {
        if let Some(wqe) = self.wqes.get_mut(0) {
            wqe.sges = SgeList::new();
            self.wqes.skip_front();
        }
    }

    /// Takes the next work request, if it has room for `len` bytes.
    ///
    /// # Errors
    /// See [`NoReceive`].
    pub fn pop_for(&mut self, len: u64) -> std::result::Result<RecvWqe, NoReceive> {
        let next = self.wqes.front().ok_or(NoReceive::Empty)?;
        if next.capacity() < len {
            return Err(NoReceive::TooSmall);
        }
        self.pop().ok_or(NoReceive::Empty)
    }

    /// The numbers of the work requests, oldest first.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        self.wqes.iter_from(0).map(|wqe| wqe.wr_id)
    }

    /// Drops all work requests.
    pub fn clear(&mut self) {
        self.wqes.clear();
    }
}

/// Attributes of a shared receive queue (ibv_query_srq(3)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqAttr {
    /// Work requests it can hold.
    pub max_wr: u32,
    /// Elements a work request may have.
    pub max_sge: u32,
    /// When fewer than this many are left, an event is raised, once. 0: never.
    pub limit: u32,
}

/// What a shared receive queue is resized to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // those of [`SrqAttr`]
pub struct NewSize {
    pub max_wr: u32,
    pub max_sge: u32,
}

#[derive(Debug)]
struct SrqState {
    queue: RecvQueue,
    limit: u32,
    /// Of a tag-matching queue.
    tags: Option<Box<TagList>>,
}

/// Shared receive queues that a process may have.
pub const MAX_SRQ: u32 = 1 << 20;
static QUEUES: Quota = Quota::new("shared receive queues", MAX_SRQ);

/// A shared receive queue (ibv_create_srq(3)).
#[derive(Debug)]
pub struct Srq {
    /// Unlike that of any other of the process's life.
    serial: u64,
    pd: Arc<Pd>,
    user_handle: usize,
    shared: Mutex<class::Srq, SrqState>,
    users: Users,
    unacked_async: Unacked,
    /// Where its completions go, if not to the QPs' (XRC, tag matching).
    completes_into: Option<Arc<Cq>>,
    /// Of an SRQ that others find by a number.
    registration: Option<(u32, Box<dyn SrqRegistration>)>,
    matches_tags: bool,
    counted: CountedQueue,
    _held: QuotaPlace,
}

/// Where others find a numbered SRQ: its place in an XRC domain, and its number.
pub trait SrqRegistration: Debug + Send + Sync {
    /// The SRQ is being destroyed: removes it from its domain. Called once.
    fn end(&self);
}

/// A shared receive queue in the making: its sizes are checked, and it has its memory.
#[derive(Debug)]
pub struct NewSrq {
    pd: Arc<Pd>,
    queue: RecvQueue,
    held: QuotaPlace,
}

impl NewSrq {
    /// Room for a queue in `pd`. It may call the program's allocator: the caller must hold no lock.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes out of bounds; [`Error::NoMemory`] when there are [`MAX_SRQ`] queues, or the domain's
    /// allocator gives nothing.
    pub fn new(pd: &Arc<Pd>, attr: SrqAttr) -> Result<Self> {
        check_size(attr)?;
        let queue = RecvQueue::new(pd, QueueKind::SharedReceive, attr.max_wr, attr.max_sge.max(1))?;
        Ok(Self { pd: pd.clone(), queue, held: QUEUES.take()? })
    }

    /// The queue, which others find by `number`. Completions of its receives go to `cq`.
    #[must_use]
    pub fn numbered(
        self,
        cq: &Arc<Cq>,
        user_handle: usize,
        number: u32,
        registration: Box<dyn SrqRegistration>,
    ) -> Arc<Srq> {
        self.make(user_handle, Some(cq), Some((number, registration)), None)
    }

    fn make(
        self,
        user_handle: usize,
        completes_into: Option<&Arc<Cq>>,
        registration: Option<(u32, Box<dyn SrqRegistration>)>,
        tags: Option<Box<TagList>>,
    ) -> Arc<Srq> {
        let Self { pd, queue, held } = self;
        pd.hold();
        if let Some(cq) = completes_into {
            cq.hold();
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Srq {
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            counted: CountedQueue::new(pd.owner().clone(), QueueKind::SharedReceive),
            pd,
            user_handle,
            matches_tags: tags.is_some(),
            shared: Mutex::new(SrqState { queue, limit: 0, tags }),
            users: Users::default(),
            unacked_async: Unacked::default(),
            completes_into: completes_into.cloned(),
            registration,
            _held: held,
        })
    }
}

impl Srq {
    /// A new queue in `pd`. `user_handle` comes back with its events.
    ///
    /// # Errors
    /// As [`NewSrq::new`].
    pub fn create(pd: &Arc<Pd>, attr: SrqAttr, user_handle: usize) -> Result<Arc<Self>> {
        Ok(NewSrq::new(pd, attr)?.make(user_handle, None, None, None))
    }

    /// Its number in XRCETHs (ibv_get_srq_num(3)); `None` outside of XRC.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        self.registration.as_ref().map(|&(number, _)| number)
    }

    /// Where its completions go, if it has a completion queue of its own (XRC, tag matching).
    #[must_use]
    #[inline]
    pub fn completes_into(&self) -> Option<&Arc<Cq>> {
        self.completes_into.as_ref()
    }

    /// The user handle given at its creation.
    #[must_use]
    pub fn user_handle(&self) -> usize {
        self.user_handle
    }

    /// Its protection domain.
    #[must_use]
    #[inline]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Asynchronous events that the program has to acknowledge.
    #[must_use]
    pub fn unacked_async(&self) -> &Unacked {
        &self.unacked_async
    }

    /// Posts a receive work request (ibv_post_srq_recv(3)).
    ///
    /// # Errors
    /// [`Error::Invalid`] for too many elements, [`Error::NoMemory`] when the queue is full.
    pub fn post(&self, wqe: RecvWqe) -> Result<()> {
        self.shared.lock().queue.push(wqe)
    }

    /// The numbers of the work requests that no message has taken, oldest first.
    #[must_use]
    pub fn numbers(&self) -> Vec<u64> {
        self.shared.lock().queue.numbers().collect()
    }

    /// Present attributes.
    #[must_use]
    pub fn query(&self) -> SrqAttr {
        let shared = self.shared.lock();
        SrqAttr { max_wr: shared.queue.max_wr, max_sge: shared.queue.max_sge, limit: shared.limit }
    }

    /// A number unlike that of any other shared receive queue of the process's life.
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Work requests it can hold, how many are in it, and its limit, to show to users; `None` while the queue is locked.
    #[must_use]
    pub fn try_fill(&self) -> Option<(u32, u32, u32)> {
        let shared = self.shared.try_lock()?;
        let (depth, posted) = shared.queue.fill();
        Some((depth, posted, shared.limit))
    }

    /// Sets the limit and, or, the size (ibv_modify_srq(3)). With a new size, a greater `max_sge` than the present one is
    /// taken over as well, if it is possible; any other is left alone, since the man page calls it irrelevant.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit above the size, a size out of bounds or below what is posted; nothing changes then.
    pub fn modify(&self, size: Option<NewSize>, limit: Option<u32>) -> Result<()> {
        let limits = Limits::get();
        let room = match size {
            Some(NewSize { max_wr, .. })
                if self.pd.queues().is_some() && (1..=limits.srq_wr).contains(&max_wr) =>
            {
                Some(ring_for(self.pd.queues(), max_wr as usize, QueueKind::SharedReceive)?)
            }
            _ => None,
        };
        let mut shared = self.shared.lock();
        let max_wr = size.map_or(shared.queue.max_wr, |size| size.max_wr);
        let posted = shared.queue.wqes.len();
        if max_wr == 0 || max_wr > limits.srq_wr || posted > max_wr as usize {
            return invalid!(
                "a size of {max_wr} with {posted} work requests posted; at most {}",
                limits.srq_wr
            );
        }
        let limit = limit.unwrap_or(shared.limit);
        if limit > max_wr {
            return invalid!("a limit of {limit} on a queue of {max_wr}");
        }
        shared.limit = limit;
        shared.queue.max_wr = max_wr;
        if let Some(NewSize { max_sge, .. }) = size
            && (shared.queue.max_sge..=limits.srq_sge).contains(&max_sge)
        {
            shared.queue.max_sge = max_sge;
        }
        let old = room.map(|room| shared.queue.wqes.move_to(room));
        drop(shared);
        drop(old);
        Ok(())
    }

    /// Takes the next work request and raises the limit event when too few are left.
    pub fn pop(&self) -> Option<RecvWqe> {
        self.pop_from(&mut self.shared.lock())
    }

    /// As [`Srq::pop`], but a work request with room for less than `len` bytes stays.
    ///
    /// # Errors
    /// See [`NoReceive`].
    pub fn pop_for(&self, len: u64) -> std::result::Result<RecvWqe, NoReceive> {
        let mut shared = self.shared.lock();
        let taken = shared.queue.pop_for(len);
        self.tell_limit(&mut shared);
        taken
    }

    /// Returns a receive that was taken for a message which won't end, for the next message. So the queue has one more than it can hold if the
    /// program has posted another one instead.
    #[cold]
    pub fn put_back(&self, receive: RecvWqe) {
        let mut shared = self.shared.lock();
        // Otherwise it has been destroyed.
        if shared.queue.max_wr > 0 {
            shared.queue.wqes.push_front(receive);
        }
    }

    fn pop_from(&self, shared: &mut SrqState) -> Option<RecvWqe> {
        let wqe = shared.queue.pop();
        self.tell_limit(shared);
        wqe
    }

    /// Raises the limit event when too few work requests are left.
    fn tell_limit(&self, shared: &mut SrqState) {
        if shared.limit > 0 && (shared.queue.wqes.len() as u32) < shared.limit {
            shared.limit = 0;
            self.pd.owner().raise(AsyncEvent::SrqLimitReached(self.user_handle));
        }
    }

    /// Counts a user of the queue: it can't be destroyed meanwhile.
    pub fn hold(&self) {
        self.users.hold();
    }

    /// Undoes [`Srq::hold`].
    pub fn release(&self) {
        self.users.release();
    }

    /// It has been destroyed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.lock().queue.max_wr == 0
    }

    /// Ends the queue (ibv_destroy_srq(3)).
    ///
    /// # Errors
    /// [`Error::Busy`] while a QP uses it.
    pub fn destroy(self: &Arc<Self>) -> Result<()> {
        self.users.check_none("the shared receive queue still has queue pairs")?;
        if let Some((_, registration)) = &self.registration {
            registration.end();
        }
        let mut shared = self.shared.lock();
        // An XRC target may have found the queue before, and look into it now: without a limit it raises no event.
        shared.limit = 0;
        let queue = shared.queue.take();
        drop(shared);
        drop(queue);
        self.pd.owner().withdraw(self.user_handle);
        self.counted.end();
        self.pd.release();
        if let Some(cq) = &self.completes_into {
            cq.release();
        }
        self.unacked_async.wait(|count| late::tell(Late::OfSrq, count));
        Ok(())
    }
}

fn check_size(attr: SrqAttr) -> Result<()> {
    let Limits { srq_wr, srq_sge, .. } = *Limits::get();
    if attr.max_wr == 0 || attr.max_wr > srq_wr || attr.max_sge > srq_sge {
        return invalid!(
            "a shared receive queue of {} work requests with {} elements: at most {srq_wr} with {srq_sge}",
            attr.max_wr,
            attr.max_sge
        );
    }
    Ok(())
}
