//! What a run has shown.

use crate::{LinkSizes, Traffic};

/// Counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Packets that left a host.
    pub packets: u64,
    /// Requests among them.
    pub requests: u64,
    /// Requests sent again.
    pub repeated: u64,
    /// Packets for which a queue had no room.
    pub dropped: u64,
    /// Packets that a link has lost.
    pub lost: u64,
    /// Packets that a switch has marked.
    pub marked: u64,
    /// Local ACK timeouts.
    pub timeouts: u64,
    /// Requests that ended with an error.
    pub failed: u64,
}

/// How the flows of a run ended.
#[derive(Clone, PartialEq, Debug)]
pub struct RunOutcome {
    /// Counts.
    pub totals: Totals,
    /// Nanoseconds from post to completion, by rising size.
    times: Vec<u64>,
    /// Nanoseconds until the last of them.
    end: u64,
    /// The same at best: all bytes of the busiest host at the rate of its link, and a round trip. Some flows can end sooner.
    ideal: u64,
    /// Bytes through the busiest host.
    bytes: u64,
    fairness: f64,
}

impl RunOutcome {
    pub(crate) fn new(traffic: &Traffic, sizes: &LinkSizes, mtu: u32, ends: &[u64], totals: Totals) -> Self {
        let mut times: Vec<u64> = traffic.flows.iter().zip(ends).map(|(flow, end)| end - flow.at).collect();
        let rates =
            traffic.flows.iter().zip(&times).map(|(flow, &time)| f64::from(flow.bytes) / time.max(1) as f64);
        let (sum, squares) =
            rates.fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
        let fairness = if squares > 0.0 { sum * sum / (squares * times.len() as f64) } else { 1.0 };
        times.sort_unstable();
        let bytes = traffic.most_of_a_host;
        let packets = bytes.div_ceil(u64::from(mtu));
        // Headers of RoCEv2, and what is around them.
        let ideal = sizes.time_of(bytes + packets * 82) + sizes.round_trip();
        Self { totals, end: ends.iter().copied().max().unwrap_or(0), ideal, bytes, fairness, times }
    }

    /// The time in nanoseconds within which so many of a thousand flows have ended.
    #[must_use]
    pub fn percentile(&self, in_a_thousand: usize) -> u64 {
        let at = (self.times.len() * in_a_thousand).div_ceil(1000).saturating_sub(1);
        self.times.get(at).copied().unwrap_or(0)
    }

    /// Nanoseconds until all have ended.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// The same at best.
    #[must_use]
    pub const fn ideal(&self) -> u64 {
        self.ideal
    }

    /// Gbit/s of payload through the busiest host, until all flows have ended.
    #[must_use]
    pub fn goodput(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.end.max(1) as f64
    }

    /// Jain's index over the flows' rates: 1 where all are equal, and one over their number where one has all.
    #[must_use]
    pub const fn fairness(&self) -> f64 {
        self.fairness
    }
}
