//! When a thread that waits for an event watches memory before it sleeps (`wait.rs`): when memory is in use, and rarely after watches in
//! vain.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Waits without a watch, at most, after watches that were in vain: a power of two.
const MOST_SKIPPED: u32 = 6;

/// When waits begin with a watch. Threads that wait at the same time may count wrong, to no harm.
#[derive(Debug, Default)]
pub(super) struct WaitWatch {
    /// Something has come through memory since the last wait began.
    in_use: AtomicBool,
    /// Watches in a row that were in vain.
    vain: AtomicU32,
    /// Waits that are left without one.
    skipped: AtomicU32,
}

impl WaitWatch {
    /// Something has come through memory.
    #[inline]
    pub(super) fn found(&self) {
        if !self.in_use.load(Ordering::Relaxed) {
            self.in_use.store(true, Ordering::Relaxed);
        }
    }

    /// A wait begins. Whether it begins with a watch.
    pub(super) fn begins(&self) -> bool {
        let skipped = self.skipped.load(Ordering::Relaxed);
        let in_use = self.in_use.load(Ordering::Relaxed);
        self.in_use.store(false, Ordering::Relaxed);
        if in_use && skipped > 0 {
            self.skipped.store(skipped - 1, Ordering::Relaxed);
        }
        in_use && skipped == 0
    }

    pub(super) fn ends(&self, paid: bool) {
        let vain = if paid { 0 } else { (self.vain.load(Ordering::Relaxed) + 1).min(MOST_SKIPPED) };
        self.vain.store(vain, Ordering::Relaxed);
        self.skipped.store((1 << vain) - 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_in_vain_become_rare_until_one_pays() {
        let watch = WaitWatch::default();
        assert!(!watch.begins());
        let mut watched = 0;
        for _ in 0..1000 {
            watch.found();
            if watch.begins() {
                watched += 1;
                watch.ends(false);
            }
        }
        assert!((7..=7 + 1000 / 64).contains(&watched), "{watched}");
        watch.ends(true);
        for _ in 0..10 {
            watch.found();
            assert!(watch.begins());
            watch.ends(true);
            assert!(!watch.begins());
        }
    }
}
