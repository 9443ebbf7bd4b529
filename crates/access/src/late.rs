//! Which of the program's memory can come late: ranges that registrations have found to be of files, or whose mappings may change.

use crate::seen;
use ferroce_os::sync::{RwLock, class};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How the pages of a range come that aren't there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coming {
    /// Perhaps from a disk.
    Late,
    /// Likewise; mincore(2) returns all of them as present.
    Unshown,
    /// What is mapped there is found out at each access.
    OnDemand,
}

const KINDS: usize = 3;

/// Ranges that a registration has noted. They are noted until this is dropped.
#[derive(Default, Debug)]
pub struct NotedRanges(Vec<(u64, u64, Coming)>);

impl NotedRanges {
    pub(crate) fn add(&mut self, from: u64, to: u64, coming: Coming) {
        if from < to {
            change(from, to, coming, 1);
            self.0.push((from, to, coming));
        }
    }

    /// A region that is paged on demand: what is mapped there may change.
    pub fn add_on_demand(&mut self, addr: u64, len: u64) {
        seen::note_registration(addr, len);
        self.add(addr, addr.saturating_add(len), Coming::OnDemand);
    }
}

impl Drop for NotedRanges {
    fn drop(&mut self) {
        for &(from, to, coming) in &self.0 {
            change(from, to, coming, -1);
        }
    }
}

fn change(from: u64, to: u64, coming: Coming, by: i32) {
    let mut noted = NOTED.write();
    noted.change(from, to, coming, by);
    SEGMENTS.store(noted.0.len(), Ordering::Relaxed);
}

/// What is noted of a range, or of a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct NotedKinds {
    pub(crate) late: bool,
    /// mincore(2) doesn't show which pages are there.
    pub(crate) unshown: bool,
    pub(crate) on_demand: bool,
}

impl NotedKinds {
    pub(crate) const fn any(self) -> bool {
        self.late || self.on_demand
    }
}

/// What is noted of any part of a range.
pub(crate) fn noted(from: u64, to: u64) -> NotedKinds {
    if SEGMENTS.load(Ordering::Relaxed) == 0 {
        return NotedKinds::default();
    }
    NOTED.read().of(from, to)
}

static NOTED: RwLock<class::NotedRanges, Segments> = RwLock::new(Segments(BTreeMap::new()));
/// How many segments there are.
static SEGMENTS: AtomicUsize = AtomicUsize::new(0);

