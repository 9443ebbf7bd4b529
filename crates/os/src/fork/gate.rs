//! The fork gate: which threads are inside the library. A fork waits until there is none: then no lock is held, and all data are
//! complete.
//!
//! Each thread has a [`Presence`] of its own, so entering takes a few plain instructions; the fork orders them for all threads at
//! once (membarrier(2)). A thread that sleeps for long, or runs code of the program, does so [outside](outside_library), without a
//! lock.

use super::barrier::{self, order};
use super::reading_word::ReadingFlag;
use super::using_word::Using;
use super::words::{CLOSED, OPEN, Presence, UNUSABLE, WIPED, close};
use crate::atomics::{AtomicBool, AtomicU32, Ordering};
use crate::per_thread;
use crate::per_thread::Zeroed;
use crate::sys::{self, sleep, wake};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::null;
use std::sync::atomic::AtomicPtr;
use std::time::{Duration, Instant};

/// How long a fork waits for threads that don't come out (because a debugger has stopped them), and how long threads wait for a fork
/// (which may itself wait for a lock that one of them holds). The child is unusable then.
const PATIENCE: Duration = Duration::from_secs(10);
/// After this long a fork logs that it waits.
const SPEAKS_AFTER: Duration = Duration::from_secs(1);
/// How long the gate stays closed while a thread doesn't come out: other threads are held up for no longer than this, whatever that
/// thread waits for.
const CLOSED_FOR: Duration = Duration::from_millis(200);
/// How long it is open then, before the fork tries again.
const OPEN_FOR: Duration = Duration::from_millis(100);
/// Yields before the fork sleeps between its looks at the other threads.
const YIELDS: u32 = 100;
const ROUND: Duration = Duration::from_micros(50);

/// One thread's presence, in a list that only grows; a thread that ends leaves its place to another.
pub(super) struct ThreadSlot {
    presence: Presence,
    pub(super) reading: ReadingFlag,
    pub(super) using: Using,
    taken: AtomicBool,
    next: *const ThreadSlot,
}

/// What this thread's fork found.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ForkPhase {
    /// No fork of this thread is under way.
    NoFork = 0,
    /// It is about to close or to open the gate, or has just done so.
    Closing,
    /// It has closed the gate, and waits for the threads inside.
    Waiting,
    /// Everything is complete.
    Complete,
    /// Other threads are still inside, or this thread is: a signal's handler has forked.
    Incomplete,
}

struct Here {
    place: Cell<*const ThreadSlot>,
    found: Cell<ForkPhase>,
    /// Forks within this thread's fork, by handlers of signals.
    nested: Cell<u32>,
}

// SAFETY: cells; zeros stand for "no place", "no fork" and "none nested".
unsafe impl Zeroed for Here {}

per_thread! { fn here() -> Here = "ferroce_fork_gate_here"; }

static PLACES: AtomicPtr<ThreadSlot> = AtomicPtr::new(std::ptr::null_mut());
/// For a system that can't wipe a page.
static UNWIPED: AtomicU32 = AtomicU32::new(OPEN);
/// The fork gate. In a child that no handler has run in, it is [`WIPED`].
static GATE: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const UNWIPED).cast_mut());
/// A thread has come in through the closed gate. In ordinary memory: the child of that fork is to see it.
static BREACHED: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// The key whose destructor gives a thread's place back, plus one; 0: not made yet.
static KEY: AtomicU32 = AtomicU32::new(0);

#[inline]
fn gate() -> &'static AtomicU32 {
    // SAFETY: a static, or a page that is never unmapped.
    unsafe { &*GATE.load(Ordering::Relaxed) }
}

/// Why verbs can't be used in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unusable(pub &'static str);

const CLONED: Unusable = Unusable(
    "this process was made by clone or _Fork, past the handlers of fork(3): verbs can't be used in it; use fork, or execute a program",
);
const IN_A_CALL: Unusable = Unusable(
    "this process was forked in the middle of a verbs call (by a signal's handler, beside a thread that was stopped, or for more than ten seconds): verbs can't be used in it",
);

/// This thread is in the library until this is dropped.
pub struct InLibrary {
    place: &'static ThreadSlot,
    /// The place is this thread's.
    _not_send: PhantomData<*const ()>,
}

