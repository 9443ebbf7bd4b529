//! What a requester knows of packets that the peer misses and of packets beyond them that the peer keeps.

use crate::PsnSet;
use ferroce_types::Instant;
use std::collections::VecDeque;

/// A packet that the peer misses.
#[derive(Clone, Copy, Debug)]
pub struct LostPacket {
    /// Which.
    pub psn: u64,
    /// It has left again; else it is to leave.
    pub again: Option<LastRepeat>,
}

/// When a packet left again, and the PSN that was the next new one then.
#[derive(Clone, Copy, Debug)]
pub struct LastRepeat {
    /// When.
    pub at: Instant,
    /// The PSN that was the next new one.
    pub next: u64,
}

/// From the first report of a gap until the gap and those after it have closed.
#[derive(Debug, Default)]
pub struct Recovery {
    /// The oldest unacknowledged packet.
    una: u64,
    /// Packets that the peer keeps.
    pub kept: PsnSet,
    /// The PSN after the last of them.
    pub top: u64,
    /// Packets that it misses, by PSN: the oldest unacknowledged one, and those below `top` that it doesn't keep.
    lost: VecDeque<LostPacket>,
    /// So many of them are to leave, and none before this PSN.
    waiting: u32,
    waiting_from: u64,
}

impl Recovery {
    /// The peer misses the packet `una`.
    pub fn at(una: u64) -> Self {
        Self { una, ..Self::default() }
    }

    /// The packet was lost and hasn't left again.
    pub fn waits(&self, psn: u64) -> bool {
        self.place_of(psn).is_some_and(|at| self.lost[at].again.is_none())
    }

    fn place_of(&self, psn: u64) -> Option<usize> {
        self.lost.binary_search_by_key(&psn, |lost| lost.psn).ok()
    }

    /// The packets before `end` that aren't in the network: the peer keeps them, or they were lost and haven't left again.
    pub fn left_network(&self, end: u64) -> impl Iterator<Item = u64> {
        (self.una..end.min(self.top.max(self.una + 1)))
            .filter(|psn| self.kept.contains(*psn) || self.waits(*psn))
    }

    /// Packets are to be sent again.
    pub const fn is_due(&self) -> bool {
        self.waiting > 0
    }

    /// The PSN of the first packet to be sent again, and whether there is another one.
    pub fn due(&self) -> Option<(u64, bool)> {
        if self.waiting == 0 {
            return None;
        }
        let from = self.lost.partition_point(|lost| lost.psn < self.waiting_from);
        let first = self.lost.range(from..).find(|lost| lost.again.is_none())?;
        Some((first.psn, self.waiting > 1))
    }

    /// The packet that was [`Self::due`] has left.
    pub fn sent_again(&mut self, psn: u64, again: LastRepeat) {
        if let Some(at) = self.place_of(psn).filter(|&at| self.lost[at].again.is_none()) {
            self.lost[at].again = Some(again);
            self.waiting -= 1;
            self.waiting_from = psn + 1;
        }
    }

    /// The peer misses nothing, and keeps nothing.
    pub fn is_over(&self) -> bool {
        self.lost.is_empty() && self.kept.is_empty()
    }

    /// The peer has executed everything before `una`.
    pub fn acknowledge(&mut self, una: u64) {
        while let Some(lost) = self.lost.front().filter(|lost| lost.psn < una) {
            self.waiting -= u32::from(lost.again.is_none());
            self.lost.pop_front();
        }
        for psn in self.una..una.min(self.top) {
            self.kept.remove(psn);
        }
        self.una = una;
    }

    /// The peer keeps a packet. Returns whether it was in the network.
    pub fn keeps(&mut self, psn: u64) -> bool {
        let was_in_network = !self.waits(psn);
        self.kept.insert(psn);
        was_in_network
    }

