//! Stands for the crate's `sync`: the same names, with loom's types behind them.

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use loom::sync::{Condvar, MutexGuard};

/// parking_lot's interface over loom's lock.
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// What the background thread sleeps on. It has no time limit: a wake-up that is missed is a deadlock, which loom finds.
#[derive(Debug)]
pub(crate) struct Alarm {
    rung: loom::sync::Mutex<bool>,
    changed: Condvar,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self { rung: loom::sync::Mutex::new(false), changed: Condvar::new() }
    }

    pub(crate) fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    pub(crate) fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !std::mem::take(&mut *rung) {
            rung = self.changed.wait(rung).unwrap();
        }
    }
}
