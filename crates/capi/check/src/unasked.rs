//! Finds a thread that waits for a completion which no request asks for: the program has posted only unsignaled requests, and polls or
//! sleeps. It may wait for something else, so a finding never ends the process.
//!
//! The finding is reported where all of this holds for [`PATIENCE`]: the thread's last post was an unsignaled request; since then it has
//! polled only one completion queue, or sleeps in `ibv_get_cq_event` for it alone; the queue is the request's; nothing that is posted
//! completes into it; none of the queue pair's requests has been signaled since RESET; and all have ended.

use super::quiet;
use super::watch::{CqWatch, QpWatch, queue_pairs};
use super::{CallTrace, PATIENCE, found};
use ferroce_abi::verbs::ibv_comp_channel;
use ferroce_explain::Finding;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Polls in vain between two looks at the clock.
const POLLS: u32 = 128;

/// The polls in vain of a thread, of one queue, for which nothing is due.
struct EmptyPolls {
    /// The queue's address.
    cq: Cell<usize>,
    polls: Cell<u32>,
    since: Cell<Option<Instant>>,
}

thread_local! {
    static RUN: EmptyPolls = const { EmptyPolls { cq: Cell::new(0), polls: Cell::new(0), since: Cell::new(None) } };
}

impl CqWatch {
    /// This thread has polled the queue, and got so many completions.
    #[inline]
    pub fn note_poll(&self, got: usize) {
        if quiet::was_ever_posted() {
            self.note_suspicious_poll(got);
        }
    }

    fn note_suspicious_poll(&self, got: usize) {
        let this = std::ptr::from_ref(self) as usize;
        RUN.with(|run| {
            if got > 0 || run.cq.get() != this || self.has_due() {
                run.cq.set(this);
                run.polls.set(0);
            } else {
                self.polled_in_vain(run);
            }
        });
    }

    #[cold]
    fn polled_in_vain(&self, run: &EmptyPolls) {
        let polls = run.polls.get();
        run.polls.set(polls + 1);
        if polls == 0 {
            run.since.set(Some(Instant::now()));
        } else if polls.is_multiple_of(POLLS)
            && run.since.get().is_some_and(|since| since.elapsed() >= PATIENCE)
        {
            run.polls.set(0);
            tell(|qp| std::ptr::eq(&**qp.send_cq(), self));
        }
    }
}

/// Reports this thread's wait for a queue pair of which `awaits` is true.
fn tell(awaits: impl Fn(&QpWatch) -> bool) {
    let qps: Vec<Arc<QpWatch>> = queue_pairs().into_iter().filter(|qp| awaits(qp)).collect();
    let waited_for = |qp: &&Arc<QpWatch>| {
        qp.unasked().is_some_and(|unasked| unasked.is_old_and_own())
            && !qp.send_cq().may_get_more()
            && qp.has_nothing_under_way()
    };
    if let Some((qp, count)) = qps.iter().find(waited_for).and_then(|qp| Some((qp, qp.tells_unasked()?))) {
        let known = format!("{count} requests have ended, none of them signaled");
        found(&Finding { number: 110, about: qp.name(), known, place: CallTrace::here().place() });
    }
}

/// This thread is about to sleep in ibv_get_cq_event until the channel has an event, and has slept there for `slept` already. Returns how
/// long it may sleep until it calls this again; `None`: without a limit.
pub fn before_sleep(channel: *const ibv_comp_channel, queues: usize, slept: Duration) -> Option<Duration> {
    // What other queues there are would have to be looked at too.
    let is_of = |qp: &QpWatch| queues == 1 && qp.send_cq().has_channel(channel);
    let waits_for = |qp: &Arc<QpWatch>| is_of(qp) && qp.unasked().is_some_and(|unasked| unasked.is_own());
    if !quiet::was_ever_posted() || !queue_pairs().iter().any(waits_for) {
        return None;
    }
    if slept >= PATIENCE {
        tell(is_of);
    }
    Some(PATIENCE)
}
