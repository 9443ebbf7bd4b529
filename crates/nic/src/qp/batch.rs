//! Send requests that are gathered first and posted together: ibv_wr_post(3).

use super::Qp;
use crate::ah::Ah;
use crate::engine;
use crate::error::{Error, Result, invalid};
use ferroce_proto::SendWr;
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// What a critical region has gathered.
#[derive(Default)]
pub struct Gathered {
    requests: Vec<SendWr<Arc<Ah>>>,
    error: Option<Error>,
}

impl Gathered {
    /// Begins a request, whose data and address follow.
    pub fn begin(&mut self, request: SendWr<Arc<Ah>>) {
        self.requests.push(request);
    }

    /// The request that was begun last.
    ///
    /// # Errors
    /// [`Error::Invalid`] when none was.
    pub fn last(&mut self) -> Result<&mut SendWr<Arc<Ah>>> {
        match self.requests.last_mut() {
            Some(request) => Ok(request),
            None => invalid!("nothing has been begun that this could belong to"),
        }
    }

    /// Something is wrong: nothing of the region will be posted. The first error is the one that is told.
    pub fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }
}

/// The critical region of a QP's posting threads. It is held while the program's own code runs, so nothing of the adapter
/// ever waits for it: not the transport's work, not a fork.
pub(super) struct Batch {
    lock: RawMutex,
    /// Somebody is in the region.
    entered: AtomicBool,
    /// Who, and in which process: the threads of a parent aren't there in its child.
    thread: AtomicUsize,
    generation: AtomicU32,
    gathered: UnsafeCell<Gathered>,
}

// SAFETY: only whoever is in the region touches `gathered` (see `Qp::gather`), and what it holds may go between threads.
unsafe impl Sync for Batch {}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            lock: RawMutex::INIT,
            entered: AtomicBool::new(false),
            thread: AtomicUsize::new(0),
            generation: AtomicU32::new(0),
            gathered: UnsafeCell::default(),
        }
    }

    fn enter(&self) {
        self.lock.lock();
        self.thread.store(this_thread(), Ordering::Relaxed);
        self.generation.store(engine::generation(), Ordering::Relaxed);
        self.entered.store(true, Ordering::Relaxed);
    }

    /// # Safety
    /// The caller is in the region.
    unsafe fn leave(&self) {
        self.entered.store(false, Ordering::Relaxed);
        // SAFETY: locked by `enter`.
        unsafe { self.lock.unlock() };
    }

    /// After a fork: frees the region from a thread that this process doesn't have. What that thread was writing may be
    /// half written, so it is left where it is.
    ///
    /// # Safety
    /// No other thread has begun to use the QP in this process.
    pub(super) unsafe fn after_fork(&self) {
        let now = engine::generation();
        if !self.entered.load(Ordering::Relaxed) || self.generation.swap(now, Ordering::Relaxed) == now {
            return;
        }
        if self.thread.load(Ordering::Relaxed) != this_thread() {
            // SAFETY: the thread that held it is gone, and no other is here, says the caller.
            unsafe {
                std::mem::forget(std::mem::take(&mut *self.gathered.get()));
                self.leave();
            }
        }
    }
}

/// Different for all threads that run at one time, and kept over a fork.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

impl Qp {
    /// Enters the critical region, in which no other thread can be (ibv_wr_start(3)).
    pub fn start_batch(&self) {
        self.batch.enter();
    }

    /// Changes what has been gathered.
    ///
    /// # Errors
    /// [`Error::Invalid`] when nobody is in the critical region.
    ///
    /// # Safety
    /// If anybody is in the region, the caller is.
    pub unsafe fn gather<R>(&self, f: impl FnOnce(&mut Gathered) -> R) -> Result<R> {
        if !self.batch.entered.load(Ordering::Relaxed) {
            return invalid!("outside of ibv_wr_start and ibv_wr_complete");
        }
        // SAFETY: the caller is in the region, alone.
        Ok(f(unsafe { &mut *self.batch.gathered.get() }))
    }

    /// Leaves the region and posts everything that was gathered, or, after an error, nothing (ibv_wr_complete(3)).
    ///
    /// # Errors
    /// The first error that was found while gathering; else that of the first request that the queue can't take.
    ///
    /// # Safety
    /// As [`Qp::gather`].
    pub unsafe fn complete_batch(self: &Arc<Self>) -> Result<()> {
        // SAFETY: the caller's promise; this thread has entered the region if anybody has.
        unsafe {
            let posted = self.gather(|gathered| match gathered.error.take() {
                Some(error) => Err(error),
                None => self.post_all(&mut gathered.requests),
            })?;
            self.gather(|gathered| gathered.requests.clear())?;
            self.batch.leave();
            posted
        }
    }

    /// Leaves the region and forgets what was gathered (ibv_wr_abort(3)).
    ///
    /// # Errors
    /// As [`Qp::gather`].
    ///
    /// # Safety
    /// As [`Qp::gather`].
    pub unsafe fn abort_batch(&self) -> Result<()> {
        // SAFETY: as in `complete_batch`.
        unsafe {
            self.gather(|gathered| {
                gathered.requests.clear();
                gathered.error = None;
            })?;
            self.batch.leave();
        }
        Ok(())
    }
}
