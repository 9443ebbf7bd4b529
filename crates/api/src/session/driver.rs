//! Drivers: a completion queue, the connections that use it, and the threads that look for completions.

use crate::session::connection::Connection;
use crate::session::join::Joining;
use crate::session::shared::Shared;
use crate::session::table::Table;
use crate::verbs::{Builder, Cq, Domain, Endpoint, Reliable, Setup};
use ferroce_buffers::{Error, Fault, Kind, Pool, Result, Status};
use smallvec::SmallVec;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

/// Completions of outstanding requests that fit the completion queue of a driver.
const ENTRIES: u32 = 1 << 14;

/// A thread that waits looks so often for what no completion announces: a message that another thread has given back, or the end of
/// the driver.
const SLICE: Duration = Duration::from_millis(10);

/// A thread that runs a future looks so often for wakeups by other threads.
const RUN_SLICE: Duration = Duration::from_millis(1);

/// What the thread of a driver does while there is no completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// It sleeps until one comes.
    Sleep,
    /// It polls, which takes a processor and saves the wakeup.
    Spin,
}

/// What one thread at a time has for itself, while it polls or waits.
struct Lead {
    cq: Cq,
    /// The connection of the last completion. It is forgotten with the table's.
    last: Option<Arc<Shared>>,
}

/// Of [`Inner::handovers`]: something waits for the next time that the completion queue is given back.
const AWAITED: u64 = 1;

/// Of [`Inner::handovers`]: one time.
const HANDOVER: u64 = 2;

/// What waits for completions.
struct Seat {
    /// Threads that wait for the thread that has it.
    followers: u32,
    /// The task of the driver, which waits for the queue or sleeps on its descriptor.
    task: Option<Waker>,
    /// Tasks that look again after each turn: what they wait for announces nothing.
    watchers: Vec<Waker>,
    table: Table,
}

pub(crate) struct Inner {
    domain: Domain,
    /// Queue pairs are built with it. It is never polled.
    for_builders: Cq,
    /// No thread that has locked the seat waits for it.
    lead: Mutex<Lead>,
    /// [`AWAITED`], and how often `lead` was given back. The thread that had it may have taken an event that the task of the driver waits
    /// for.
    handovers: AtomicU64,
    seat: Mutex<Seat>,
    given_back: Condvar,
    /// The connection manager has news of connections, which the table names. It is changed while the seat is locked.
    has_news: AtomicBool,
    /// Turns in which there were completions.
    turns: AtomicU64,
    #[cfg(feature = "tokio")]
    task: Mutex<Option<::tokio::task::AbortHandle>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        #[cfg(feature = "tokio")]
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

/// Looks for the completions of its connections. Clones are handles of the same driver.
///
/// A driver ends when its last handle, connection and request is dropped.
#[derive(Clone)]
pub struct Driver(Arc<Inner>);

impl Driver {
    /// A driver whose completions are looked for by the threads that wait: in [`Driver::run`], in [`Op::wait`](crate::session::Op::wait)
    /// and its kind. A program with a loop of its own calls [`Driver::turn`]. Without either, a future is never woken.
    ///
    /// # Errors
    /// The device has no room for a completion queue.
    pub fn manual(domain: &Domain) -> Result<Self> {
        let cq = domain.cq(ENTRIES)?;
        let for_builders = cq.for_builders();
        let seat =
            Mutex::new(Seat { followers: 0, task: None, watchers: Vec::new(), table: Table::default() });
        Ok(Self(Arc::new(Inner {
            domain: domain.clone(),
            for_builders,
            lead: Mutex::new(Lead { cq, last: None }),
            handovers: AtomicU64::new(0),
            seat,
            given_back: Condvar::new(),
            has_news: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            #[cfg(feature = "tokio")]
            task: Mutex::new(None),
        })))
    }

    /// A driver with a thread that looks for completions. It ends a moment after the driver.
    ///
    /// A simulated device gets no thread, because the programs of a simulation take turns: there it is a [manual](Driver::manual) driver,
    /// and futures need [`Driver::run`].
    ///
    /// # Errors
    /// As [`Driver::manual`], or the system has no thread.
    pub fn thread(domain: &Domain, idle: Idle) -> Result<Self> {
        let driver = Self::manual(domain)?;
        if !driver.is_simulated() {
            let inner = Arc::downgrade(&driver.0);
            let thread = thread::Builder::new().name("ferroce-driver".into());
            thread
                .spawn(move || work(&inner, idle))
                .map_err(|error| Error::new(Kind::Os, "thread", format!("the driver's thread: {error}")))?;
        }
        Ok(driver)
    }

