//! Reference count of an object that must outlive its users.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of an object's users.
#[derive(Debug, Default)]
pub struct Users(AtomicUsize);

impl Users {
    /// Adds a user.
    pub fn hold(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a user. After [`Users::check_none`] returns `Ok`, the caller sees all that the former users have written.
    pub fn release(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// The number of users.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// May the object end? `what` names the object and its users: "the queue pair still has flows".
    ///
    /// # Errors
    /// [`Error::Busy`] while there are users.
    pub fn check_none(&self, what: &str) -> Result<()> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            n => Err(Error::Busy(format!("{what} ({n})"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_ends_after_its_users() {
        let users = Users::default();
        users.hold();
        users.hold();
        users.release();
        let why = users.check_none("the queue pair still has flows").unwrap_err();
        assert_eq!((why.errno(), why.to_string().contains("still has flows (1)")), (libc::EBUSY, true));
        users.release();
        assert!(users.check_none("the queue pair still has flows").is_ok());
    }
}
