//! What one thread at a time does and may have to wait in the middle of: a lock isn't held through a wait, as a fork would wait for it.

use crate::atomics::{AtomicU32, Ordering};
use crate::fork;

/// Something that one thread of the process does at a time. A child of fork finds that nobody does.
#[derive(Debug)]
pub struct Turn(AtomicU32);

/// This thread alone does it, until this is dropped.
#[derive(Debug)]
pub struct OwnTurn<'a>(&'a AtomicU32);

impl Turn {
    /// Nobody's.
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
    fn a_thread_of_the_process_before_a_fork_has_lost_it() {
        let turn = Turn(AtomicU32::new(fork::generation()));
        assert!(turn.take().is_some());
    }
}