    /// A driver with a task of the current tokio runtime, which sleeps on the completion queue's descriptor.
    ///
    /// A simulated device has no descriptor: there the task advances the simulation, and yields. It needs a runtime of one thread.
    ///
    /// # Errors
    /// As [`Driver::manual`], or the runtime refuses the descriptor.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without I/O (`enable_io`), but for a simulated device.
    #[cfg(feature = "tokio")]
    pub fn tokio(domain: &Domain) -> Result<Self> {
        let driver = Self::manual(domain)?;
        let task = crate::session::tokio::spawn(&driver)?;
        *driver.0.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        Ok(driver)
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.0.domain
    }

    /// Begins a queue pair for [`Driver::join`].
    pub fn rc(&self) -> Builder<'_, Reliable> {
        self.0.domain.rc(&self.0.for_builders)
    }

    /// Makes a connection without a connection manager: the endpoints go over another connection. `exchange` gets this side's endpoint,
    /// and returns the peer's.
    ///
    /// Receives are posted by the call, so before the peer knows the endpoint: as many as the queue pair and the pool have. The
    /// connection uses the pool as long as it exists.
    ///
    /// # Errors
    /// The queue pair isn't of [`Driver::rc`]; what `exchange` returns; or the peer can't be reached.
    pub fn join<X, F>(
        &self,
        setup: Setup<Reliable>,
        pool: &Pool,
        exchange: X,
    ) -> impl Future<Output = Result<Connection>> + use<X, F>
    where
        X: FnOnce(Endpoint) -> F,
        F: Future<Output = Result<Endpoint>>,
    {
        let joining = self.prepare(setup, pool);
        async move {
            let joining = joining?;
            let theirs = exchange(joining.endpoint()).await?;
            joining.connect(&theirs)
        }
    }

    pub(crate) fn prepare(&self, setup: Setup<Reliable>, pool: &Pool) -> Result<Joining> {
        if !setup.completes_in(&self.0.for_builders) {
            return Err(Error::invalid(
                "join",
                "the queue pair is of another completion queue: use `Driver::rc`",
            ));
        }
        if !setup.has_all_receives() {
            let why = "the queue pair has receives of its own, or shared ones";
            return Err(Error::invalid("join", why));
        }
        let place = self.seat().table.reserve();
        Ok(Joining::new(self, setup, pool, place))
    }

    /// Polls for completions once, and completes the requests of connections. Returns the number of completions, or 0 if another thread polls.
    #[inline]
    pub fn turn(&self) -> usize {
        let Some(mut turn) = self.lead() else { return 0 };
        turn.dispatch()
    }

