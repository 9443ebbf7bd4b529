//! Completion queues and completion channels.

mod channel;
mod queue;

pub use channel::CompChannel;
use queue::{Armed, Moderation, Queue, Rise};
pub use queue::{Stamp, WcTags};

use crate::events::Unacked;
use crate::late::{self, Late};
use crate::limits::Limits;
use ferroce_mem::{CountedQueue, Owner, Pd, QueueKind, is_same, ring_for};
use ferroce_os::clock;
use ferroce_os::sync::{Mutex, MutexGuard, class};
use ferroce_types::{AsyncEvent, Completion, Instant, Quota, QuotaPlace, Result, Users, invalid};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Completion queues that a process may have.
pub const MAX_CQ: u32 = 1 << 20;
static QUEUES: Quota = Quota::new("completion queues", MAX_CQ);

/// An owner of completion queues with a timer: it calls a queue when a delayed event is due.
pub trait EventTimer: Owner {
    /// Calls [`Cq::event_is_due`] as soon as `at` has come. The caller holds the queue's lock.
    fn schedule(&self, cq: &Arc<Cq>, at: Instant);

    /// The program has armed one more queue for an event and may be about to sleep, or one queue less. The caller holds a queue's
    /// lock.
    fn expect_sleeper(&self, is_one_more: bool);
}

/// What a new queue is made of (ibv_create_cq_ex(3)).
#[derive(Clone, Copy, Debug)]
pub struct CqInit<'a> {
    /// At least this many entries.
    pub cqe: u32,
    /// Where its events go.
    pub channel: Option<&'a Arc<CompChannel>>,
    /// Comes back with its events.
    pub user_handle: usize,
    /// A [`Stamp`] is recorded with each completion.
    pub stamped: bool,
    /// When it is full, a new completion takes the place of the oldest: an overrun isn't an error
    /// (IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN).
    pub ignore_overrun: bool,
    /// The (parent) domain whose allocator provides the memory of the entries.
    pub pd: Option<&'a Arc<Pd>>,
}

/// A snapshot of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqFill {
    /// Entries there is room for.
    pub capacity: u32,
    /// Completions that wait to be polled.
    pub filled: u32,
    /// The program has armed it, and the event hasn't come yet.
    pub armed: bool,
}

/// A completion queue (ibv_create_cq(3)).
#[derive(Debug)]
pub struct Cq {
    /// Unlike that of any other of the process's life.
    serial: u64,
    owner: Arc<dyn EventTimer>,
    /// The parent domain that it was made on.
    pd: Option<Arc<Pd>>,
    channel: Option<Arc<CompChannel>>,
    user_handle: usize,
    queue: Mutex<class::Cq, Queue>,
    /// A hint that spares pollers of an empty queue the lock.
    filled: AtomicBool,
    /// A completion has found no room.
    overrun: AtomicBool,
    /// The program has armed the queue and is about to sleep: its polls don't promise further polls.
    sleeper: AtomicBool,
    stamped: bool,
    ignore_overrun: bool,
    users: Users,
    unacked: Unacked,
    unacked_async: Unacked,
    counted: CountedQueue,
    _held: QuotaPlace,
}

impl Cq {
    /// A queue of at least `cqe` entries. `user_handle` comes back with its events.
    ///
    /// # Errors
    /// [`ferroce_types::Error::Invalid`] for no entry or more than [`Limits::cqe`]; [`ferroce_types::Error::NoMemory`] when there are `MAX_CQ` queues.
    pub fn create<O: EventTimer>(
        owner: &Arc<O>,
        cqe: u32,
        channel: Option<&Arc<CompChannel>>,
        user_handle: usize,
    ) -> Result<Arc<Self>> {
        let init = CqInit { cqe, channel, user_handle, stamped: false, ignore_overrun: false, pd: None };
        Self::create_as(owner, init)
    }

    /// A queue with the attributes of `init`.
    ///
    /// # Errors
    /// As [`Cq::create`]; [`ferroce_types::Error::NoMemory`] when the domain's allocator gives nothing.
    pub fn create_as<O: EventTimer>(owner: &Arc<O>, init: CqInit<'_>) -> Result<Arc<Self>> {
        Self::new(owner.clone(), init)
    }

