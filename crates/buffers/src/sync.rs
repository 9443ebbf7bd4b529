//! Atomics and cells of the [slots](crate::slots). A test compiles the slots with loom's instead of these.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A cell whose content is accessed by pointer only, as loom's.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Lets a thread go on that holds this one up for some instructions. It may have a lower priority, so this sleeps.
#[cold]
pub(crate) fn pause() {
    std::thread::sleep(std::time::Duration::from_micros(20));
}
