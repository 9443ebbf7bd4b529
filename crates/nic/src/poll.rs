//! Polling as programs do it: a thread that polls for completions makes progress.

use crate::adapter;
use ferroce_parts::Poller;
use ferroce_queues::{CntrValue, CompCntr, Cq, Stamp};
use ferroce_types::{Completion, Error, Result};

/// ibv_poll_cq(3) and its extended form.
pub trait Poll {
    /// Takes up to `max` completions, oldest first, and gives them to `f`. Makes progress when there is none, and every now
    /// and then when there are. A queue pair may be locked when `f` is called, so `f` must not block or
    /// call this library.
    ///
    /// # Errors
    /// [`Error::Dead`] when the queue has overrun and all that was saved has been taken.
    fn poll(&self, max: usize, f: impl FnMut(&Completion)) -> Result<usize>;

    /// As [`Poll::poll`], with what the queue has recorded: zeros if it wasn't asked to.
    ///
    /// # Errors
    /// As [`Poll::poll`].
    fn poll_stamped(&self, max: usize, f: impl FnMut(&Completion, Stamp)) -> Result<usize>;
}

impl Poll for Cq {
    #[inline(always)]
    fn poll(&self, max: usize, mut f: impl FnMut(&Completion)) -> Result<usize> {
        self.poll_stamped(max, |completion, _| f(completion))
    }

    #[inline(always)]
    fn poll_stamped(&self, max: usize, mut f: impl FnMut(&Completion, Stamp)) -> Result<usize> {
        if max == 0 {
            return Ok(0);
        }
        let n = self.take(max, &mut f);
        if n == 0 {
            return poll_empty(self, max, &mut f);
        }
        adapter::progress_of_poller(false, self.has_sleeper(), |_, _| false);
        Ok(n)
    }
}

/// As [`Poll::poll_stamped`], of a queue that was empty.
#[inline]
fn poll_empty(cq: &Cq, max: usize, f: &mut impl FnMut(&Completion, Stamp)) -> Result<usize> {
    let mut n = 0;
    adapter::progress_of_poller(true, cq.has_sleeper(), |adapter, first| {
        // Nothing is recorded with what goes past the queue.
        let mut give = |completion: &Completion| f(completion, Stamp::default());
        let mut poller = Poller::new(cq, max, &mut give);
        let found = adapter.read_rings(first, Some(&mut poller));
        n = max - poller.room();
        found
    });
    if n < max {
        n += cq.take(max - n, &mut *f);
        if n == 0 && cq.has_overrun() {
            return Err(Error::Dead("the completion queue has overrun".into()));
        }
    }
    Ok(n)
}

/// A number of a completion counter (ibv_read_comp_cntr(3), ibv_read_err_comp_cntr(3)). A thread that waits for completions reads it
/// again and again, so reading makes progress, as polling does.
#[must_use]
pub fn read_comp_cntr(counter: &CompCntr, which: CntrValue) -> u64 {
    adapter::progress_of_poller(true, false, |adapter, first| adapter.read_rings(first, None));
    counter.value(which)
}
