//! Which host sends what to which.

/// One RDMA WRITE on a connection of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteFlow {
    /// The host that writes.
    pub from: u32,
    /// The host whose memory it writes.
    pub to: u32,
    /// Bytes.
    pub bytes: u32,
    /// When it is posted, in nanoseconds.
    pub at: u64,
}

/// Flows, and what the network can do with them at best.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// The flows.
    pub flows: Vec<WriteFlow>,
    /// Bytes of payload through the busiest link of a host: the last flow can't end before all of them have passed.
    pub most_of_a_host: u64,
}

/// Hosts post within so many nanoseconds of each other.
const JITTER: u64 = 10_000;

impl Traffic {
    fn of(flows: Vec<WriteFlow>, hosts: u32) -> Self {
        let mut through = vec![[0_u64; 2]; hosts as usize];
        for flow in &flows {
            through[flow.from as usize][0] += u64::from(flow.bytes);
            through[flow.to as usize][1] += u64::from(flow.bytes);
        }
        let most_of_a_host = through.into_iter().flatten().max().unwrap_or(0);
        Self { flows, most_of_a_host }
    }

    /// `senders` hosts, spread over the network, write to host 0 at once.
    #[must_use]
    pub fn incast(hosts: u32, senders: u32, bytes: u32, chances: &mut Chances) -> Self {
        let flow = |number| WriteFlow {
            from: 1 + number * (hosts - 1) / senders,
            to: 0,
            bytes,
            at: chances.below(JITTER),
        };
        Self::of((0..senders).map(flow).collect(), hosts)
    }

    /// Each host writes to each other, the next first.
    #[must_use]
    pub fn all_to_all(hosts: u32, bytes: u32, chances: &mut Chances) -> Self {
        let mut flows = Vec::new();
        for from in 0..hosts {
            let at = chances.below(JITTER);
            flows.extend((1..hosts).map(|next| WriteFlow { from, to: (from + next) % hosts, bytes, at }));
        }
        Self::of(flows, hosts)
    }

    /// Each host writes to one other, and is written to by one.
    #[must_use]
    pub fn permutation(hosts: u32, bytes: u32, chances: &mut Chances) -> Self {
        let mut order: Vec<u32> = (0..hosts).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, chances.below(last as u64 + 1) as usize);
        }
        let next = order.iter().cycle().skip(1);
        let flow = |(&from, &to)| WriteFlow { from, to, bytes, at: chances.below(JITTER) };
        Self::of(order.iter().zip(next).map(flow).collect(), hosts)
    }
}

/// Numbers by a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chances(u64);

impl Chances {
    /// Equal seeds give equal numbers.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next, below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % end.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_what_its_name_promises() {
        let chances = &mut Chances::new(1);
        let incast = Traffic::incast(512, 64, 1000, chances);
        assert!(incast.flows.iter().all(|flow| flow.to == 0 && (1..512).contains(&flow.from)));
        assert_eq!((incast.flows.len(), incast.most_of_a_host), (64, 64_000));
        let all = Traffic::all_to_all(16, 10, chances);
        assert_eq!((all.flows.len(), all.most_of_a_host), (16 * 15, 150));
        let permutation = Traffic::permutation(100, 7, chances);
        assert_eq!((permutation.flows.len(), permutation.most_of_a_host), (100, 7));
        for flow in all.flows.iter().chain(&permutation.flows) {
            assert_ne!(flow.from, flow.to);
        }
    }
}
