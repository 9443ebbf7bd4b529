//! MADs for other processes of the host that have too much to read just now.
//!
//! The queue of a UNIX socket has room for ten messages (net.unix.max_dgram_qlen). A peer that isn't answered repeats a request after
//! seconds, so what finds no room is kept for a while and tried again. The destination is the process's name that had no room, not a
//! field of the MAD: a sender can write many ports, addresses and communication IDs for one process. A process that takes nothing is tried
//! less and less often.

use ferroce_os::sync::{Mutex, class};
use ferroce_types::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// MADs in one message between processes.
const TOGETHER: usize = 128;
/// Between two attempts at a destination that has taken the last one, and between two calls that have made [`ATTEMPTS`].
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// Between two attempts at a destination that takes nothing; each pause is twice the one before.
const LONGEST_PAUSE: Duration = Duration::from_millis(32);
/// Messages that one call sends.
const ATTEMPTS: usize = 32;
/// How long a MAD is kept: a process that is stopped gets it when it is repeated.
const PATIENCE: Duration = Duration::from_secs(1);
/// MADs that are kept. Of the longest queue the oldest is lost then, as on a wire.
const MOST_KEPT: usize = 1 << 14;
/// Destinations. Another one takes the place of that which has waited longest, whose MADs are lost.
const MOST_DESTINATIONS: usize = 256;

/// What has become of an attempt to send MADs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attempt {
    /// The destination has them.
    Sent,
    /// The destination has too much to read.
    Busy,
    /// There is no such destination any more.
    Gone,
}

/// A MAD that is kept.
pub(super) struct Kept<M> {
    /// The MAD.
    pub(super) mad: M,
    /// When it is given up.
    pub(super) until: Instant,
}

/// MADs for one destination, oldest first.
struct DestinationQueue<D, M> {
    to: D,
    mads: VecDeque<Kept<M>>,
    pause: Duration,
}

/// Time of the next attempt at a destination, and a number that is unique among destinations of one time.
type Turn = (Instant, u64);

struct Queues<D, M> {
    turns: BTreeMap<Turn, DestinationQueue<D, M>>,
    /// The turn of each destination.
    turn_of: BTreeMap<D, Turn>,
    /// MADs in all queues.
    kept: usize,
    next_number: u64,
}

impl<D, M> Default for Queues<D, M> {
    fn default() -> Self {
        Self { turns: BTreeMap::new(), turn_of: BTreeMap::new(), kept: 0, next_number: 0 }
    }
}

impl<D: Copy + Ord, M> Queues<D, M> {
    fn push(&mut self, to: D, kept: Kept<M>, now: Instant) {
        if let Some(queue) = self.turn_of.get(&to).and_then(|turn| self.turns.get_mut(turn)) {
            queue.mads.push_back(kept);
        } else {
            if self.turns.len() >= MOST_DESTINATIONS {
                let oldest = |queue: &DestinationQueue<D, M>| queue.mads.front().map(|kept| kept.until);
                let turn = self.turns.iter().min_by_key(|(_, queue)| oldest(queue)).map(|(turn, _)| *turn);
                turn.and_then(|turn| self.remove(turn));
            }
            let queue = DestinationQueue { to, mads: VecDeque::from([kept]), pause: SHORTEST_PAUSE };
            self.insert(queue, now.after(SHORTEST_PAUSE));
        }
        self.kept += 1;
        while self.kept > MOST_KEPT
            && let Some(longest) = self.turns.values_mut().max_by_key(|queue| queue.mads.len())
        {
            longest.mads.pop_front();
            self.kept -= 1;
        }
    }

    /// Adds a queue that isn't empty. What has come for its destination meanwhile is younger.
    fn insert(&mut self, mut queue: DestinationQueue<D, M>, at: Instant) {
        if let Some(mut younger) = self.turn_of.get(&queue.to).and_then(|turn| self.turns.remove(turn)) {
            queue.mads.append(&mut younger.mads);
        }
        let turn = (at, self.next_number);
        self.next_number += 1;
        self.turn_of.insert(queue.to, turn);
        self.turns.insert(turn, queue);
    }

    fn remove(&mut self, turn: Turn) -> Option<DestinationQueue<D, M>> {
        let queue = self.turns.remove(&turn)?;
        self.turn_of.remove(&queue.to);
        self.kept -= queue.mads.len();
        Some(queue)
    }

