//! What a requester knows of packets that the peer misses and of packets beyond them that the peer keeps.

use super::PsnSet;
use ferroce_types::Instant;
use std::collections::VecDeque;

/// A packet that the peer misses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostPacket {
    pub(crate) psn: u64,
    /// It has left again; else it is to leave.
    pub(crate) again: Option<LastRepeat>,
}

/// When a packet left again, and the PSN that was the next new one then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastRepeat {
    pub(crate) at: Instant,
    pub(crate) next: u64,
}

/// From the first report of a gap until the gap and those after it have closed.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// The oldest unacknowledged packet.
    una: u64,
    /// Packets that the peer keeps.
    pub(crate) kept: PsnSet,
    /// The PSN after the last of them.
    pub(crate) top: u64,
    /// Packets that it misses, by PSN.
    pub(crate) lost: VecDeque<LostPacket>,
}

impl Recovery {
    /// The peer misses the packet `una`.
    pub(crate) fn at(una: u64) -> Self {
        Self { una, ..Self::default() }
    }

    /// The packet isn't in the network: the peer keeps it, or it was lost and hasn't left again.
    pub(crate) fn has_left_network(&self, psn: u64) -> bool {
        let at = self.lost.partition_point(|lost| lost.psn < psn);
        let waits = self.lost.get(at).is_some_and(|lost| lost.psn == psn && lost.again.is_none());
        waits || psn < self.top && self.kept.contains(psn)
    }

    /// The first packet to be sent again.
    pub(crate) fn due(&self) -> Option<usize> {
        self.lost.iter().position(|lost| lost.again.is_none())
    }

    /// The peer misses nothing, and keeps nothing.
    pub(crate) fn is_over(&self) -> bool {
        self.lost.is_empty() && self.kept.is_empty()
    }

    /// The peer has executed everything before `una`. Returns how many packets it had kept of these.
    pub(crate) fn acknowledge(&mut self, una: u64) -> u32 {
        while self.lost.front().is_some_and(|lost| lost.psn < una) {
            self.lost.pop_front();
        }
        let executed = self.una..una.min(self.top);
        self.una = una;
        executed.map(|psn| u32::from(self.kept.remove(psn))).sum()
    }
}