impl ForkPhase {
    /// Whether the thread passes the closed gate: its own fork has closed it, and a handler of a signal, or of the fork, calls verbs.
    fn passes(self) -> bool {
        if self == Self::Closing {
            // It may be another thread's fork, whose child is refused then. This thread's own fork resets it once the gate is
            // closed.
            BREACHED.store(true, Ordering::SeqCst);
        }
        matches!(self, Self::Closing | Self::Waiting | Self::Complete)
    }
}

impl Drop for InLibrary {
    #[inline]
    fn drop(&mut self) {
        self.place.presence.leave();
    }
}

/// Enters the library, after a fork in progress. Every call of the program does this first; calls within calls may.
///
/// # Errors
/// [`Unusable`] in a child that didn't come out of fork(2), or that came out of one in the middle of a call.
#[inline]
pub fn enter_library() -> Result<InLibrary, Unusable> {
    let place = here().place.get();
    // SAFETY: null, or a place, which is never freed.
    let place = unsafe { place.as_ref() }.unwrap_or_else(take_place);
    place.presence.enter(order);
    // Leaves on drop.
    let inside = InLibrary { place, _not_send: PhantomData };
    if gate().load(Ordering::Acquire) != OPEN {
        wait_at_gate(place)?;
    }
    Ok(inside)
}

/// The thread is inside and has found the fork gate not open.
#[cold]
fn wait_at_gate(place: &ThreadSlot) -> Result<(), Unusable> {
    let mut wait = Wait::default();
    loop {
        let found = here().found.get();
        match gate().load(Ordering::Acquire) {
            OPEN => return Ok(()),
            CLOSED if found.passes() => return Ok(()),
            // Another library's atfork handler calls verbs in the child, where our own handler hasn't run yet.
            WIPED if found == ForkPhase::Complete => super::in_child(),
            // A call within a call: the fork waits for this thread, so this thread mustn't wait for the fork.
            CLOSED if place.presence.depth() > 1 => return Ok(()),
            CLOSED if wait.is_over() => return Ok(()),
            CLOSED => {
                let depth = place.presence.step_out();
                wait.sleep();
                place.presence.come_back(depth, order);
            }
            WIPED if found == ForkPhase::NoFork => return Err(CLONED),
            _ => return Err(IN_A_CALL),
        }
    }
}

/// A thread's wait for a fork.
#[derive(Default)]
struct Wait(Duration);

impl Wait {
    /// Sleeps outside until the gate opens, for a second at most.
    fn sleep(&mut self) {
        let since = Instant::now();
        sleep(gate(), CLOSED, Some(SPEAKS_AFTER));
        // Time in which the process was stopped doesn't count: the fork made no progress either.
        self.0 += since.elapsed().min(SPEAKS_AFTER);
    }

    /// Whether this thread, which is inside again, must go on though the gate is closed. The fork may wait for it: handlers that
    /// were registered before ours run after ours, and may take a lock that this thread holds.
    fn is_over(&self) -> bool {
        if BREACHED.load(Ordering::Relaxed) {
            return true;
        }
        if self.0 < PATIENCE {
            return false;
        }
        // The store comes before everything that this thread changes from here on.
        if !BREACHED.swap(true, Ordering::SeqCst) {
            tracing::error!(
                "a fork takes more than {PATIENCE:?} (waits for a lock that a thread in a verbs call holds?): its child is refused, verbs can't be used in it"
            );
        }
        true
    }
}

/// Runs `f`, which may sleep for long or be code of the program, outside the library. The caller holds no lock.
pub fn outside_library<R>(f: impl FnOnce() -> R) -> R {
    struct Back<'a>(&'a ThreadSlot, u32);

    impl Drop for Back<'_> {
        fn drop(&mut self) {
            let mut wait = Wait::default();
            loop {
                self.0.presence.come_back(self.1, order);
                let is_closed = gate().load(Ordering::Acquire) == CLOSED;
                if !is_closed || here().found.get().passes() || wait.is_over() {
                    return;
                }
                self.0.presence.step_out();
                wait.sleep();
            }
        }
    }

    crate::rank::check_none_held();
    let place = own_place();
    let _back = place.map(|place| Back(place, place.presence.step_out()));
    f()
}

/// No other thread will ever free a lock that is held.
pub(crate) fn is_unusable() -> bool {
    matches!(gate().load(Ordering::Acquire), WIPED | UNUSABLE)
}