    /// The queue whose turn has come.
    fn take_due(&mut self, now: Instant) -> Option<DestinationQueue<D, M>> {
        let (&turn, _) = self.turns.first_key_value().filter(|((at, _), _)| *at <= now)?;
        self.remove(turn)
    }

    fn put_back(&mut self, queue: DestinationQueue<D, M>, at: Instant) {
        self.kept += queue.mads.len();
        self.insert(queue, at);
    }
}

/// What is kept.
pub(super) struct PassOn<D, M> {
    queues: Mutex<class::GsiPassOn, Queues<D, M>>,
    /// When there is something to do; `u64::MAX`: there is nothing.
    due: AtomicU64,
}

impl<D, M> Default for PassOn<D, M> {
    fn default() -> Self {
        Self { queues: Mutex::default(), due: AtomicU64::new(u64::MAX) }
    }
}

impl<D: Copy + Ord, M> PassOn<D, M> {
    /// Keeps a MAD, until then if it was kept before. When [`PassOn::try_again`] has something to do, if that isn't known.
    pub(super) fn keep(&self, to: D, mad: M, until: Option<Instant>, now: Instant) -> Option<Instant> {
        let kept = Kept { mad, until: until.unwrap_or(now.after(PATIENCE)) };
        let mut queues = self.queues.lock();
        queues.push(to, kept, now);
        let before = self.next();
        let next = self.note_next(&queues, Instant(0))?;
        (next.0 < before).then_some(next)
    }

    /// When there is something to do; `u64::MAX` for never.
    pub(super) fn next(&self) -> u64 {
        self.due.load(Ordering::Acquire)
    }

    fn note_next(&self, queues: &Queues<D, M>, earliest: Instant) -> Option<Instant> {
        let next = queues.turns.first_key_value().map(|(&(at, _), _)| at.max(earliest));
        self.due.store(next.map_or(u64::MAX, |next| next.0), Ordering::Release);
        next
    }