    /// Runs a future on this thread, which looks for completions while the future waits. Wakeups by other threads are noticed within a
    /// millisecond.
    ///
    /// In a simulation time moves on meanwhile.
    ///
    /// # Panics
    /// In a simulation: nothing will ever happen again. The message contains what each queue pair waits for.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let woken = Arc::new(Woken { flag: AtomicBool::new(true), driver: Arc::downgrade(&self.0) });
        let waker = Waker::from(woken.clone());
        let done = self.block(None, RUN_SLICE, || {
            if !woken.flag.swap(false, Ordering::AcqRel) {
                return None;
            }
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            }
        });
        done.unwrap_or_else(|| unreachable!("a wait without a limit"))
    }

    /// Calls `look` until it returns something, at most for `limit`. This thread looks for completions meanwhile, or waits for the one that
    /// does.
    pub(crate) fn wait_until<T>(
        &self,
        limit: Option<Duration>,
        look: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.block(limit, SLICE, look)
    }

    fn block<T>(
        &self,
        limit: Option<Duration>,
        slice: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let until = limit.and_then(|limit| self.now().checked_add(limit));
        loop {
            let turns = self.turns();
            if let Some(found) = look() {
                return Some(found);
            }
            let left = until.map(|until| until.saturating_sub(self.now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let slice = left.map_or(slice, |left| left.min(slice));
            match self.lead() {
                // What has changed in between is looked at first.
                Some(mut turn) if self.turns() == turns => turn.wait(slice),
                Some(_) => {}
                None if self.is_simulated() => self.0.domain.device().pause(slice),
                None => self.follow(turns, slice),
            }
        }
    }

    /// Waits until the thread that has the completion queue has found completions, or gives the queue back.
    fn follow(&self, turns: u64, slice: Duration) {
        let mut seat = self.seat();
        self.await_handover();
        if self.try_lead().is_some() || self.turns() != turns {
            return;
        }
        seat.followers += 1;
        let (mut seat, _) =
            self.0.given_back.wait_timeout(seat, slice).unwrap_or_else(PoisonError::into_inner);
        seat.followers -= 1;
    }

    /// How often the completion queue was given back.
    #[cfg(feature = "tokio")]
    fn handovers(&self) -> u64 {
        self.0.handovers.load(Ordering::Acquire) / HANDOVER
    }

    fn turns(&self) -> u64 {
        self.0.turns.load(Ordering::Acquire)
    }

    fn now(&self) -> Duration {
        self.0.domain.device().now()
    }

    fn seat(&self) -> MutexGuard<'_, Seat> {
        self.0.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.descriptor().is_none()
    }

    /// The completion queue's; a simulated device has none.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.for_builders.descriptor()
    }

    #[inline]
    fn try_lead(&self) -> Option<MutexGuard<'_, Lead>> {
        match self.0.lead.try_lock() {
            Ok(lead) => Some(lead),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes the completion queue, unless another thread has it.
    #[inline]
    pub(crate) fn lead(&self) -> Option<Turn<'_>> {
        self.try_lead().map(|lead| Turn { lead, end: EndOfTurn(self) })
    }

    /// Has the next end of a turn look at what waits. A thread that finds the completion queue taken after this is woken by that.
    fn await_handover(&self) {
        // Pairs with the addition at the end of a turn: either that sees the bit, or the queue is seen to be free.
        self.0.handovers.fetch_or(AWAITED, Ordering::AcqRel);
    }

    /// As [`Driver::lead`]. If another thread has it, `waker` is woken when that gives it back.
    #[cfg(feature = "tokio")]
    pub(crate) fn lead_or_wait(&self, waker: &Waker) -> Option<Turn<'_>> {
        if let Some(turn) = self.lead() {
            return Some(turn);
        }
        let mut seat = self.seat();
        let mut before = seat.task.replace(waker.clone());
        self.await_handover();
        let turn = self.lead();
        if turn.is_some() {
            std::mem::swap(&mut seat.task, &mut before);
        }
        drop(seat);
        drop(before);
        turn
    }

    /// Wakes the task of the driver when there is something that no completion announces, or when another thread has had the queue
    /// since it was armed. True: so it is already.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_nudged(&self, armed: u64, waker: &Waker) -> bool {
        let mut seat = self.seat();
        let before = seat.task.replace(waker.clone());
        self.await_handover();
        let nudged = seat.table.is_nudged() || self.handovers() != armed;
        drop(seat);
        drop(before);
        nudged
    }

    /// The connection manager has news of the connection at this place.
    pub(crate) fn nudge(&self, place: u32, qpn: u32) {
        let mut seat = self.seat();
        seat.table.nudge(place, qpn);
        self.0.has_news.store(true, Ordering::Relaxed);
        let task = seat.task.take();
        drop(seat);
        self.0.given_back.notify_all();
        task.into_iter().for_each(Waker::wake);
    }

    /// Wakes a task after the next turn.
    #[cfg(feature = "sim")]
    pub(crate) fn wake_after_turn(&self, waker: &Waker) {
        let mut seat = self.seat();
        if !seat.watchers.iter().any(|watcher| watcher.will_wake(waker)) {
            seat.watchers.push(waker.clone());
        }
        self.await_handover();
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.0)
    }

    pub(crate) fn upgrade(inner: &Weak<Inner>) -> Option<Self> {
        inner.upgrade().map(Self)
    }

    /// A connection is being made in its place.
    pub(crate) fn put(&self, shared: Arc<Shared>) {
        self.seat().table.put(shared);
    }

    /// A connection has ended. The thread that has the completion queue may have a completion of it.
    pub(crate) fn forget(&self, place: u32) {
        let mut seat = self.seat();
        seat.table.end(place);
        self.await_handover();
        let purged = self.purge(&mut seat);
        drop(seat);
        drop(purged);
    }

    /// Forgets the connections that have ended. `None`: a thread has the completion queue, and may have completions of theirs. The caller
    /// drops them outside of locks.
    fn purge(&self, seat: &mut Seat) -> Option<impl Sized + use<>> {
        let mut lead = self.try_lead()?;
        Some((lead.last.take(), seat.table.purge()))
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Driver").field(&self.0.domain).finish()
    }
}

/// The thread of a driver.
fn work(inner: &Weak<Inner>, idle: Idle) {
    while let Some(driver) = Driver::upgrade(inner) {
        let turns = driver.turns();
        match driver.lead() {
            Some(mut turn) if idle == Idle::Spin => drop(turn.dispatch()),
            Some(mut turn) => turn.wait(SLICE),
            None => driver.follow(turns, SLICE),
        }
    }
}

