//! Completion queues and completion channels.

use crate::error::{Error, Result, invalid};
use crate::events::{AsyncEvent, EventQueue, Unacked};
use crate::{Context, engine};
use ferroce_proto::{Completion, WcStatus};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Entries a completion queue may have.
pub const MAX_CQE: u32 = 4 << 20;

/// A completion channel (ibv_create_comp_channel(3)): events that carry the cookie of their completion queue.
#[derive(Debug)]
pub struct CompChannel {
    context: Arc<Context>,
    events: EventQueue<Arc<Cq>>,
    users: AtomicUsize,
}

impl CompChannel {
    /// A new channel.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            context: context.clone(),
            events: EventQueue::new()?,
            users: AtomicUsize::new(0),
        }))
    }

    /// The device context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The events. Whoever takes one calls [`Cq::unacked`]`().got()` for it.
    #[must_use]
    pub fn events(&self) -> &EventQueue<Arc<Cq>> {
        &self.events
    }

    /// May the channel be destroyed?
    ///
    /// # Errors
    /// [`Error::Busy`] while a completion queue uses it.
    pub fn check_unused(&self) -> Result<()> {
        match self.users.load(Ordering::Acquire) {
            0 => Ok(()),
            n => Err(Error::Busy(format!("{n} completion queues still use this channel"))),
        }
    }
}

/// A work completion with the QP it is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wc {
    /// The local QPN.
    pub qp_num: u32,
    /// What the transport reports.
    pub completion: Completion,
    /// What a UD receive came in; `None` otherwise.
    pub network: Option<Network>,
}

/// The network header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Network {
    Ipv4,
    Ipv6,
}

/// When the next completion raises an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    Solicited,
    Any,
}

#[derive(Debug)]
struct Queue {
    entries: VecDeque<Wc>,
    capacity: usize,
    armed: Armed,
    /// How many of the entries, from the oldest on, came before or with the last event, and before the last poll.
    announced: usize,
    overrun: bool,
}

impl Queue {
    /// Whether an event was asked for that this completion raises.
    fn is_awaited(&self, completion: &Completion) -> bool {
        match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => completion.solicited || completion.status != WcStatus::Success,
        }
    }
}

/// A completion queue (ibv_create_cq(3)).
#[derive(Debug)]
pub struct Cq {
    context: Arc<Context>,
    channel: Option<Arc<CompChannel>>,
    cookie: usize,
    queue: Mutex<Queue>,
    /// A hint that spares pollers of an empty queue the lock.
    filled: AtomicBool,
    /// The program has asked for an event and is about to sleep: its polls are no promise to come back.
    sleeper: AtomicBool,
    users: AtomicUsize,
    unacked: Unacked,
    unacked_async: Unacked,
}

impl Cq {
    /// A queue of at least `cqe` entries. `cookie` comes back with its events.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no entry or more than [`MAX_CQE`].
    pub fn create(
        context: &Arc<Context>,
        cqe: u32,
        channel: Option<&Arc<CompChannel>>,
        cookie: usize,
    ) -> Result<Arc<Self>> {
        check_size(cqe)?;
        if let Some(channel) = channel {
            channel.users.fetch_add(1, Ordering::Relaxed);
        }
        let cq = Arc::new(Self {
            context: context.clone(),
            channel: channel.cloned(),
            cookie,
            queue: Mutex::new(Queue {
                entries: VecDeque::new(),
                capacity: cqe as usize,
                armed: Armed::No,
                announced: 0,
                overrun: false,
            }),
            filled: AtomicBool::new(false),
            sleeper: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            unacked: Unacked::default(),
            unacked_async: Unacked::default(),
        });
        engine::register_cq(&cq);
        Ok(cq)
    }

    /// The cookie given at its creation.
    #[must_use]
    pub fn cookie(&self) -> usize {
        self.cookie
    }

    /// The device context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
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

    /// Takes up to `max` completions, oldest first, and gives them to `f` (ibv_poll_cq(3)). Makes progress when there
    /// is none, and every now and then when there are.
    ///
    /// # Errors
    /// [`Error::Dead`] when the queue has overrun and all that was saved has been taken.
    pub fn poll(&self, max: usize, mut f: impl FnMut(Wc)) -> Result<usize> {
        if max == 0 {
            return Ok(0);
        }
        let mut n = self.pop(max, &mut f);
        engine::progress_of_poller(n == 0, self.sleeper.load(Ordering::Relaxed));
        if n == 0 {
            n = self.pop(max, &mut f);
            if n == 0 && self.queue.lock().overrun {
                return Err(Error::Dead("the completion queue has overrun".into()));
            }
        }
        Ok(n)
    }

