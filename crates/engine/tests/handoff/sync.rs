//! Stands for the crate's `sync`: the same names, with loom's types behind them.

use loom::sync::MutexGuard;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::marker::PhantomData;

/// lock_api's interface over loom's lock.
#[derive(Debug)]
pub(crate) struct Mutex<C, T>(loom::sync::Mutex<T>, PhantomData<fn() -> C>);

impl<C, T> Mutex<C, T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value), PhantomData)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

/// The classes of the locks.
pub(crate) mod class {
    #[derive(Debug)]
    pub(crate) struct Deadlines;
    #[derive(Debug)]
    pub(crate) struct RunQueue;
    /// Of the models.
    #[derive(Debug)]
    pub(crate) struct Qp;
}
