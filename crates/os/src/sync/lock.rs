//! Locks whose whole state is their own word: waiting threads sleep in the kernel (futex(2)).
//!
//! A library that keeps a list of waiting threads leaves a child of fork(2) with entries of threads that it doesn't have: a lock is
//! handed to one of them, or the list itself is locked, and the child waits for ever. With these locks, a child has only words, and
//! they are free (`fork`).

use super::lock_words::LockWords;
use crate::fork;
use crate::patience::Patience;
use crate::rank::{self, Class};
use crate::sys::{sleep, wake};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A value that one thread at a time uses. `C` is the lock's [class](super::class).
pub type Mutex<C, T> = lock_api::Mutex<RawLock<C>, T>;
/// A [`Mutex`] that this thread holds.
pub type MutexGuard<'a, C, T> = lock_api::MutexGuard<'a, RawLock<C>, T>;
/// A value that many threads may read at once.
pub type RwLock<C, T> = lock_api::RwLock<RawGate<C>, T>;

/// Notifies waiting threads of a change.
#[derive(Debug, Default)]
pub struct Changed(AtomicU32);

impl Changed {
    /// The count of changes, for [`Changed::wait`]. Read it while nothing can change.
    pub fn seen(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Something has changed.
    pub fn tell(&self) {
        self.0.fetch_add(1, Ordering::Release);
        wake(&self.0, i32::MAX);
    }

    /// Waits until something has changed since `seen`, until `deadline`, or until a spurious wakeup. The caller holds no lock.
    pub fn wait(&self, seen: u32, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        fork::outside_library(|| sleep(&self.0, seen, Some(left)));
    }
}

/// Sleeps on a lock that another thread holds. In a process that was forked in the middle of this very call, the holder may not
/// exist: the panic ends the call.
fn sleep_on_lock(word: &AtomicU32, value: u32, limit: Option<Duration>) {
    const LOOKS: Duration = Duration::from_secs(1);
    sleep(word, value, Some(limit.map_or(LOOKS, |limit| limit.min(LOOKS))));
    assert!(!fork::is_unusable(), "a lock is held by a thread that this process doesn't have");
}

/// Spins and yields before a sleep: most locks are held for less time than a sleep takes.
struct Spinning(u32);

impl Spinning {
    const SPINS: u32 = 3;
    const YIELDS: u32 = 7;

    fn new() -> Self {
        Self(0)
    }

    /// Passes some time; false when it is time to sleep.
    fn goes_on(&mut self) -> bool {
        self.0 += 1;
        if self.0 <= Self::SPINS {
            (0..1 << self.0).for_each(|_| std::hint::spin_loop());
        } else if self.0 <= Self::SPINS + Self::YIELDS {
            std::thread::yield_now();
        } else {
            return false;
        }
        true
    }
}

/// A lock that one thread holds.
#[derive(Debug)]
pub struct RawLock<C>(LockWords, PhantomData<fn() -> C>);

impl<C> RawLock<C> {
    /// False: `limit` has passed before. Time in which the whole process was stopped doesn't count.
    #[cold]
    fn lock_slowly(&self, limit: Option<Duration>) -> bool {
        const ROUND: Duration = Duration::from_millis(5);
        let mut patience = limit.map(|limit| Patience::new(limit, ROUND.min(limit)));
        loop {
            let mut spinning = Spinning::new();
            while spinning.goes_on() {
                if self.0.is_free() && self.0.try_lock() {
                    return true;
                }
            }
            if patience.as_mut().is_some_and(Patience::has_ended) {
                return false;
            }
            if self.0.about_to_sleep(fork::order_all) {
                sleep_on_lock(&self.0.asleep, LockWords::ASLEEP, patience.as_ref().map(|_| ROUND));
            }
        }
    }
}

// SAFETY: one thread at a time has found it free and taken it.
unsafe impl<C: Class> lock_api::RawMutex for RawLock<C> {
    #[allow(clippy::declare_interior_mutable_const)] // the trait's way to make one
    const INIT: Self = Self(LockWords::new(AtomicU32::new(0), AtomicU32::new(0)), PhantomData);
    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    fn lock(&self) {
        rank::check::<C>();
        if !self.try_lock() {
            self.lock_slowly(None);
            rank::held::<C>();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let locked = self.0.try_lock();
        if locked {
            rank::held::<C>();
        }
        locked
    }

    #[inline]
    unsafe fn unlock(&self) {
        rank::freed::<C>();
        if self.0.unlock(fork::order) {
            wake(&self.0.asleep, i32::MAX);
        }
    }
}

// SAFETY: as above.
unsafe impl<C: Class> lock_api::RawMutexTimed for RawLock<C> {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_for(&self, limit: Duration) -> bool {
        rank::check::<C>();
        lock_api::RawMutex::try_lock(self) || {
            let locked = self.lock_slowly(Some(limit));
            if locked {
                rank::held::<C>();
            }
            locked
        }
    }