/// A place for a thread that has none.
#[cold]
fn take_place() -> &'static ThreadSlot {
    super::install();
    let mut found = PLACES.load(Ordering::Acquire).cast_const();
    // SAFETY: null, or a place, which is never freed.
    while let Some(place) = unsafe { found.as_ref() } {
        if !place.taken.swap(true, Ordering::AcqRel) {
            break;
        }
        found = place.next;
    }
    // SAFETY: as above.
    let place = unsafe { found.as_ref() }.unwrap_or_else(new_place);
    here().place.set(place);
    let key = KEY.load(Ordering::Acquire);
    if key > 0 {
        // SAFETY: a key of ours; the value is not null, so its destructor runs. Without memory for it the place is never
        // given back.
        unsafe { libc::pthread_setspecific(key - 1, std::ptr::from_ref(place).cast()) };
        sys::thread_comes();
    }
    place
}

fn new_place() -> &'static ThreadSlot {
    let place = Box::leak(Box::new(ThreadSlot {
        presence: Presence::new(),
        reading: ReadingFlag::new(),
        using: Using::new(),
        taken: AtomicBool::new(true),
        next: null(),
    }));
    let mut first = PLACES.load(Ordering::Acquire);
    loop {
        place.next = first;
        match PLACES.compare_exchange(first, place, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return place,
            Err(now) => first = now,
        }
    }
}

/// The destructor of the thread's key. Calls that come after it take a place, and set the key, once more.
unsafe extern "C" fn give_place_back(place: *mut libc::c_void) {
    here().place.set(null());
    // SAFETY: what the key was set to: a place, which is never freed.
    unsafe { &*place.cast::<ThreadSlot>() }.taken.store(false, Ordering::Release);
    sys::thread_ends();
}

/// Makes the parts of the fork gate. Threads that call this at the same time may all do it: a lock, or "once", could be held in the
/// child of a fork that hasn't waited for threads, as the handlers weren't installed yet.
pub(super) fn install(handlers: impl FnOnce()) {
    if INSTALLED.load(Ordering::Acquire) {
        return;
    }
    barrier::register();
    make_key();
    make_page();
    handlers();
    INSTALLED.store(true, Ordering::Release);
}

fn make_key() {
    if KEY.load(Ordering::Acquire) != 0 {
        return;
    }
    let mut key = 0;
    // SAFETY: a writable key, and a destructor that is never unloaded.
    let made = unsafe { libc::pthread_key_create(&mut key, Some(give_place_back)) } == 0;
    if made && KEY.compare_exchange(0, key + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // SAFETY: just made, and no other thread has it.
        unsafe { libc::pthread_key_delete(key) };
    }
}

/// The page that the kernel wipes in every child that has a copy of this memory.
fn make_page() {
    const PAGE: usize = 4096;
    let unwiped = (&raw const UNWIPED).cast_mut();
    if GATE.load(Ordering::Acquire) != unwiped {
        return;
    }
    // SAFETY: a new private mapping, unused by other threads before it is published; a page is aligned for a word.
    unsafe {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let page = libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return;
        }
        let word = page.cast::<AtomicU32>();
        word.write(AtomicU32::new(OPEN));
        if libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) != 0
            || GATE.compare_exchange(unwiped, word, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            libc::munmap(page, PAGE);
        }
    }
}

/// Before a fork: closes the fork gate and waits until no other thread is inside.
pub(super) fn freeze() {
    let here = here();
    if here.found.get() != ForkPhase::NoFork {
        here.nested.set(here.nested.get() + 1);
        return;
    }
    // SAFETY: null, or a place, which is never freed.
    let inside = unsafe { here.place.get().as_ref() }.is_some_and(|place| place.presence.depth() > 0);
    // A signal's handler forks in the middle of a call. Other threads may wait for locks that this thread holds.
    let complete = !inside && close_with_all_outside(here);
    if complete {
        here.found.set(ForkPhase::Complete);
        return;
    }
    if !inside {
        here.found.set(ForkPhase::Closing);
        // The parent's threads go on.
        open_gate();
    }
    here.found.set(ForkPhase::Incomplete);
}

