//! How many objects of a kind a process may have: the limits that `ibv_query_device` names.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU32, Ordering};

/// The objects of one kind.
#[derive(Debug)]
pub struct Quota {
    what: &'static str,
    max: u32,
    used: AtomicU32,
}

/// One object's place. It is free again when this is dropped.
#[derive(Debug)]
pub struct QuotaPlace(&'static Quota);

impl Quota {
    /// At most `max` of what is called `what`.
    #[must_use]
    pub const fn new(what: &'static str, max: u32) -> Self {
        Self { what, max, used: AtomicU32::new(0) }
    }

    /// A place for one more.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when all are taken.
    pub fn take(&'static self) -> Result<QuotaPlace> {
        let more = |used: u32| (used < self.max).then(|| used + 1);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(QuotaPlace(self)),
            Err(_) => Err(Error::NoMemory(format!("this process has {} {} already", self.max, self.what))),
        }
    }
}

impl Drop for QuotaPlace {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_after_its_object() {
        static TWO: Quota = Quota::new("things", 2);
        let first = TWO.take().unwrap();
        let _second = TWO.take().unwrap();
        assert_eq!(TWO.take().unwrap_err().errno(), libc::ENOMEM);
        drop(first);
        let _third = TWO.take().unwrap();
        assert!(TWO.take().is_err());
    }
}