    fn try_lock_until(&self, until: Instant) -> bool {
        self.try_lock_for(until.saturating_duration_since(Instant::now()))
    }
}

/// Of a [`RawGate`]: no thread holds it or waits for it.
const FREE: u32 = 0;
/// A writer holds it.
const WRITER: u32 = 1 << 31;
/// A thread sleeps: a writer because of readers, or any thread because of a writer.
const SLEEPER: u32 = 1 << 30;
/// A writer waits for the present readers to leave: no more come in.
const CLAIMED: u32 = 1 << 29;
/// The number of readers.
const READERS: u32 = CLAIMED - 1;

/// A lock that one thread holds to write, or many hold to read. The word is 0 while no thread holds it or waits for it.
///
/// A writer waits only for the present readers: later ones wait for the writer. So a thread that reads must not read a second time
/// before it has left: with a writer in between, it would wait for itself.
#[derive(Debug)]
pub struct RawGate<C>(AtomicU32, PhantomData<fn() -> C>);

impl<C> RawGate<C> {
    /// As [`lock_api::RawRwLock::try_lock_exclusive`], also where a writer has claimed the lock.
    fn try_claimed(&self) -> bool {
        let written = |word: u32| (word & (READERS | WRITER) == 0).then_some(word & SLEEPER | WRITER);
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, written).is_ok()
    }

    /// Tries until it succeeds; sleeps in between, having set the bits `waits`.
    #[cold]
    fn acquire(&self, waits: u32, try_it: impl Fn() -> bool) {
        let mut spinning = Spinning::new();
        loop {
            if try_it() {
                return;
            }
            if spinning.goes_on() {
                continue;
            }
            let word = self.0.load(Ordering::Relaxed);
            // If the lock is freed in between, the word differs: the sleep is skipped or returns at once.
            if word != FREE
                && (word & waits == waits
                    || self
                        .0
                        .compare_exchange(word, word | waits, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok())
            {
                sleep_on_lock(&self.0, word | waits, None);
            }
        }
    }

    /// It is free: sleeping threads try again.
    fn wake_all(word: *const AtomicU32) {
        wake(word, i32::MAX);
    }
}

// SAFETY: WRITER is set by one thread only and while there are no readers, and no reader comes while it is set.
unsafe impl<C: Class> lock_api::RawRwLock for RawGate<C> {
    #[allow(clippy::declare_interior_mutable_const)] // the trait's way to make one
    const INIT: Self = Self(AtomicU32::new(FREE), PhantomData);
    type GuardMarker = lock_api::GuardNoSend;

    fn lock_shared(&self) {
        rank::check::<C>();
        if !self.try_lock_shared() {
            self.acquire(SLEEPER, || self.try_lock_shared());
        }
    }

    fn try_lock_shared(&self) -> bool {
        let more = |word: u32| (word & (WRITER | CLAIMED) == 0).then_some(word + 1);
        let read = self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok();
        if read {
            rank::held::<C>();
        }
        read
    }

    unsafe fn unlock_shared(&self) {
        rank::freed::<C>();
        let word = &raw const self.0;
        let fewer = |word: u32| {
            let left = word - 1;
            // The claim stays until its writer is in.
            Some(if left & READERS == 0 { left & CLAIMED } else { left })
        };
        let before = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, fewer);
        if before.is_ok_and(|before| before & READERS == 1 && before & SLEEPER != 0) {
            Self::wake_all(word);
        }
    }

