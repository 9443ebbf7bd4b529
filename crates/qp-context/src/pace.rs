//! The pace of services without acknowledgements.
//!
//! A UC or UD sender gets no sign that the receiver's socket is full: packets that exceed it are lost silently, and programs that
//! were written for a lossless fabric wait for them for ever. A burst that fits a socket of the default size and a rate that a
//! receiver in software can follow lose next to nothing. Both limits belong to the receiver: all its senders share one [`Pace`],
//! and wait in the order in which they have asked.

use ferroce_types::Instant;

/// Bytes that may go at once.
const BURST: u64 = 64 << 10;
/// Nanoseconds in which that much may go again.
const PERIOD: u64 = 400_000;
/// What the smallest packet costs: receiving it takes as long as one of this size.
const SMALLEST: u64 = 1024;
/// What a sender gets that had to wait: waking it up has a cost too.
const PORTION: u64 = BURST / 4;

/// The pace towards one receiver.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// When all that was given away so far has gone, in nanoseconds, at the rate that is kept in the long run.
    given: u64,
}

/// What one sender has got of a [`Pace`].
#[derive(Debug, Clone, Default)]
pub struct Portion {
    bytes: u64,
    from: Instant,
}

impl Pace {
    /// May a packet of `bytes` go now? `portion` is what the sender was given earlier.
    ///
    /// # Errors
    /// When to ask again: by then the packet, and some more, may go.
    pub fn ask(&mut self, portion: &mut Portion, now: Instant, bytes: u32) -> Result<(), Instant> {
        let cost = u64::from(bytes).clamp(SMALLEST, BURST);
        // What isn't used soon is lost: the leftovers of many would be a burst.
        if portion.bytes >= cost && now.0 < portion.from.0.saturating_add(PERIOD) {
            if portion.from > now {
                return Err(portion.from);
            }
            portion.bytes -= cost;
            return Ok(());
        }
        let from = self.given.max(now.0.saturating_sub(PERIOD));
        if from <= now.0 {
            self.given = from + time_of(cost);
            return Ok(());
        }
        *portion = Portion { bytes: cost.max(PORTION), from: Instant(from) };
        self.given = from + time_of(portion.bytes);
        Err(portion.from)
    }
}

/// Nanoseconds that so many bytes take.
const fn time_of(bytes: u64) -> u64 {
    (bytes * PERIOD).div_ceil(BURST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000;

    /// Lets senders with always more to send go on for `ns`; what each has sent.
    fn run(senders: usize, bytes: u32, ns: u64) -> Vec<u64> {
        let mut pace = Pace::default();
        let mut portions = vec![Portion::default(); senders];
        let mut wake = vec![START; senders];
        let mut sent = vec![0; senders];
        loop {
            let next = (0..senders).min_by_key(|&i| wake[i]).expect("a sender");
            let now = Instant(wake[next]);
            if now.0 >= START + ns {
                return sent;
            }
            match pace.ask(&mut portions[next], now, bytes) {
                Ok(()) => sent[next] += u64::from(bytes).max(SMALLEST),
                Err(at) => {
                    assert!(at > now);
                    wake[next] = at.0;
                }
            }
        }
    }

    #[test]
    fn a_burst_goes_and_then_as_much_as_time_earns_whoever_sends() {
        for (senders, bytes) in [(1, 2048), (1, 10), (16, 2048), (16, 64), (100, 4096)] {
            let sent: u64 = run(senders, bytes, 20 * PERIOD).iter().sum();
            // A sender that waits has got its portion already.
            let most = BURST + 20 * BURST + PORTION;
            assert!(sent <= most && sent > 19 * BURST, "{senders} of {bytes}: {sent} of {most}");
        }
    }

    #[test]
    fn all_get_the_same() {
        let sent = run(16, 1024, 200 * PERIOD);
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        assert!(most - least <= 2 * BURST, "{sent:?}");
    }

    #[test]
    fn leftovers_expire() {
        let (mut pace, mut portion) = (Pace::default(), Portion::default());
        let now = Instant(START);
        while pace.ask(&mut portion, now, 4096).is_ok() {}
        let at = pace.ask(&mut portion, now, 4096).unwrap_err();
        pace.ask(&mut portion, at, 4096).unwrap();
        // Long after: a burst, and not a byte more.
        let later = Instant(at.0 + 10 * PERIOD);
        let packets = (0..).take_while(|_| pace.ask(&mut portion, later, 4096).is_ok()).count() as u64;
        assert_eq!(packets * 4096, BURST + 4096);
    }
}
