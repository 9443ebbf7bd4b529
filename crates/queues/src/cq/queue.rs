//! The contents of a completion queue: completions, what is recorded with them, and when they raise an event.

use ferroce_proto::TagInfo;
use ferroce_ring::EntryRing;
use ferroce_types::{Completion, WcOpcode, WcStatus};
use std::collections::VecDeque;
use std::time::Duration;

/// What an Ethernet packet was received with, or a message that has matched a tag. All zeros for other completions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WcTags {
    /// The customer VLAN tag that was stripped.
    pub cvlan: u16,
    /// The tag of the flow rule that steered the packet.
    pub flow_tag: u32,
    /// The fields of the message's tag-matching header.
    pub tm: TagInfo,
}

/// What a queue that was asked to records with each completion: time and tags.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stamp {
    /// When it was published, on the adapter's clock ([`ferroce_os::clock`]) in nanoseconds; later entries have no smaller one.
    pub clock: u64,
    /// The same moment on the wall clock: nanoseconds since 1970.
    pub wall_clock: u64,
    /// Of a received Ethernet packet or a message that has matched a tag.
    pub tags: WcTags,
}

/// When the next completion raises an event; the later one is raised by more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Armed {
    No,
    Solicited,
    Any,
}

/// How many completions one event stands for (ibv_modify_cq(3)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moderation {
    pub(super) count: u16,
    pub(super) period: Duration,
}

/// What a completion that was asked for does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rise {
    /// It raises the event.
    Now,
    /// It is the first that waits for others: the event comes when this many nanoseconds on the clock are reached.
    At(u64),
    /// It waits with others.
    Later,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) entries: EntryRing<Completion>,
    /// One for each entry, in queues that stamp.
    pub(super) stamps: VecDeque<Stamp>,
    pub(super) capacity: usize,
    pub(super) armed: Armed,
    /// The last event was raised by what was there when it was asked for, and it was asked for this: the event lapses if
    /// all of that is polled before it is read.
    pub(super) lapsable: Option<Armed>,
    /// How many of the entries, from the oldest on, came before or with the last event, and before the last poll.
    pub(super) announced: usize,
    pub(super) moderation: Option<Moderation>,
    /// Completions that wait for the event they have in common, and when it comes at the latest.
    pub(super) held: u32,
    pub(super) due: u64,
}

impl Queue {
    /// A queue in `entries`, which has room for as many.
    pub(super) fn new(entries: EntryRing<Completion>, capacity: u32) -> Self {
        Self {
            entries,
            stamps: VecDeque::new(),
            capacity: capacity as usize,
            armed: Armed::No,
            lapsable: None,
            announced: 0,
            moderation: None,
            held: 0,
            due: u64::MAX,
        }
    }

    /// Whether an event was asked for that this completion raises.
    pub(super) fn is_awaited(&self, completion: &Completion) -> bool {
        match self.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => completion.solicited || completion.status != WcStatus::Success,
        }
    }

    /// When the event for `n` more completions that were asked for comes.
    pub(super) fn rise(&mut self, n: usize, now: impl FnOnce() -> u64) -> Rise {
        let Some(Moderation { count, period }) = self.moderation else { return Rise::Now };
        let first = self.held == 0;
        self.held = self.held.saturating_add(n as u32);
        let now = now();
        if self.held >= u32::from(count) || (!first && now >= self.due) {
            return Rise::Now;
        }
        if first {
            self.due = now + period.as_nanos() as u64;
            return Rise::At(self.due);
        }
        Rise::Later
    }

    /// The event is raised: the next has to be asked for.
    pub(super) fn disarm(&mut self) {
        self.armed = Armed::No;
        self.lapsable = None;
        self.announced = self.entries.len();
        self.held = 0;
        self.due = u64::MAX;
    }

    /// Makes room for one more by dropping the oldest.
    pub(super) fn give_up_oldest(&mut self) {
        self.entries.skip_front();
        self.stamps.pop_front();
        self.announced = self.announced.saturating_sub(1);
    }

    /// Drops the completions of a QP, except those of tag-matching queues: they report which tags are gone.
    pub(super) fn forget_qp(&mut self, qp_num: u32) {
        let stays = |completion: &Completion| {
            completion.qp_num != qp_num || matches!(completion.opcode, WcOpcode::TmRecv | WcOpcode::TmNoTag)
        };
        self.announced =
            self.entries.iter_from(0).take(self.announced).filter(|completion| stays(completion)).count();
        let mut entries = self.entries.iter_from(0);
        self.stamps.retain(|_| entries.next().is_none_or(stays));
        drop(entries);
        self.entries.retain(stays);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moderated(count: u16, period: u64) -> Queue {
        let mut queue = Queue::new(EntryRing::default(), 16);
        queue.moderation = Some(Moderation { count, period: Duration::from_nanos(period) });
        queue
    }

    #[test]
    fn without_moderation_each_completion_raises_its_event() {
        assert_eq!(Queue::new(EntryRing::default(), 16).rise(1, || 0), Rise::Now);
    }

    #[test]
    fn an_event_comes_with_the_last_of_a_count_or_at_the_end_of_the_period() {
        let mut queue = moderated(3, 100);
        assert_eq!(queue.rise(1, || 1000), Rise::At(1100));
        assert_eq!(queue.rise(1, || 1050), Rise::Later);
        assert_eq!(queue.rise(1, || 1060), Rise::Now);
        queue.disarm();
        assert_eq!(queue.rise(1, || 2000), Rise::At(2100));
        assert_eq!(queue.rise(1, || 2100), Rise::Now);
    }

    #[test]
    fn what_was_there_before_counts() {
        assert_eq!(moderated(3, 100).rise(2, || 0), Rise::At(100));
        assert_eq!(moderated(3, 100).rise(3, || 0), Rise::Now);
    }
}
