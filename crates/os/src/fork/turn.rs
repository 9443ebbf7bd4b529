//! An activity of one thread at a time that may wait in the middle. It isn't a lock: a fork waits for held locks, and would wait
//! for this.

use crate::Patience;
use crate::atomics::{AtomicU32, Ordering};
use crate::fork;
use std::time::Duration;

/// How long a thread that waits for its turn pauses between two looks.
const ROUND: Duration = Duration::from_micros(100);

/// The right to an activity of one thread at a time. In a child of a fork no thread has it.
#[derive(Debug)]
pub struct Turn(AtomicU32);

/// This thread has the turn until this is dropped.
#[derive(Debug)]
pub struct OwnTurn<'a>(&'a AtomicU32);

impl Turn {
    /// A turn that no thread has.
    #[must_use]
    pub fn free() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes it. `None` while another thread has it.
    #[must_use]
    pub fn take(&self) -> Option<OwnTurn<'_>> {
        // One more than the generation of the thread's process: a thread that the process doesn't have has lost it.
        let own = fork::generation() + 1;
        (self.0.swap(own, Ordering::Acquire) != own).then(|| OwnTurn(&self.0))
    }

    /// Takes it as soon as no other thread has it. `None` when another thread has it for longer than `limit`. `pause` sleeps between two looks.
    #[must_use]
    pub fn wait(&self, limit: Duration, pause: impl Fn(Duration)) -> Option<OwnTurn<'_>> {
        if let Some(own) = self.take() {
            return Some(own);
        }
        let mut patience = Patience::new(limit, ROUND);
        while !patience.has_ended() {
            pause(ROUND);
            if let Some(own) = self.take() {
                return Some(own);
            }
        }
        None
    }
}

impl Drop for OwnTurn<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_turn() {
        let turn = Turn::free();
        let own = turn.take();
        assert!(own.is_some());
        let of_another = || std::thread::scope(|s| s.spawn(|| turn.take().is_some()).join().unwrap());
        assert!(!of_another());
        assert!(turn.take().is_none());
        drop(own);
        assert!(of_another());
        assert!(turn.take().is_some());
    }

    #[test]
    fn a_thread_waits_for_its_turn_no_longer_than_the_limit() {
        let (turn, short, long) = (Turn::free(), Duration::from_millis(10), Duration::from_secs(60));
        let own = turn.take();
        assert!(turn.wait(short, std::thread::sleep).is_none());
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| turn.wait(long, std::thread::sleep).is_some());
            std::thread::sleep(short);
            drop(own);
            assert!(waits.join().unwrap());
        });
        // As soon as it is free.
        assert!(turn.wait(long, |_| panic!("a pause")).is_some());
    }

    #[test]
    fn a_thread_of_the_process_before_a_fork_has_lost_it() {
        let turn = Turn(AtomicU32::new(fork::generation()));
        assert!(turn.take().is_some());
    }
}
