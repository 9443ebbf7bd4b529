//! The one value of its kind that a process has.

use std::sync::atomic::{AtomicPtr, Ordering};

/// A reference to a value that is never freed, or none.
#[derive(Debug)]
pub struct Global<T: 'static>(AtomicPtr<T>);

impl<T> Global<T> {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// From here on there is none. A child of fork(2) may call this.
    pub fn clear(&self) {
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }
}

impl<T: Sync> Global<T> {
    /// The value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        let value = self.0.load(Ordering::Acquire);
        // SAFETY: null, or made of a reference that is valid for ever (`set`), to what threads may share.
        unsafe { value.as_ref() }
    }

    /// Puts `value` in place of what was there.
    pub fn set(&self, value: &'static T) {
        self.0.store(std::ptr::from_ref(value).cast_mut(), Ordering::Release);
    }
}

impl<T> Default for Global<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_there_until_it_is_cleared() {
        static VALUE: u32 = 7;
        let global = Global::new();
        assert_eq!(global.get(), None);
        global.set(&VALUE);
        assert!(global.get().is_some_and(|value| std::ptr::eq(value, &raw const VALUE)));
        global.clear();
        assert_eq!(global.get(), None);
    }
}
