//! fork(2): the parent notices nothing; in the child contexts, domains and regions go on to work, with a new engine at
//! the first use, and inherited QPs are in ERR.
//!
//! The handlers run around every fork of a program that has opened a device. All locks of objects are held over it, so
//! that the child never finds one that a thread it doesn't have has locked.

use super::registry::{self, Frozen};
use crate::mem::copy;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static FROZEN: AtomicPtr<Frozen> = AtomicPtr::new(std::ptr::null_mut());

/// How many forks lie between the first process and this one.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Sees to it that the handlers run.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(prepare), Some(parent), Some(child));
    });
}

extern "C" fn prepare() {
    std::mem::forget(super::STARTING.lock());
    let frozen = Box::into_raw(Box::new(registry::freeze()));
    FROZEN.store(frozen, Ordering::Relaxed);
    crate::sys::hold_openings();
}

/// Undoes `prepare`, on either side.
fn release() {
    let frozen = FROZEN.swap(std::ptr::null_mut(), Ordering::Relaxed);
    if frozen.is_null() {
        return;
    }
    // SAFETY: `prepare` of this very fork made it, in this thread or its original; STARTING was locked there too.
    unsafe {
        let frozen = Box::from_raw(frozen);
        registry::thaw(&frozen);
        super::STARTING.force_unlock();
    }
}

extern "C" fn parent() {
    crate::sys::resume_openings();
    release();
}

extern "C" fn child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    crate::sys::close_all_after_fork();
    copy::after_fork();
    crate::shm::forget_after_fork();
    // Left as it is: its threads don't exist here, and its descriptors are closed.
    super::CURRENT.store(std::ptr::null_mut(), Ordering::Release);
    release();
}
