//! What doesn't outlive a fork.

use std::mem::ManuallyDrop;

/// What a process has, and a child of fork(2) hasn't: a descriptor's number may be that of another file there, which is left alone.
#[derive(Debug)]
pub struct ThisProcess<T> {
    owner: u32,
    value: ManuallyDrop<T>,
}

impl<T> ThisProcess<T> {
    pub fn new(value: T) -> Self {
        Self { owner: std::process::id(), value: ManuallyDrop::new(value) }
    }

    /// `None` in a child.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        (self.owner == std::process::id()).then_some(&mut *self.value)
    }
}

impl<T> Drop for ThisProcess<T> {
    fn drop(&mut self) {
        if self.get_mut().is_some() {
            // SAFETY: nothing uses it from here on.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