/// Closes the gate, after other forks. False in a process that is unusable. A signal's handler may fork, or call verbs, at any
/// moment from here on: once the gate is closed, it finds that this thread's fork is in progress.
fn close_gate(found: &Cell<ForkPhase>) -> bool {
    loop {
        found.set(ForkPhase::Closing);
        match close(gate()) {
            Ok(()) => break,
            Err(CLOSED) => {
                found.set(ForkPhase::NoFork);
                sleep(gate(), CLOSED, Some(SPEAKS_AFTER));
            }
            Err(_) => return false,
        }
    }
    found.set(ForkPhase::Waiting);
    // A thread that came in during an earlier fork is inside, and is waited for.
    BREACHED.store(false, Ordering::Relaxed);
    barrier::order_all();
    true
}

fn open_gate() {
    if gate().compare_exchange(CLOSED, OPEN, Ordering::Release, Ordering::Relaxed).is_ok() {
        wake(gate(), i32::MAX);
    }
}

/// Closes the gate with no other thread inside. False, and the gate may be closed, when a thread doesn't come out for [`PATIENCE`].
fn close_with_all_outside(here: &Here) -> bool {
    let since = Instant::now();
    let mut spoken = false;
    loop {
        if !close_gate(&here.found) {
            return false;
        }
        if wait_for_others(here.place.get()) {
            return true;
        }
        let waited = since.elapsed();
        if waited >= PATIENCE {
            tracing::error!(
                "a thread is in a verbs call for more than {PATIENCE:?} (stopped?): the fork goes on, and its child can't use verbs"
            );
            return false;
        }
        if waited >= SPEAKS_AFTER && !std::mem::replace(&mut spoken, true) {
            tracing::warn!("a fork waits for a thread in a verbs call that takes more than a second");
        }
        here.found.set(ForkPhase::Closing);
        open_gate();
        // A handler of a signal that forks now closes the gate for itself.
        here.found.set(ForkPhase::NoFork);
        sys::pause(OPEN_FOR);
    }
}

/// Waits until no thread but the one of `own` is inside. False when one doesn't come out for [`CLOSED_FOR`].
fn wait_for_others(own: *const ThreadSlot) -> bool {
    let mut rounds = 0;
    let mut since = None;
    for place in places().filter(|&place| !std::ptr::eq(place, own)) {
        while place.presence.depth() > 0 {
            rounds += 1;
            if rounds <= YIELDS {
                sys::yield_processor();
                continue;
            }
            sys::pause(ROUND);
            if since.get_or_insert_with(Instant::now).elapsed() >= CLOSED_FOR {
                return false;
            }
        }
    }
    true
}

/// This thread's place, if it has been in the library.
#[inline]
pub(super) fn own_place() -> Option<&'static ThreadSlot> {
    // SAFETY: null, or a place, which is never freed.
    unsafe { here().place.get().as_ref() }
}

/// Those of all threads, and those that threads have left.
pub(super) fn places() -> impl Iterator<Item = &'static ThreadSlot> {
    let mut next = PLACES.load(Ordering::Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: null, or a place, which is never freed.
        let place = unsafe { next.as_ref() }?;
        next = place.next;
        Some(place)
    })
}

/// In the parent, or when there is no child.
pub(super) fn thaw() {
    let here = here();
    if here.nested.get() > 0 {
        here.nested.set(here.nested.get() - 1);
        return;
    }
    // A fork by a signal's handler counts as nested in this one until the gate is open.
    if here.found.replace(ForkPhase::Closing) == ForkPhase::Complete {
        open_gate();
    }
    here.found.set(ForkPhase::NoFork);
}

/// What this thread's fork has found. For the child, which calls it once.
pub(super) fn found() -> ForkPhase {
    let here = here();
    let is_nested = here.nested.replace(0) > 0;
    match here.found.replace(ForkPhase::NoFork) {
        // A signal's handler has forked in the middle of a call that this thread makes while it forks.
        ForkPhase::Complete if is_nested && own_place().is_some_and(|place| place.presence.depth() > 0) => {
            ForkPhase::Incomplete
        }
        found => found,
    }
}

/// The last step in the child, where this is the only thread.
pub(super) fn begin_child(found: ForkPhase) {
    let complete = found == ForkPhase::Complete && !BREACHED.load(Ordering::Relaxed);
    let own = here().place.get();
    for place in places().filter(|&place| !std::ptr::eq(place, own)) {
        place.presence.clear();
        place.reading.clear();
        place.using.clear();
        place.taken.store(false, Ordering::Release);
    }
    sys::forget_threads(!own.is_null());
    barrier::register();
    gate().store(if complete { OPEN } else { UNUSABLE }, Ordering::Release);
}
