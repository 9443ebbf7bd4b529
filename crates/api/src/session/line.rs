//! Waiters in the order in which they came.

use ferroce_buffers::{Buffer, Parts};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::task::Waker;

/// What is woken and dropped once no lock is held: both may run code of the program, which may use the connection.
#[derive(Debug, Default)]
pub(crate) struct Later {
    /// There is something. Mostly there is nothing.
    has_any: bool,
    wakes: SmallVec<[Waker; 4]>,
    dropped: SmallVec<[Waker; 2]>,
    parts: SmallVec<[Parts; 1]>,
    buffer: Option<Buffer>,
}

impl Later {
    /// There is nothing.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        !self.has_any
    }

    pub(crate) fn wake(&mut self, waker: Waker) {
        self.has_any = true;
        self.wakes.push(waker);
    }

    pub(crate) fn drop_waker(&mut self, waker: Waker) {
        self.has_any = true;
        self.dropped.push(waker);
    }

    pub(crate) fn drop_parts(&mut self, parts: Parts) {
        self.has_any = true;
        self.parts.push(parts);
    }

    pub(crate) fn drop_buffer(&mut self, buffer: Buffer) {
        self.has_any = true;
        self.buffer = Some(buffer);
    }

    /// No lock is held any more.
    pub(crate) fn happen(self) {
        let Self { wakes, dropped, parts, buffer, .. } = self;
        wakes.into_iter().for_each(Waker::wake);
        drop((dropped, parts, buffer));
    }
}

/// The place of a waiter in a [`Line`].
#[derive(Debug, Default)]
pub(crate) struct Ticket(Option<u64>);

impl Ticket {
    pub(crate) const fn is_waiting(&self) -> bool {
        self.0.is_some()
    }
}

/// Those that wait for something of which there are a number, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Line {
    waiting: VecDeque<(u64, Waker)>,
    next: u64,
}

impl Line {
    /// Nothing waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether one that hasn't waited gets something: there is more than those who wait get.
    #[inline]
    pub(crate) fn has_more(&self, available: usize) -> bool {
        self.waiting.len() < available
    }

    /// Whether it is the turn of this waiter. If it is, it waits no longer; otherwise its waker is kept.
    pub(crate) fn poll(
        &mut self,
        ticket: &mut Ticket,
        available: usize,
        waker: &Waker,
        later: &mut Later,
    ) -> bool {
        let Some(number) = ticket.0 else {
            if self.has_more(available) {
                return true;
            }
            ticket.0 = Some(self.next);
            self.waiting.push_back((self.next, waker.clone()));
            self.next += 1;
            return false;
        };
        let place = self.waiting.iter().position(|(waiting, _)| *waiting == number);
        match place {
            Some(place) if place < available => {
                self.leave(ticket, later);
                true
            }
            Some(place) => {
                if let Some((_, kept)) =
                    self.waiting.get_mut(place).filter(|(_, kept)| !kept.will_wake(waker))
                {
                    later.drop_waker(std::mem::replace(kept, waker.clone()));
                }
                false
            }
            None => available > 0,
        }
    }

    /// The waiter doesn't wait any longer. Those behind it may have their turn now: [`Line::wake`] follows.
    pub(crate) fn leave(&mut self, ticket: &mut Ticket, later: &mut Later) {
        let Some(number) = ticket.0.take() else { return };
        let place = self.waiting.iter().position(|(waiting, _)| *waiting == number);
        if let Some((_, waker)) = place.and_then(|place| self.waiting.remove(place)) {
            later.drop_waker(waker);
        }
    }

    /// Wakes those whose turn it is.
    pub(crate) fn wake(&self, available: usize, later: &mut Later) {
        self.waiting.iter().take(available).for_each(|(_, waker)| later.wake(waker.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What can happen to a line and three waiters: something becomes available, a waiter is polled if it was woken or is new,
    /// a waiter leaves.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Gain,
        Poll(usize),
        Leave(usize),
    }

    const STEPS: [Step; 7] = [
        Step::Gain,
        Step::Poll(0),
        Step::Poll(1),
        Step::Poll(2),
        Step::Leave(0),
        Step::Leave(1),
        Step::Leave(2),
    ];

    /// Runs all sequences of so many steps. After each, whenever something is available and someone waits, the waiters whose turn it is
    /// were woken since their last poll: otherwise a wakeup is lost.
    fn explore(history: &mut Vec<Step>, left: usize) {
        check(history);
        if left == 0 {
            return;
        }
        for step in STEPS {
            history.push(step);
            explore(history, left - 1);
            history.pop();
        }
    }

    fn check(history: &[Step]) {
        let counts = [(); 3].map(|()| Arc::new(Count::default()));
        let wakers = counts.clone().map(Waker::from);
        let mut tickets = [(); 3].map(|()| Ticket::default());
        let (mut line, mut available, mut at_poll) = (Line::default(), 0_usize, [None; 3]);
        for step in history {
            let mut later = Later::default();
            match *step {
                Step::Gain => {
                    available += 1;
                    line.wake(available, &mut later);
                }
                Step::Poll(waiter) => {
                    let count = counts[waiter].0.load(Ordering::Relaxed);
                    if at_poll[waiter].is_some_and(|at_poll| at_poll == count) {
                        continue; // An executor polls what was woken.
                    }
                    at_poll[waiter] = Some(count);
                    if line.poll(&mut tickets[waiter], available, &wakers[waiter], &mut later) {
                        available -= 1;
                        at_poll[waiter] = None;
                    }
                }
                Step::Leave(waiter) => {
                    line.leave(&mut tickets[waiter], &mut later);
                    at_poll[waiter] = None;
                    line.wake(available, &mut later);
                }
            }
            later.happen();
            for (number, _) in line.waiting.iter().take(available) {
                let waiter = tickets.iter().position(|ticket| ticket.0 == Some(*number)).unwrap();
                let count = counts[waiter].0.load(Ordering::Relaxed);
                assert!(
                    at_poll[waiter].is_some_and(|at_poll| at_poll != count),
                    "a lost wakeup: {history:?}"
                );
            }
        }
    }

    #[test]
    fn no_wakeup_of_a_line_is_lost() {
        explore(&mut Vec::new(), if cfg!(miri) { 3 } else { 6 });
    }

    #[test]
    fn a_line_serves_the_oldest_first() {
        let waker = Waker::noop();
        let (mut line, mut first, mut second) = (Line::default(), Ticket::default(), Ticket::default());
        let poll = |line: &mut Line, ticket: &mut Ticket, available| {
            line.poll(ticket, available, waker, &mut Later::default())
        };
        assert!(!poll(&mut line, &mut first, 0) && !poll(&mut line, &mut second, 0));
        assert!(!poll(&mut line, &mut second, 1) && !line.has_more(2));
        assert!(poll(&mut line, &mut first, 1) && poll(&mut line, &mut second, 1));
    }
}
