//! Outstanding requests, as the program observes them.

use crate::session::outcome::Outcome;
use crate::session::shared::Shared;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A request that was posted: a future that ends with it.
///
/// It only observes. Dropping or forgetting it cancels nothing, and the request's memory isn't free before the request has ended.
/// A program that doesn't want to wait for that aborts the [connection](crate::session::Connection::abort).
#[must_use = "the request is outstanding; waiting for its end returns its memory"]
pub struct Op<O> {
    shared: Arc<Shared>,
    slot: u32,
    /// The slot isn't this one's any more.
    over: bool,
    operation: PhantomData<fn() -> O>,
}

impl<O: Outcome> Op<O> {
    pub(crate) fn new(shared: &Arc<Shared>, slot: u32) -> Self {
        Self { shared: shared.clone(), slot, over: false, operation: PhantomData }
    }

    #[inline]
    fn look(&mut self, context: Option<&Context<'_>>) -> Option<Result<O::Done, O::Lost>> {
        let ended = self.shared.look(self.slot, context.map(Context::waker), O::end)?;
        self.over = true;
        Some(ended)
    }

    /// Waits until the request has ended. With a [manual](crate::session::Driver::manual) driver this thread looks for completions meanwhile.
    ///
    /// # Errors
    /// The request has failed.
    pub fn wait(mut self) -> Result<O::Done, O::Lost> {
        let driver = self.shared.driver.clone();
        let ended = driver.wait_until(None, || self.look(None));
        ended.unwrap_or_else(|| unreachable!("a wait without a limit"))
    }

    /// Waits until the request has ended, at most for `limit`.
    ///
    /// # Errors
    /// It is still outstanding: this comes back.
    pub fn wait_for(mut self, limit: Duration) -> Result<Result<O::Done, O::Lost>, Self> {
        let driver = self.shared.driver.clone();
        let ended = driver.wait_until(Some(limit), || self.look(None));
        ended.ok_or(self)
    }

    /// Whether the request has ended. This doesn't look for completions.
    ///
    /// # Errors
    /// It is still outstanding: this comes back.
    pub fn try_done(mut self) -> Result<Result<O::Done, O::Lost>, Self> {
        match self.look(None) {
            Some(ended) => Ok(ended),
            None => Err(self),
        }
    }
}

impl<O: Outcome> Future for Op<O> {
    type Output = Result<O::Done, O::Lost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.over, "a request is polled after its end");
        self.look(Some(context)).map_or(Poll::Pending, Poll::Ready)
    }
}

impl<O> Drop for Op<O> {
    fn drop(&mut self) {
        if !self.over {
            self.shared.abandon(self.slot);
        }
    }
}

impl<O> fmt::Debug for Op<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").field("qp", &self.shared.qpn).field("slot", &self.slot).finish()
    }
}