    /// What the peer misses below `end` was lost, if that is new and `again` returns `None` for it, or if it has left again and is `overdue`.
    /// Gives the packets to `f` that were in the network until now.
    pub fn note_lost(
        &mut self,
        end: u64,
        again: impl Fn(u64) -> Option<LastRepeat>,
        overdue: impl Fn(&LastRepeat) -> bool,
        mut f: impl FnMut(u64),
    ) {
        let (mut waiting, mut from) = (self.waiting, self.waiting_from);
        let mut wait = |psn| (waiting, from) = (waiting + 1, from.min(psn));
        if self.lost.front().is_none_or(|lost| lost.psn > self.una) {
            // If the peer has kept it, it has dropped it.
            let was_kept = self.kept.remove(self.una);
            let again = again(self.una).filter(|_| !was_kept);
            self.lost.push_front(LostPacket { psn: self.una, again });
            if again.is_none() {
                wait(self.una);
            }
            if again.is_none() && !was_kept {
                f(self.una);
            }
        }
        let mut arrived = 0;
        self.lost.retain_mut(|packet| {
            if self.kept.contains(packet.psn) {
                arrived += u32::from(packet.again.is_none());
                return false;
            }
            if packet.again.as_ref().is_some_and(&overdue) {
                packet.again = None;
                wait(packet.psn);
                f(packet.psn);
            }
            true
        });
        for psn in (self.top.max(self.una + 1)..end).filter(|psn| !self.kept.contains(*psn)) {
            let again = again(psn);
            self.lost.push_back(LostPacket { psn, again });
            if again.is_none() {
                wait(psn);
                f(psn);
            }
        }
        (self.waiting, self.waiting_from) = (waiting - arrived, from);
        self.top = self.top.max(end);
    }

    /// The peer, which has kept these packets, may have dropped them: they count as sent once more.
    pub fn forget(&mut self, dropped: &[u64], again: LastRepeat) {
        for &psn in dropped {
            self.kept.remove(psn);
            self.lost.push_back(LostPacket { psn, again: Some(again) });
        }
        if !dropped.is_empty() {
            self.lost.make_contiguous().sort_unstable_by_key(|lost| lost.psn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_the_first_packet_that_is_missing_and_has_not_left_again() {
        let mut state = 1_u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % n
        };
        let mut recovery = Recovery::at(100);
        for step in 0..20_000 {
            let una = recovery.una;
            let (end, again) = (una + 1 + below(40), LastRepeat { at: Instant(step), next: u64::MAX });
            match below(4) {
                0 => {
                    let end = recovery.top.max(end);
                    for psn in (una + 1..end).filter(|psn| (psn * 7 + step).is_multiple_of(3)) {
                        recovery.keeps(psn);
                    }
                    recovery.keeps(end);
                    let left = |psn: u64| psn.is_multiple_of(5).then_some(again);
                    recovery.note_lost(end + 1, left, |it| it.at.0 + 20 < step, |_| {});
                }
                1 => {
                    let kept: Vec<_> =
                        (una + 1..recovery.top).filter(|psn| recovery.kept.contains(*psn)).collect();
                    recovery.forget(&kept[..kept.len() / 4], again);
                }
                2 => {
                    recovery.acknowledge(una + below(9));
                    let known = recovery.top;
                    recovery.note_lost(known, |_| None, |_| false, |_| {});
                }
                _ => {
                    if let Some((psn, _)) = recovery.due() {
                        recovery.sent_again(psn, again);
                    }
                }
            }
            let waiting: Vec<_> =
                recovery.lost.iter().filter(|lost| lost.again.is_none()).map(|lost| lost.psn).collect();
            assert_eq!(recovery.due(), waiting.first().map(|psn| (*psn, waiting.len() > 1)));
            let missing = (recovery.una..recovery.top.max(recovery.una + 1))
                .filter(|psn| !recovery.kept.contains(*psn));
            if !recovery.lost.is_empty() {
                assert!(recovery.lost.iter().map(|lost| lost.psn).eq(missing));
            }
        }
    }
}