    fn lock_exclusive(&self) {
        rank::check::<C>();
        if !self.try_lock_exclusive() {
            self.acquire(SLEEPER | CLAIMED, || self.try_claimed());
            rank::held::<C>();
        }
    }

    fn try_lock_exclusive(&self) -> bool {
        let locked = self.0.compare_exchange(FREE, WRITER, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if locked {
            rank::held::<C>();
        }
        locked
    }

    unsafe fn unlock_exclusive(&self) {
        rank::freed::<C>();
        let word = &raw const self.0;
        if self.0.swap(FREE, Ordering::Release) & SLEEPER != 0 {
            Self::wake_all(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::class;
    use std::sync::Arc;

    const THREADS: usize = 4;
    const ROUNDS: usize = 20_000;

    fn in_threads(f: impl Fn(usize) + Send + Sync + 'static) {
        let f = Arc::new(f);
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let f = f.clone();
                std::thread::spawn(move || (0..ROUNDS).for_each(|round| f(number + round)))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn one_thread_at_a_time_holds_a_mutex() {
        let sum = Arc::new(Mutex::<class::Qp, _>::new(0));
        let seen = Arc::new(Mutex::<class::Cq, _>::new(0));
        let own = sum.clone();
        in_threads(move |_| {
            let mut sum = own.lock();
            let before = *sum;
            // Other threads come meanwhile, and sleep.
            if before % 512 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            *sum = before + 1;
            *seen.lock() += 1;
        });
        assert_eq!(*sum.lock(), THREADS * ROUNDS);
    }

    #[test]
    fn a_wait_for_a_mutex_ends_at_its_limit_or_with_the_lock() {
        let mutex = Arc::new(Mutex::<class::Qp, _>::new(0));
        let held = mutex.lock();
        let wait = |limit| {
            let mutex = mutex.clone();
            std::thread::spawn(move || mutex.try_lock_for(limit).map(|mut value| *value += 1))
        };
        let (short, long) = (wait(Duration::from_millis(20)), wait(Duration::from_secs(60)));
        assert!(short.join().unwrap().is_none());
        drop(held);
        assert!(long.join().unwrap().is_some());
        assert_eq!(*mutex.lock(), 1);
    }

    #[test]
    fn readers_of_a_gate_see_all_or_nothing_of_a_write() {
        let pair = Arc::new(RwLock::<class::RegionGate, _>::new((0, 0)));
        let own = pair.clone();
        in_threads(move |turn| {
            if turn % 8 == 0 {
                let mut pair = own.write();
                pair.0 += 1;
                if pair.0 % 128 == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
                pair.1 += 1;
            } else {
                let pair = own.read();
                assert_eq!(pair.0, pair.1);
            }
        });
        assert_eq!(*pair.read(), (THREADS * ROUNDS / 8, THREADS * ROUNDS / 8));
    }

    #[test]
    fn sleepers_wake_when_a_gate_is_free_again() {
        let gate = Arc::new(RwLock::<class::RegionGate, _>::new(0));
        let reader = gate.read();
        let writers: Vec<_> = (0..THREADS)
            .map(|_| {
                let gate = gate.clone();
                std::thread::spawn(move || *gate.write() += 1)
            })
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(*reader, 0);
        drop(reader);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(*gate.read(), THREADS);
    }

    /// There is never a moment without a reader, unless a writer that waits keeps the next one out.
    #[test]
    fn a_writer_waits_for_the_readers_that_are_there_only() {
        let gate = Arc::new(RwLock::<class::RegionGate, _>::new(false));
        let readers: Vec<_> = (0..THREADS)
            .map(|_| {
                let gate = gate.clone();
                std::thread::spawn(move || {
                    let end = Instant::now() + Duration::from_secs(20);
                    while !*gate.read() && Instant::now() < end {
                        let _reader = gate.read();
                        std::thread::sleep(Duration::from_millis(2));
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        *gate.write() = true;
        let waited = start.elapsed();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert!(waited < Duration::from_secs(10), "the writer waited for {waited:?}");
    }
}
