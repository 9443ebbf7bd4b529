//! Send requests that are gathered first and posted together: ibv_wr_post(3).

use super::Qp;
use crate::ah::Ah;
use ferroce_os::sync::{RawLock, class};
use ferroce_proto::SendWr;
use ferroce_types::{Error, Result, invalid};
use parking_lot::lock_api::RawMutex as _;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What a critical region has gathered.
pub struct GatheredWrs<R> {
    requests: Vec<R>,
    error: Option<Error>,
}

impl<R> Default for GatheredWrs<R> {
    fn default() -> Self {
        Self { requests: Vec::new(), error: None }
    }
}

impl<R> GatheredWrs<R> {
    /// Begins a request, whose data and address follow.
    pub fn begin(&mut self, request: R) {
        self.requests.push(request);
    }

    /// The request that was begun last.
    ///
    /// # Errors
    /// [`Error::Invalid`] when none was.
    pub fn last(&mut self) -> Result<&mut R> {
        match self.requests.last_mut() {
            Some(request) => Ok(request),
            None => invalid!("nothing has been begun that this could belong to"),
        }
    }

    /// Something is wrong: nothing of the region will be posted. The first error is the one that is told.
    pub fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// What is to be posted.
    ///
    /// # Errors
    /// The first error that was found while gathering.
    pub fn finish(&mut self) -> Result<std::vec::Drain<'_, R>> {
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(self.requests.drain(..)),
        }
    }
}

/// The critical region of a QP's posting threads. It is held while the program's own code runs, so nothing of the adapter
/// ever waits for it: not the transport's work, not a fork.
pub struct WrSession<R> {
    lock: RawLock<class::CriticalRegion>,
    /// Somebody is in the region.
    entered: AtomicBool,
    /// Who.
    thread: AtomicUsize,
    gathered: UnsafeCell<GatheredWrs<R>>,
}

// SAFETY: only whoever is in the region touches `gathered` (see `WrSession::gather`), and what it holds may go between threads.
unsafe impl<R: Send> Sync for WrSession<R> {}

impl<R> WrSession<R> {
    pub(crate) fn new() -> Self {
        Self {
            lock: RawLock::INIT,
            entered: AtomicBool::new(false),
            thread: AtomicUsize::new(0),
            gathered: UnsafeCell::default(),
        }
    }

    /// Enters the critical region, in which no other thread can be (ibv_wr_start(3)).
    pub fn enter(&self) {
        if !self.lock.try_lock() {
            // The program's code runs there, for as long as it likes; a fork doesn't wait for it.
            ferroce_os::fork::outside_library(|| self.lock.lock());
        }
        self.thread.store(this_thread(), Ordering::Relaxed);
        self.entered.store(true, Ordering::Relaxed);
    }

    /// # Safety
    /// The caller is in the region.
    unsafe fn leave(&self) {
        self.entered.store(false, Ordering::Relaxed);
        // SAFETY: locked by `enter`.
        unsafe { self.lock.unlock() };
    }

    /// Changes what has been gathered.
    ///
    /// # Errors
    /// [`Error::Invalid`] when nobody is in the critical region.
    ///
    /// # Safety
    /// If anybody is in the region, the caller is.
    pub unsafe fn gather<T>(&self, f: impl FnOnce(&mut GatheredWrs<R>) -> T) -> Result<T> {
        if !self.entered.load(Ordering::Relaxed) {
            return invalid!("outside of ibv_wr_start and ibv_wr_complete");
        }
        // SAFETY: the caller is in the region, alone.
        Ok(f(unsafe { &mut *self.gathered.get() }))
    }

    /// Leaves the region with what `post` makes of what was gathered (ibv_wr_complete(3), ibv_wr_abort(3)).
    ///
    /// # Errors
    /// As [`WrSession::gather`], or that of `post`.
    ///
    /// # Safety
    /// As [`WrSession::gather`].
    pub unsafe fn complete(&self, post: impl FnOnce(&mut GatheredWrs<R>) -> Result<()>) -> Result<()> {
        // SAFETY: the caller's promise; this thread has entered the region if anybody has.
        unsafe {
            let posted = self.gather(post)?;
            self.gather(|gathered| {
                gathered.requests.clear();
                gathered.error = None;
            })?;
            self.leave();
            posted
        }
    }

    /// After a fork: frees the region from a thread that this process doesn't have. What that thread was writing may be
    /// half written, so it is left where it is.
    ///
    /// # Safety
    /// This is the only thread of the process, and isn't just entering the region.
    pub(crate) unsafe fn after_fork(&self) {
        let entered = self.entered.load(Ordering::Relaxed);
        if entered && self.thread.load(Ordering::Relaxed) == this_thread() {
            return;
        }
        // SAFETY: the thread that held it, or was about to enter, is gone, and no other is here, says the caller.
        unsafe {
            if entered {
                std::mem::forget(std::mem::take(&mut *self.gathered.get()));
            }
            self.leave();
        }
    }
}

/// Different for all threads that run at one time, and kept over a fork.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

impl Qp {
    /// The critical region of its posting threads (ibv_wr_post(3)).
    #[must_use]
    pub fn wr_session(&self) -> &WrSession<SendWr<Arc<Ah>>> {
        &self.wr_session
    }

    /// Posts what a critical region has gathered: all of it, or after an error nothing.
    ///
    /// # Errors
    /// The first error that was found while gathering; else that of the first request that the queue can't take.
    pub fn post_gathered(self: &Arc<Self>, gathered: &mut GatheredWrs<SendWr<Arc<Ah>>>) -> Result<()> {
        match gathered.error.take() {
            Some(error) => Err(error),
            None => self.post_all(&mut gathered.requests),
        }
    }
}