    fn new(owner: Arc<dyn EventTimer>, init: CqInit<'_>) -> Result<Arc<Self>> {
        let CqInit { cqe, channel, user_handle, stamped, ignore_overrun, pd } = init;
        check_size(cqe)?;
        let held = QUEUES.take()?;
        let entries = ring_for(pd.and_then(|pd| pd.queues()), cqe as usize, QueueKind::Completion)?;
        if let Some(pd) = pd {
            pd.hold();
        }
        if let Some(channel) = channel {
            channel.users.hold();
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(Arc::new(Self {
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            counted: CountedQueue::new(owner.clone(), QueueKind::Completion),
            owner,
            pd: pd.cloned(),
            channel: channel.cloned(),
            user_handle,
            queue: Mutex::new(Queue::new(entries, cqe)),
            filled: AtomicBool::new(false),
            overrun: AtomicBool::new(false),
            sleeper: AtomicBool::new(false),
            stamped,
            ignore_overrun,
            users: Users::default(),
            unacked: Unacked::default(),
            unacked_async: Unacked::default(),
            _held: held,
        }))
    }

    /// The user handle given at its creation.
    #[must_use]
    pub fn user_handle(&self) -> usize {
        self.user_handle
    }

    /// The open device that it belongs to.
    #[must_use]
    pub fn owner(&self) -> &Arc<dyn EventTimer> {
        &self.owner
    }

    /// Does it belong to the same open device as `pd`?
    #[must_use]
    pub fn shares_context_with(&self, pd: &Pd) -> bool {
        is_same(&*self.owner, &**pd.owner())
    }

    /// Its channel.
    #[must_use]
    pub fn channel(&self) -> Option<&Arc<CompChannel>> {
        self.channel.as_ref()
    }

    /// Entries there is room for.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.queue.lock().capacity as u32
    }

    /// A number unlike that of any other completion queue of the process's life.
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// A snapshot to show to users; `None` while the queue is locked.
    #[must_use]
    pub fn try_fill(&self) -> Option<CqFill> {
        let queue = self.queue.try_lock()?;
        Some(CqFill {
            capacity: queue.capacity as u32,
            filled: queue.entries.len() as u32,
            armed: queue.armed != Armed::No,
        })
    }

    /// Completion events that the program has to acknowledge.
    #[must_use]
    pub fn unacked(&self) -> &Unacked {
        &self.unacked
    }

    /// Asynchronous events that the program has to acknowledge.
    #[must_use]
    pub fn unacked_async(&self) -> &Unacked {
        &self.unacked_async
    }

    /// Takes up to `max` completions, oldest first, and gives them to `f` with what the queue has recorded (zeros if it doesn't
    /// record). It makes no progress: completions that come meanwhile stay for the next call, so that a batch ends, and the event
    /// isn't raised for a completion that the batch itself takes.
    #[inline(always)]
    pub fn take(&self, max: usize, f: impl FnMut(&Completion, Stamp)) -> usize {
        if self.filled.load(Ordering::Acquire) { self.take_filled(max, f) } else { 0 }
    }

    /// As [`Cq::take`], of a queue that may have completions.
    #[inline(always)]
    fn take_filled(&self, max: usize, mut f: impl FnMut(&Completion, Stamp)) -> usize {
        let mut queue = self.queue.lock();
        let Queue { entries, stamps, .. } = &mut *queue;
        let n = max.min(entries.len());
        for _ in 0..n {
            // Read in place: most fields of most completions are empty.
            let Some(completion) = entries.front() else { break };
            f(completion, stamps.front().copied().unwrap_or_default());
            entries.skip_front();
            stamps.pop_front();
        }
        if n > 0 {
            // Completions left after a poll count as new: a program that takes a few at a time may arm the queue and sleep.
            queue.announced = 0;
        }
        if queue.entries.is_empty() {
            self.filled.store(false, Ordering::Release);
            if let Some(asked) = queue.lapsable.take() {
                self.let_lapse(&mut queue, asked);
            }
        }
        n
    }

    /// Has the program armed the queue without an event yet? It is about to sleep then: its polls don't promise further polls.
    #[inline]
    #[must_use]
    pub fn has_sleeper(&self) -> bool {
        self.sleeper.load(Ordering::Relaxed)
    }

    fn set_sleeper(&self, sleeper: bool) {
        if self.sleeper.load(Ordering::Relaxed) != sleeper
            && self.sleeper.swap(sleeper, Ordering::Relaxed) != sleeper
        {
            self.owner.expect_sleeper(sleeper);
        }
    }