    fn pop(&self, max: usize, f: &mut impl FnMut(Wc)) -> usize {
        if !self.filled.load(Ordering::Acquire) {
            return 0;
        }
        let mut queue = self.queue.lock();
        let n = max.min(queue.entries.len());
        queue.entries.drain(..n).for_each(f);
        if n > 0 {
            // What is left after a poll counts as new: a program that takes a few at a time may ask for an event and sleep.
            queue.announced = 0;
        }
        if queue.entries.is_empty() {
            self.filled.store(false, Ordering::Release);
        }
        n
    }

    /// Asks for an event at the next completion, or the next solicited one (ibv_req_notify_cq(3)). Without a channel
    /// the request has no effect, as on adapters. A completion that came after the last event, or was left by the last
    /// poll, raises the event at once, as on adapters: a program may poll, ask, and sleep without another poll.
    pub fn request_notify(self: &Arc<Self>, solicited_only: bool) {
        let mut queue = self.queue.lock();
        queue.armed = match (queue.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
        self.sleeper.store(self.channel.is_some(), Ordering::Relaxed);
        let mut unannounced = queue.entries.range(queue.announced..);
        if unannounced.any(|wc| queue.is_awaited(&wc.completion)) {
            self.announce(&mut queue);
        }
    }

    fn announce(self: &Arc<Self>, queue: &mut Queue) {
        queue.armed = Armed::No;
        queue.announced = queue.entries.len();
        self.sleeper.store(false, Ordering::Relaxed);
        if let Some(channel) = &self.channel {
            channel.events.push(self.clone());
        }
    }

    /// Changes the size (ibv_resize_cq(3)).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size out of bounds or smaller than what waits in the queue.
    pub fn resize(&self, cqe: u32) -> Result<()> {
        check_size(cqe)?;
        let mut queue = self.queue.lock();
        if queue.entries.len() > cqe as usize {
            return invalid!("{} completions wait in the queue, more than {cqe}", queue.entries.len());
        }
        queue.capacity = cqe as usize;
        Ok(())
    }

    /// Appends a completion, and an event if one was asked for. An overrun is said once, by an asynchronous event.
    pub(crate) fn push(self: &Arc<Self>, wc: Wc) {
        let mut queue = self.queue.lock();
        if queue.entries.len() >= queue.capacity {
            if !queue.overrun {
                queue.overrun = true;
                tracing::warn!("a completion queue of {} entries has overrun", queue.capacity);
                self.context.raise(AsyncEvent::CqError(self.cookie));
            }
            return;
        }
        queue.entries.push_back(wc);
        self.filled.store(true, Ordering::Release);
        if queue.is_awaited(&wc.completion) {
            self.announce(&mut queue);
        }
    }

    /// Drops the completions of a QP that goes back to RESET or away.
    pub(crate) fn forget_qp(&self, qp_num: u32) {
        let mut queue = self.queue.lock();
        queue.announced = queue.entries.range(..queue.announced).filter(|wc| wc.qp_num != qp_num).count();
        queue.entries.retain(|wc| wc.qp_num != qp_num);
        if queue.entries.is_empty() {
            self.filled.store(false, Ordering::Release);
        }
    }

    pub(crate) fn hold(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }

    /// Keeps the queue still over a fork.
    pub(crate) fn freeze(&self) {
        std::mem::forget(self.queue.lock());
    }

    /// Undoes `freeze`.
    ///
    /// # Safety
    /// This thread, or in a child its original, has frozen the queue.
    pub(crate) unsafe fn thaw(&self) {
        // SAFETY: locked by `freeze`, says the caller.
        unsafe { self.queue.force_unlock() };
    }

    /// Ends the queue (ibv_destroy_cq(3)): withdraws its unread events and waits for the unacknowledged ones.
    ///
    /// # Errors
    /// [`Error::Busy`] while a QP or SRQ uses it.
    pub fn destroy(self: &Arc<Self>) -> Result<()> {
        let users = self.users.load(Ordering::Acquire);
        if users != 0 {
            return Err(Error::Busy(format!("{users} queue pairs still use this completion queue")));
        }
        if let Some(channel) = &self.channel {
            channel.events.withdraw(|cq| Arc::ptr_eq(cq, self));
            channel.users.fetch_sub(1, Ordering::Release);
        }
        self.context.withdraw(self.cookie);
        engine::unregister_cq(self);
        self.unacked.wait();
        self.unacked_async.wait();
        Ok(())
    }
}

fn check_size(cqe: u32) -> Result<()> {
    if cqe == 0 || cqe > MAX_CQE {
        return invalid!("a completion queue of {cqe} entries: 1 to {MAX_CQE} are possible");
    }
    Ok(())
}
