//! What doesn't outlive a fork.

use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// One process among its ancestors. Its number isn't enough: the first process of a PID namespace may have a child that is the first of another one, and both
/// have the number 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessIdentity {
    number: u32,
    /// How many calls of fork(2) lie between the first process that has asked and this one.
    forks: u32,
}

impl ProcessIdentity {
    /// That of no process.
    pub const NONE: Self = Self { number: 0, forks: 0 };

    /// That of the calling process.
    pub fn own() -> Self {
        static FORKS: AtomicU32 = AtomicU32::new(0);
        static ONCE: Once = Once::new();
        extern "C" fn in_child() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        ONCE.call_once(|| {
            // SAFETY: a function of a library that stays loaded. If it fails, processes are known by their numbers.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self { number: std::process::id(), forks: FORKS.load(Ordering::Relaxed) }
    }
}

/// What a process has, and a child of fork(2) hasn't: a descriptor's number may be that of another file there, which is left alone.
#[derive(Debug)]
pub struct ThisProcess<T> {
    owner: ProcessIdentity,
    value: ManuallyDrop<T>,
}

impl<T> ThisProcess<T> {
    /// Of the calling process.
    pub fn new(value: T) -> Self {
        Self { owner: ProcessIdentity::own(), value: ManuallyDrop::new(value) }
    }

    /// `None` in a child.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        (self.owner == ProcessIdentity::own()).then_some(&mut *self.value)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_nothing_of_a_parent_with_the_same_number() {
        let mut value = ThisProcess::new(());
        assert!(value.get_mut().is_some());
        // SAFETY: the child ends without cleaning up.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // As if both were the first of their PID namespaces.
            value.owner.number = std::process::id();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(value.get_mut().is_some())) };
        }
        let mut status = 0;
        // SAFETY: the child, and room for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(value.get_mut().is_some(), "the parent has it still");
    }
}
