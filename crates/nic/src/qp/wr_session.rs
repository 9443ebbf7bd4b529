//! Send requests that are gathered first and posted together: ibv_wr_post(3).

use super::Qp;
use ferroce_os::fork::InChild;
use ferroce_os::sync::{CriticalRegion, class};
use ferroce_parts::Ah;
use ferroce_proto::SendWr;
use ferroce_types::{Error, Result, invalid};
use std::sync::Arc;

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

    /// A request is wrong: no request of the region will be posted. [`GatheredWrs::finish`] returns the first error.
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

/// The critical region of a QP's posting threads. It is held while the program's own code runs.
pub struct WrSession<R>(CriticalRegion<class::CriticalRegion, GatheredWrs<R>>);

impl<R> GatheredWrs<R> {
    /// The requests so far.
    pub fn requests(&self) -> impl Iterator<Item = &R> {
        self.requests.iter()
    }
}

impl<R> Default for WrSession<R> {
    fn default() -> Self {
        Self(CriticalRegion::new())
    }
}

impl<R> WrSession<R> {
    /// Enters the critical region, in which no other thread can be (ibv_wr_start(3)).
    pub fn enter(&self) {
        self.0.enter();
    }

    /// Changes what has been gathered.
    ///
    /// # Errors
    /// [`Error::Invalid`] when this thread isn't in the critical region.
    pub fn gather<T>(&self, f: impl FnOnce(&mut GatheredWrs<R>) -> T) -> Result<T> {
        match self.0.with(f) {
            Some(gathered) => Ok(gathered),
            None => invalid!("this thread isn't between ibv_wr_start and ibv_wr_complete"),
        }
    }

    /// Leaves the region with what `post` makes of what was gathered (ibv_wr_complete(3), ibv_wr_abort(3)).
    ///
    /// # Errors
    /// As [`WrSession::gather`], or that of `post`.
    pub fn complete(&self, post: impl FnOnce(&mut GatheredWrs<R>) -> Result<()>) -> Result<()> {
        let posted = self.gather(|gathered| {
            let posted = post(gathered);
            gathered.requests.clear();
            gathered.error = None;
            posted
        })?;
        self.0.leave();
        posted
    }

    /// In the child of a fork: frees the region from a thread that isn't here.
    pub fn after_fork(&self, child: &InChild) {
        self.0.after_fork(child);
    }
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
            None => self.post_all(&gathered.requests),
        }
    }
}