/// The waker of [`Driver::run`].
struct Woken {
    flag: AtomicBool,
    driver: Weak<Inner>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.flag.store(true, Ordering::Release);
        if let Some(inner) = self.driver.upgrade() {
            inner.given_back.notify_all();
        }
    }
}

/// The completion queue of a driver, in the hands of one thread.
pub(crate) struct Turn<'d> {
    /// It is given back before the end of the turn.
    lead: MutexGuard<'d, Lead>,
    end: EndOfTurn<'d>,
}

impl Turn<'_> {
    /// Arms the queue. `Some`: it has no completions, and [`Driver::is_nudged`] takes this.
    ///
    /// # Errors
    /// The device can't be used any more.
    #[cfg(feature = "tokio")]
    pub(crate) fn arm(&mut self) -> Result<Option<u64>> {
        let armed = self.lead.cq.arm()?;
        // After the end of this turn it is one more.
        Ok(armed.then(|| self.end.0.handovers() + 1))
    }

    /// Waits for completions, and completes the requests of connections.
    fn wait(&mut self, limit: Duration) {
        match self.lead.cq.wait(Some(limit)) {
            Ok(true) => drop(self.dispatch()),
            Ok(false) => self.look_at_links(),
            Err(error) => self.is_dead(&error),
        }
    }

    /// Completes the requests of connections.
    #[inline(never)]
    pub(crate) fn dispatch(&mut self) -> usize {
        let driver = self.end.0;
        self.look_at_links();
        let Lead { cq, last } = &mut *self.lead;
        let mut completions = match cq.poll() {
            Ok(completions) => completions,
            Err(error) => {
                self.is_dead(&error);
                return 0;
            }
        };
        let mut count = 0;
        while let Some(mut completion) = completions.next() {
            count += 1;
            let tag = completion.tag();
            if last.as_ref().is_none_or(|shared| u64::from(shared.place) != tag >> 32) {
                *last = driver.seat().table.of_tag(tag);
            }
            if let Some(shared) = last.as_ref().filter(|shared| shared.qpn == completion.qp()) {
                shared.completed(&mut completion);
            }
        }
        if count > 0 {
            driver.0.turns.fetch_add(1, Ordering::Release);
        }
        count
    }

    /// Ends connections that their peers have ended.
    #[inline]
    fn look_at_links(&self) {
        // A turn locks the seat when it begins, so it sees all news of before.
        if self.end.0.0.has_news.load(Ordering::Relaxed) {
            self.look_at_nudged();
        }
    }

    #[cold]
    fn look_at_nudged(&self) {
        let nudged = {
            let mut seat = self.end.0.seat();
            self.end.0.0.has_news.store(false, Ordering::Relaxed);
            seat.table.nudged()
        };
        nudged.iter().for_each(|shared| shared.watch_link());
    }

    /// The device can't be used any more, as in the child of a fork.
    #[cold]
    pub(crate) fn is_dead(&self, error: &Error) {
        let all = self.end.0.seat().table.all();
        for shared in all {
            shared.end(Fault::new(Status::Flushed, 0, Some(error.to_string().into()), None));
        }
    }
}

/// Wakes what waits for the end of a turn, when the completion queue was given back.
struct EndOfTurn<'d>(&'d Driver);

impl Drop for EndOfTurn<'_> {
    #[inline]
    fn drop(&mut self) {
        // Pairs with `await_handover`.
        let before = self.0.0.handovers.fetch_add(HANDOVER, Ordering::AcqRel);
        if before & AWAITED != 0 {
            self.0.end_turn();
        }
    }
}

impl Driver {
    /// The completion queue was given back: wakes all that waits for that, and drops the connections that have ended.
    #[inline(never)]
    fn end_turn(&self) {
        let mut seat = self.seat();
        self.0.handovers.fetch_and(!AWAITED, Ordering::AcqRel);
        let mut purged = None;
        if seat.table.has_ended() {
            purged = self.purge(&mut seat);
            if purged.is_none() {
                // The thread that has the queue now does it, unless it has given the queue back in between.
                self.await_handover();
                purged = self.purge(&mut seat);
            }
        }
        let (task, followers) = (seat.task.take(), seat.followers);
        let watchers: SmallVec<[Waker; 2]> = seat.watchers.drain(..).collect();
        drop(seat);
        if followers > 0 {
            self.0.given_back.notify_all();
        }
        task.into_iter().chain(watchers).for_each(Waker::wake);
        drop(purged);
    }
}