    /// Tries again what is due, some of it: the MADs of each destination in turn, as many as fit a message. `send` is called without a
    /// lock. MADs whose destination is gone are handed to `gone`. When to call this again.
    pub(super) fn try_again(
        &self,
        now: Instant,
        mut send: impl FnMut(&D, &[&M]) -> Attempt,
        mut gone: impl FnMut(Kept<M>),
    ) -> Option<Instant> {
        if self.next() > now.0 {
            return None;
        }
        for _ in 0..ATTEMPTS {
            let Some(mut queue) = self.queues.lock().take_due(now) else { break };
            // They are in the order in which they came.
            while queue.mads.front().is_some_and(|kept| kept.until <= now) {
                queue.mads.pop_front();
            }
            let mads: Vec<&M> = queue.mads.iter().take(TOGETHER).map(|kept| &kept.mad).collect();
            if mads.is_empty() {
                continue;
            }
            let count = mads.len();
            let attempt = send(&queue.to, &mads);
            let again = match attempt {
                Attempt::Busy => {
                    let at = now.after(queue.pause);
                    queue.pause = (2 * queue.pause).min(LONGEST_PAUSE);
                    at
                }
                Attempt::Sent => {
                    queue.mads.drain(..count);
                    queue.pause = SHORTEST_PAUSE;
                    now
                }
                Attempt::Gone => {
                    queue.mads.drain(..count).for_each(&mut gone);
                    now
                }
            };
            if !queue.mads.is_empty() {
                self.queues.lock().put_back(queue, again);
            }
        }
        // What is due still waits for the next call.
        self.note_next(&self.queues.lock(), now.after(SHORTEST_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// Destinations that take so many messages a millisecond; the other ones are stopped.
    struct Host {
        kept: PassOn<u32, u32>,
        takes: std::collections::HashMap<u32, usize>,
        room: RefCell<std::collections::HashMap<u32, usize>>,
        attempts: Cell<usize>,
        /// MADs that were looked at.
        touched: Cell<usize>,
        /// Destination and MAD.
        got: RefCell<Vec<(u32, u32)>>,
        now: Instant,
    }

    impl Host {
        fn new(takes: &[(u32, usize)]) -> Self {
            Self {
                kept: PassOn::default(),
                takes: takes.iter().copied().collect(),
                room: RefCell::default(),
                attempts: Cell::new(0),
                touched: Cell::new(0),
                got: RefCell::default(),
                now: Instant(1_000_000_000),
            }
        }

        fn keep(&self, to: u32, mad: u32) {
            self.kept.keep(to, mad, None, self.now);
        }

        /// The next milliseconds; the most attempts and MADs that one of them has taken.
        fn run(&mut self, ms: u32) -> (usize, usize) {
            let mut most = (0, 0);
            for _ in 0..ms {
                self.now = self.now.after(Duration::from_millis(1));
                *self.room.borrow_mut() = self.takes.clone();
                let before = (self.attempts.get(), self.touched.get());
                let send = |to: &u32, mads: &[&u32]| {
                    self.attempts.set(self.attempts.get() + 1);
                    self.touched.set(self.touched.get() + mads.len());
                    let mut room = self.room.borrow_mut();
                    let Some(room) = room.get_mut(to).filter(|room| **room > 0) else { return Attempt::Busy };
                    *room -= 1;
                    self.got.borrow_mut().extend(mads.iter().map(|mad| (*to, **mad)));
                    Attempt::Sent
                };
                self.kept.try_again(self.now, send, |_| panic!("all destinations exist"));
                most.0 = most.0.max(self.attempts.get() - before.0);
                most.1 = most.1.max(self.touched.get() - before.1);
            }
            most
        }

        fn count(&self) -> usize {
            self.kept.queues.lock().turns.values().map(|queue| queue.mads.len()).sum()
        }
    }

    #[test]
    fn a_stopped_process_costs_few_attempts_whatever_is_sent_to_it() {
        let mut host = Host::new(&[]);
        (0..1024).for_each(|mad| host.keep(7, mad));
        let (attempts, touched) = host.run(1000 + LONGEST_PAUSE.as_millis() as u32);
        assert!(attempts <= 1 && touched <= TOGETHER, "{attempts} attempts, {touched} MADs in a millisecond");
        assert!(host.attempts.get() <= 40, "{} attempts in a second", host.attempts.get());
        // They are given up in the end.
        assert_eq!((host.count(), host.kept.next()), (0, u64::MAX));
    }

    #[test]
    fn many_stopped_processes_cost_a_bounded_number_of_attempts_a_call() {
        let mut host = Host::new(&[]);
        for mad in 0..100_000 {
            host.keep(mad % 1000, mad);
        }
        let (attempts, touched) = host.run(1000);
        assert!(attempts <= ATTEMPTS && touched <= ATTEMPTS * TOGETHER, "{attempts}, {touched}");
    }

    #[test]
    fn stopped_processes_keep_no_other_waiting() {
        let mut host = Host::new(&[(0, 10)]);
        for stopped in 1..100 {
            (0..100).for_each(|mad| host.keep(stopped, mad));
        }
        (0..500).for_each(|mad| host.keep(0, mad));
        host.run(10);
        let expected: Vec<(u32, u32)> = (0..500).map(|mad| (0, mad)).collect();
        assert_eq!(*host.got.borrow(), expected, "in order, and all of them");
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_longest_queue_loses_its_oldest() {
        let host = Host::new(&[]);
        host.keep(1, 77);
        for mad in 0..2 * MOST_KEPT as u32 {
            host.keep(2, mad);
        }
        assert_eq!(host.count(), MOST_KEPT);
        let queues = host.kept.queues.lock();
        let mads = |to: u32| queues.turns.values().find(|queue| queue.to == to).map(|queue| &queue.mads);
        assert_eq!(mads(1).map(|mads| mads[0].mad), Some(77));
        assert_eq!(mads(2).and_then(|mads| mads.back()).map(|kept| kept.mad), Some(2 * MOST_KEPT as u32 - 1));
    }

    #[test]
    fn a_process_that_goes_on_gets_all_soon() {
        let mut host = Host::new(&[]);
        (0..2000).for_each(|mad| host.keep(7, mad));
        host.run(500);
        host.takes.insert(7, 10);
        host.run(LONGEST_PAUSE.as_millis() as u32 + 3);
        assert_eq!(host.got.borrow().len(), 2000);
    }

    #[test]
    fn mads_for_a_destination_that_is_gone_are_handed_back_with_the_rest_of_their_time() {
        let kept: PassOn<u32, u32> = PassOn::default();
        let now = Instant(1_000_000_000);
        for mad in 0..300 {
            kept.keep(7, mad, Some(now.after(Duration::from_millis(500))), now);
        }
        let mut gone = Vec::new();
        let later = now.after(Duration::from_millis(1));
        let next = kept.try_again(later, |_, _| Attempt::Gone, |kept| gone.push((kept.mad, kept.until)));
        assert_eq!((gone.len(), next), (300, None));
        assert!(gone.iter().all(|(_, until)| *until == now.after(Duration::from_millis(500))));
    }
}
