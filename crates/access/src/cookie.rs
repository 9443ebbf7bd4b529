//! The cookie: a random word at a random address, which identifies this process and the program that it runs.
//!
//! Copies between processes go by process number, which a process keeps when it executes another program, and which the kernel
//! gives to another process when this one has ended. So each copy begins at the cookie (`peer_memory`). The cookie's page is
//! mapped far from all other mappings: the next program with that number has nothing mapped there.

use ferroce_os::{fork, sys};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A cookie of this process; children of a fork don't have it.
#[derive(Debug)]
pub struct Cookie {
    page: NonNull<u8>,
    value: u64,
    generation: u32,
}

// SAFETY: an address and numbers; the word there is an atomic.
unsafe impl Send for Cookie {}
// SAFETY: as above.
unsafe impl Sync for Cookie {}

impl Cookie {
    /// A new one.
    ///
    /// # Errors
    /// No page is left.
    pub fn new() -> io::Result<Self> {
        let (page, value) = (sys::map_page_anywhere()?, sys::random() | 1);
        // SAFETY: aligned, in a mapping that is this value's own; others write there what is there already.
        unsafe { page.cast::<AtomicU64>().as_ref() }.store(value, Ordering::Relaxed);
        Ok(Self { page, value, generation: fork::generation() })
    }

    /// Its address.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.page.as_ptr() as u64
    }

    /// What is there.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.value
    }
}

impl Drop for Cookie {
    fn drop(&mut self) {
        // In a child something else may be there.
        if self.generation == fork::generation() {
            sys::unmap(self.page, sys::PAGE);
        }
    }
}