    /// Has a completion ever found no room?
    #[must_use]
    #[inline]
    pub fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Relaxed)
    }

    /// The program has polled all completions that an unread event was raised for: the event lapses, and the queue is armed again,
    /// as if it had been empty when the program armed it. An event that was read already doesn't lapse, and the program must arm
    /// the queue again.
    #[cold]
    fn let_lapse(&self, queue: &mut Queue, asked: Armed) {
        let Some(channel) = &self.channel else { return };
        if channel.events().lapse(|cq| std::ptr::eq(Arc::as_ptr(cq), self)) {
            queue.armed = queue.armed.max(asked);
            self.set_sleeper(true);
        }
    }

    /// Asks for an event at the next completion, or the next solicited one (ibv_req_notify_cq(3)). Without a channel
    /// the request has no effect, as on adapters. A completion that came after the last event, or was left by the last
    /// poll, raises the event at once, as on adapters: a program may poll, ask, and sleep without another poll. If it polls
    /// all the same, and that empties the queue before the event is read, the event lapses.
    ///
    /// Returns the number of completions in the queue if it has raised an event for some of them, else 0: an adapter that raises no
    /// event for completions from before this call would have left them unannounced.
    pub fn request_notify(self: &Arc<Self>, solicited_only: bool) -> usize {
        let mut queue = self.queue.lock();
        queue.armed = match (queue.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
        self.set_sleeper(self.channel.is_some());
        queue.held = 0;
        let awaited = |completion: &&Completion| queue.is_awaited(completion);
        let unannounced = queue.entries.iter_from(queue.announced).filter(awaited).count();
        if unannounced > 0 {
            let asked = queue.armed;
            self.announce_with(&mut queue, unannounced);
            queue.lapsable = (queue.armed == Armed::No).then_some(asked);
        }
        if unannounced > 0 && self.channel.is_some() { queue.entries.len() } else { 0 }
    }

    /// As [`Cq::request_notify`], but only a completion that is added from here on raises the event, as strict adapters have it.
    pub fn request_notify_of_new(&self, solicited_only: bool) {
        let mut queue = self.queue.lock();
        queue.armed = queue.armed.max(if solicited_only { Armed::Solicited } else { Armed::Any });
        queue.lapsable = None;
        self.set_sleeper(self.channel.is_some());
    }

    /// Raises the event for `n` completions that were asked for, now or as moderation delays it.
    fn announce_with(self: &Arc<Self>, queue: &mut Queue, n: usize) {
        match queue.rise(n, || clock::now().0) {
            Rise::Now => self.announce(queue),
            Rise::At(at) => self.owner.schedule(self, Instant(at)),
            Rise::Later => {}
        }
    }

    fn announce(self: &Arc<Self>, queue: &mut Queue) {
        queue.disarm();
        self.set_sleeper(false);
        if let Some(channel) = &self.channel {
            channel.events().push(self.clone());
        }
    }

    /// A delayed event is due.
    pub fn event_is_due(self: &Arc<Self>, now: Instant) {
        let mut queue = self.queue.lock();
        if queue.armed != Armed::No && queue.due <= now.0 {
            self.announce(&mut queue);
        }
    }

    /// Lets one event stand for `count` completions, or for what comes within `period` of the first of them
    /// (ibv_modify_cq(3)). If either is 0, every completion raises its event, as on adapters.
    pub fn moderate(self: &Arc<Self>, count: u16, period: Duration) {
        let mut queue = self.queue.lock();
        let moderated = count > 0 && !period.is_zero();
        queue.moderation = moderated.then_some(Moderation { count, period });
        if std::mem::take(&mut queue.held) > 0 && queue.armed != Armed::No {
            // The completions that wait were to raise an event by the old moderation.
            self.announce(&mut queue);
        }
    }

    /// Changes the size (ibv_resize_cq(3)).
    ///
    /// # Errors
    /// [`ferroce_types::Error::Invalid`] for a size out of bounds or smaller than what waits in the queue.
    pub fn resize(&self, cqe: u32) -> Result<()> {
        check_size(cqe)?;
        let memory = self.pd.as_ref().and_then(|pd| pd.queues());
        let room = memory.map(|_| ring_for(memory, cqe as usize, QueueKind::Completion)).transpose()?;
        let mut queue = self.queue.lock();
        if queue.entries.len() > cqe as usize {
            return invalid!("{} completions wait in the queue, more than {cqe}", queue.entries.len());
        }
        queue.capacity = cqe as usize;
        let old = room.map(|room| queue.entries.move_to(room));
        drop(queue);
        drop(old);
        Ok(())
    }

    /// Appends a completion, and an event if the queue is armed for it. False when there is no room: the queue is in error then,
    /// which raises one asynchronous event, and the QP fails.
    #[must_use]
    #[inline]
    pub fn push(self: &Arc<Self>, completion: Completion) -> bool {
        self.append(&mut self.queue.lock(), completion, None)
    }

    /// As [`Cq::push`], of a received Ethernet packet.
    #[must_use]
    pub fn push_tagged(self: &Arc<Self>, completion: Completion, tags: WcTags) -> bool {
        self.append(&mut self.queue.lock(), completion, Some(tags))
    }

    #[inline]
    fn append(
        self: &Arc<Self>,
        queue: &mut MutexGuard<'_, class::Cq, Queue>,
        completion: Completion,
        tags: Option<WcTags>,
    ) -> bool {
        if queue.entries.len() >= queue.capacity {
            // Destroyed.
            if queue.capacity == 0 {
                return true;
            }
            if !self.make_room(queue) {
                return false;
            }
        }
        queue.entries.push_back(completion);
        if self.stamped {
            stamp(queue, tags.unwrap_or_default());
        }
        self.filled.store(true, Ordering::Release);
        if queue.is_awaited(&completion) {
            self.announce_with(queue, 1);
        }
        true
    }

    #[cold]
    fn make_room(&self, queue: &mut MutexGuard<'_, class::Cq, Queue>) -> bool {
        if self.ignore_overrun {
            queue.give_up_oldest();
        } else if !self.overrun.swap(true, Ordering::Relaxed) {
            tracing::warn!("a completion queue of {} entries has overrun", queue.capacity);
            self.owner.raise(AsyncEvent::CqError(self.user_handle));
        }
        self.ignore_overrun
    }

    /// A completion may bypass the queue and go directly to a thread that polls it: the queue is empty and not armed, and records
    /// nothing with completions. The caller holds the lock of the completion's queue pair.
    #[must_use]
    #[inline]
    pub fn lets_pass(&self) -> bool {
        !self.filled.load(Ordering::Acquire) && !self.has_sleeper() && !self.stamped
    }

    /// There is room for `more` completions, or overruns are ignored.
    #[must_use]
    #[inline]
    pub fn has_room(&self, more: u32) -> bool {
        let is_empty = !self.filled.load(Ordering::Relaxed);
        is_empty && more <= 1 || self.ignore_overrun || {
            let queue = self.queue.lock();
            queue.entries.len() + more as usize <= queue.capacity
        }
    }

    /// Drops the completions of a QP that goes back to RESET or away.
    pub fn forget_qp(&self, qp_num: u32) {
        let mut queue = self.queue.lock();
        queue.forget_qp(qp_num);
        if queue.entries.is_empty() {
            self.filled.store(false, Ordering::Release);
        }
    }

    /// Counts a user of the queue: it can't be destroyed meanwhile.
    pub fn hold(&self) {
        self.users.hold();
    }

    /// Undoes [`Cq::hold`].
    pub fn release(&self) {
        self.users.release();
    }

    /// Queues that complete into it.
    #[must_use]
    pub fn users(&self) -> usize {
        self.users.count()
    }

    /// Ends the queue (ibv_destroy_cq(3)): withdraws its unread events and waits for the unacknowledged ones.
    ///
    /// # Errors
    /// [`ferroce_types::Error::Busy`] while a QP or SRQ uses it.
    pub fn destroy(self: &Arc<Self>) -> Result<()> {
        self.users.check_none("the completion queue still has send and receive queues")?;
        let mut queue = self.queue.lock();
        // No event that was put off comes from here on. What an XRC target still completes for a queue that has gone goes nowhere.
        queue.armed = Armed::No;
        queue.capacity = 0;
        let entries = std::mem::take(&mut queue.entries);
        drop(queue);
        drop(entries);
        self.set_sleeper(false);
        if let Some(channel) = &self.channel {
            channel.events().withdraw(|cq| Arc::ptr_eq(cq, self));
            channel.users.release();
        }
        self.owner.withdraw(self.user_handle);
        self.counted.end();
        self.unacked.wait(|count| late::tell(Late::CompletionEvents(self.user_handle), count));
        self.unacked_async.wait(|count| late::tell(Late::OfCq, count));
        if let Some(pd) = &self.pd {
            pd.release();
        }
        Ok(())
    }
}

fn check_size(cqe: u32) -> Result<()> {
    let most = Limits::get().cqe;
    if cqe == 0 || cqe > most {
        return invalid!("a completion queue of {cqe} entries: 1 to {most} are possible");
    }
    Ok(())
}

/// The moment, for the entry that was appended last.
#[inline(never)]
fn stamp(queue: &mut Queue, tags: WcTags) {
    let stamp = Stamp { clock: clock::now().0, wall_clock: clock::wall_clock(), tags };
    queue.stamps.push_back(stamp);
}