/// Ranges without an overlap, by their beginnings.
#[derive(Debug)]
struct Segments(BTreeMap<u64, Segment>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Segment {
    end: u64,
    /// How many noted ranges contain it, of each kind.
    counts: [u32; KINDS],
}

impl Segments {
    fn change(&mut self, from: u64, to: u64, coming: Coming, by: i32) {
        self.split(from);
        self.split(to);
        let mut at = from;
        while at < to {
            let next = self.0.range_mut(at..to).next().map(|(&begin, segment)| (begin, segment));
            at = match next {
                Some((begin, segment)) if begin == at => {
                    let count = &mut segment.counts[coming as usize];
                    *count = count.saturating_add_signed(by);
                    segment.end
                }
                next => {
                    let end = next.map_or(to, |(begin, _)| begin);
                    let mut counts = [0; KINDS];
                    counts[coming as usize] = u32::from(by > 0);
                    self.0.insert(at, Segment { end, counts });
                    end
                }
            };
        }
        self.tidy(from, to);
    }

    /// Has a segment begin at `at`, if one contains it.
    fn split(&mut self, at: u64) {
        if let Some((_, segment)) = self.0.range_mut(..at).next_back()
            && segment.end > at
        {
            let rest = *segment;
            segment.end = at;
            self.0.insert(at, rest);
        }
    }

    /// Joins segments from `from` to `to` with their neighbours where they are alike, and removes those that nothing contains.
    fn tidy(&mut self, from: u64, to: u64) {
        let first = self.0.range(..from).next_back().map_or(from, |(&begin, _)| begin);
        let begins: Vec<u64> = self.0.range(first..=to).map(|(&begin, _)| begin).collect();
        let mut last: Option<u64> = None;
        for begin in begins {
            let segment = self.0[&begin];
            if segment.counts == [0; KINDS] {
                self.0.remove(&begin);
                continue;
            }
            match last.and_then(|last| self.0.get_mut(&last)) {
                Some(before) if before.end == begin && before.counts == segment.counts => {
                    before.end = segment.end;
                    self.0.remove(&begin);
                }
                _ => last = Some(begin),
            }
        }
    }

    fn of(&self, from: u64, to: u64) -> NotedKinds {
        let has = |segment: &Segment, coming: Coming| segment.counts[coming as usize] > 0;
        let from = self
            .0
            .range(..=from)
            .next_back()
            .filter(|(_, segment)| segment.end > from)
            .map_or(from, |(&begin, _)| begin);
        self.0.range(from..to).fold(NotedKinds::default(), |noted, (_, segment)| NotedKinds {
            late: noted.late || has(segment, Coming::Late) || has(segment, Coming::Unshown),
            unshown: noted.unshown || has(segment, Coming::Unshown),
            on_demand: noted.on_demand || has(segment, Coming::OnDemand),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: NotedKinds = NotedKinds { late: true, unshown: false, on_demand: false };
    const NOTHING: NotedKinds = NotedKinds { late: false, ..LATE };

    #[test]
    fn a_range_is_noted_as_often_as_it_was_added() {
        let mut segments = Segments(BTreeMap::new());
        let ranges = [(10, 20), (15, 30), (10, 20), (40, 50), (0, u64::MAX), (30, 40)];
        for (added, &(from, to)) in ranges.iter().enumerate() {
            segments.change(from, to, Coming::Late, 1);
            for at in 0..60 {
                let is_late = ranges[..=added].iter().any(|&(from, to)| from <= at && at < to);
                assert_eq!(segments.of(at, at + 1).late, is_late, "{at} after {added}");
            }
        }
        assert_eq!((segments.of(0, 5), segments.of(u64::MAX - 1, u64::MAX)), (LATE, LATE));
        for removed in 0..ranges.len() {
            segments.change(ranges[removed].0, ranges[removed].1, Coming::Late, -1);
            for at in 0..60 {
                let is_late = ranges[removed + 1..].iter().any(|&(from, to)| from <= at && at < to);
                assert_eq!(segments.of(at, at + 1).late, is_late, "{at} without {removed}");
            }
        }
        assert!(segments.0.is_empty());
    }

    #[test]
    fn neighbours_that_are_alike_are_one_segment() {
        let mut segments = Segments(BTreeMap::new());
        for at in (0..1000).step_by(10) {
            segments.change(at, at + 10, Coming::Late, 1);
        }
        assert_eq!(segments.0.len(), 1);
        segments.change(300, 400, Coming::OnDemand, 1);
        assert_eq!(segments.0.len(), 3);
        assert_eq!(segments.of(290, 310), NotedKinds { on_demand: true, ..LATE });
        assert_eq!(
            (segments.of(290, 300), segments.of(400, 2000), segments.of(1000, 2000)),
            (LATE, LATE, NOTHING)
        );
        segments.change(300, 400, Coming::OnDemand, -1);
        assert_eq!(segments.0.len(), 1);
    }

    #[test]
    fn what_is_dropped_is_not_noted_any_more() {
        // Addresses that no other test has.
        const FROM: u64 = 1 << 60;
        let mut ranges = NotedRanges::default();
        for number in 0..200 {
            ranges.add(FROM + number * 10, FROM + number * 10 + 5, Coming::Late);
        }
        ranges.add_on_demand(FROM + 5, 1);
        assert_eq!(noted(FROM, FROM + 5), LATE);
        assert_eq!(noted(FROM + 5, FROM + 10), NotedKinds { on_demand: true, ..NOTHING });
        ranges.add(FROM + 8, FROM + 9, Coming::Unshown);
        assert_eq!(noted(FROM + 8, FROM + 9), NotedKinds { unshown: true, ..LATE });
        assert_eq!(noted(FROM + 1996, FROM + 5000), NOTHING);
        drop(ranges);
        assert_eq!(noted(FROM, FROM + 5000), NOTHING);
    }
}
