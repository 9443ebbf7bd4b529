//! Fault injection: `FERROCE_FAULT="drop=1%,dup=0.5%,reorder=1%,corrupt=0.1%,delay=1ms..3ms,seed=7"`.
//!
//! | key | value | what happens to a packet |
//! |---|---|---|
//! | `drop` | probability | it is lost |
//! | `dup` | probability | it arrives twice |
//! | `corrupt` | probability | a few bits anywhere from BTH to ICRC are flipped, after the ICRC was computed |
//! | `reorder` | probability | it is held back until 1 to 8 later packets have passed, at most 1 ms |
//! | `delay` | duration, or a range | it arrives that much later; a range is drawn from per packet, and may change the order |
//! | `seed` | number | another course of events |
//!
//! A probability is a percentage (`1%`) or a fraction (`0.01`); a duration has a unit (`ns`, `us`, `ms`, `s`) and is at
//! most 10 s. A packet isn't lost but by `drop`. The two copies of a duplicate are corrupted, held back and delayed
//! independently. Outgoing and incoming packets each have their own course of events, decided by the seed and by how
//! many packets went before in that direction: the same packets in the same order fare the same.
//!
//! A corrupted packet over IPv4 has one chance in 65,536 to pass the receiver's check of the ICRC, because a receiver on
//! a UDP socket doesn't know the IP identification (see [`ferroce_wire::icrc`]).

use super::Direction;
use ferroce_os::sync::MadeOnce;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The environment variable.
pub const VARIABLE: &str = "FERROCE_FAULT";

/// The longest delay, in nanoseconds.
const MAX_DELAY: u64 = 10_000_000_000;
/// How long a packet is held back at most when there are no later ones, in nanoseconds.
const REORDER_LIMIT: u64 = 1_000_000;
/// How many later packets may pass one that is held back.
const REORDER_DISTANCE: u64 = 8;
/// Bytes of packets a queue holds before it lets the earliest go ahead of time.
const QUEUE_LIMIT: usize = 64 << 20;

/// What befalls packets, and how often.
#[derive(Clone, PartialEq, Debug)]
pub struct FaultInjection {
    drop: f64,
    dup: f64,
    reorder: f64,
    corrupt: f64,
    delay: RangeInclusive<u64>,
    seed: u64,
}

/// Why a text doesn't describe faults. The message is for the person who wrote it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultError {
    /// Not of the form `key=value`.
    #[error("\"{0}\" should be KEY=VALUE; the keys are drop, dup, reorder, corrupt, delay and seed")]
    Form(String),
    /// No such key.
    #[error("\"{0}\" isn't a fault; there are drop, dup, reorder, corrupt, delay and seed")]
    Key(String),
    /// A key appears twice.
    #[error("{0} is given twice")]
    Repeated(String),
    /// Not a probability.
    #[error(
        "{0}={1}: a probability is a percentage from 0% to 100% or a fraction from 0 to 1, such as 1% or 0.01"
    )]
    Probability(String, String),
    /// Not a duration.
    #[error(
        "delay={0}: a delay is a number with a unit (ns, us, ms, s), at most 10s, or a range such as 1ms..3ms"
    )]
    Delay(String),
    /// Not a seed.
    #[error("seed={0}: a seed is a whole number below 2^64")]
    Seed(String),
}

impl FromStr for FaultInjection {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let mut fault = Self { drop: 0.0, dup: 0.0, reorder: 0.0, corrupt: 0.0, delay: 0..=0, seed: 0 };
        let mut seen = Vec::new();
        for item in text.split(',').map(str::trim) {
            let (key, value) = item.split_once('=').ok_or_else(|| FaultError::Form(item.into()))?;
            let (key, value) = (key.trim(), value.trim());
            let probability =
                || probability(value).ok_or_else(|| FaultError::Probability(key.into(), value.into()));
            match key {
                "drop" => fault.drop = probability()?,
                "dup" => fault.dup = probability()?,
                "reorder" => fault.reorder = probability()?,
                "corrupt" => fault.corrupt = probability()?,
                "delay" => fault.delay = delay(value).ok_or_else(|| FaultError::Delay(value.into()))?,
                "seed" => fault.seed = value.parse().map_err(|_| FaultError::Seed(value.into()))?,
                _ => return Err(FaultError::Key(key.into())),
            }
            if seen.contains(&key) {
                return Err(FaultError::Repeated(key.into()));
            }
            seen.push(key);
        }
        Ok(fault)
    }
}

/// A number of digits and at most one point: no sign, exponent, "inf" or "nan".
fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| plain)
}

fn probability(text: &str) -> Option<f64> {
    let p = match text.strip_suffix('%') {
        Some(percentage) => number(percentage)? / 100.0,
        None => number(text)?,
    };
    (0.0..=1.0).contains(&p).then_some(p)
}

fn delay(text: &str) -> Option<RangeInclusive<u64>> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let range = duration(from)?..=duration(to)?;
    (!range.is_empty()).then_some(range)
}

/// In nanoseconds.
fn duration(text: &str) -> Option<u64> {
    let text = text.trim();
    let units = [("ns", 1e0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (digits, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let ns = (number(digits)? * unit).round();
    (ns <= MAX_DELAY as f64).then_some(ns as u64)
}

impl FaultInjection {
    /// The faults that [`VARIABLE`] asks for; `None` when it is unset or empty.
    ///
    /// # Errors
    /// See [`FaultError`].
    pub fn from_env() -> Result<Option<Self>, FaultError> {
        match ferroce_os::setting(VARIABLE) {
            Some(text) if !text.is_empty() => text.to_string_lossy().parse().map(Some),
            _ => Ok(None),
        }
    }

    /// The faults of this process, as [`VARIABLE`] was at the first call. A wrong value is logged and counts as none.
    #[inline]
    #[must_use]
    pub fn global() -> Option<&'static Self> {
        static GLOBAL: MadeOnce<FaultInjection> = MadeOnce::new();
        GLOBAL.get(|| match Self::from_env() {
            Ok(fault) => fault,
            Err(error) => {
                tracing::error!("{VARIABLE} is ignored: {error}");
                None
            }
        })
    }

    /// A queue for the packets of one direction. What befalls them depends on the seed, the direction and their order.
    #[must_use]
    pub fn queue<M: Clone>(&self, direction: Direction) -> FaultQueue<M> {
        let side = match direction {
            Direction::In => 0x1d,
            Direction::Out => 0x2e,
        };
        FaultQueue {
            stream: scramble(scramble(self.seed) ^ side),
            fault: self.clone(),
            number: 0,
            order: 0,
            held: Vec::new(),
            line: BinaryHeap::new(),
            bytes: 0,
            counts: Counts::default(),
        }
    }
}

/// What has befallen the packets of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Packets that were put in.
    pub packets: u64,
    /// Of these, lost.
    pub dropped: u64,
    /// Of these, duplicated.
    pub duplicated: u64,
    /// Copies that were held back.
    pub reordered: u64,
    /// Copies that were corrupted.
    pub corrupted: u64,
}

/// Packets of one direction on their way through the faults: they go in when the fabric would have sent or handed them
/// on, and what comes out is sent or handed on instead. `M` is what the fabric has to know about a packet besides its
/// bytes. Time is any clock in nanoseconds.
///
/// Owners take out what is due after every [`push`](Self::push), and have [`next_due`](Self::next_due) among their
/// timers: a packet may be waiting with no other one coming.
#[derive(Debug)]
pub struct FaultQueue<M> {
    fault: FaultInjection,
    /// Where this direction's random numbers begin.
    stream: u64,
    /// Packets put in so far.
    number: u64,
    /// Copies that got into `line` so far: the order among those due at the same time.
    order: u64,
    /// What `reorder` holds back.
    held: Vec<DelayedPacket<M>>,
    /// Everything else.
    line: BinaryHeap<Reverse<Due<M>>>,
    /// Bytes in both.
    bytes: usize,
    counts: Counts,
}

#[derive(Debug)]
struct Copy<M> {
    meta: M,
    packet: Vec<u8>,
    /// Nanoseconds in the line.
    delay: u64,
}

#[derive(Debug)]
struct DelayedPacket<M> {
    /// Let go once this many packets have been put in,
    until_number: u64,
    /// or at this time.
    until: u64,
    copy: Copy<M>,
}

#[derive(Debug)]
struct Due<M> {
    at: u64,
    order: u64,
    copy: Copy<M>,
}

impl<M> PartialEq for Due<M> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<M> Eq for Due<M> {}

impl<M> PartialOrd for Due<M> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<M> Ord for Due<M> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<M: Clone> FaultQueue<M> {
    /// Puts a packet in, BTH to ICRC.
    pub fn push(&mut self, now: u64, meta: M, packet: &[u8]) {
        self.number += 1;
        self.counts.packets += 1;
        let mut random = Random(scramble(self.stream ^ self.number));
        let (dropped, duplicated) = (random.chance(self.fault.drop), random.chance(self.fault.dup));
        if dropped {
            self.counts.dropped += 1;
        } else {
            if duplicated {
                self.counts.duplicated += 1;
                self.admit(now, meta.clone(), packet, &mut random);
            }
            self.admit(now, meta, packet, &mut random);
        }
        let number = self.number;
        self.release(|held| (held.until_number <= number).then_some(now));
    }

    fn admit(&mut self, now: u64, meta: M, packet: &[u8], random: &mut Random) {
        let mut packet = packet.to_vec();
        if random.chance(self.fault.corrupt) && !packet.is_empty() {
            self.counts.corrupted += 1;
            // An odd number of flips can't undo itself.
            for _ in 0..1 + 2 * random.below(4) {
                let bit = random.below(packet.len() as u64 * 8) as usize;
                packet[bit / 8] ^= 1 << (bit % 8);
            }
        }
        let (shortest, longest) = (*self.fault.delay.start(), *self.fault.delay.end());
        let delay = shortest + random.below(longest - shortest + 1);
        self.bytes += packet.len();
        let copy = Copy { meta, packet, delay };
        if random.chance(self.fault.reorder) {
            self.counts.reordered += 1;
            let until_number = self.number + 1 + random.below(REORDER_DISTANCE);
            self.held.push(DelayedPacket { until_number, until: now.saturating_add(REORDER_LIMIT), copy });
        } else {
            self.line_up(now, copy);
        }
    }

    /// Puts those held back for which `at` gives a time into the line, as if they had come then.
    fn release(&mut self, at: impl Fn(&DelayedPacket<M>) -> Option<u64>) {
        let mut i = 0;
        while let Some(held) = self.held.get(i) {
            match at(held) {
                Some(time) => {
                    let copy = self.held.remove(i).copy;
                    self.line_up(time, copy);
                }
                None => i += 1,
            }
        }
    }

    fn line_up(&mut self, now: u64, copy: Copy<M>) {
        self.order += 1;
        self.line.push(Reverse(Due { at: now.saturating_add(copy.delay), order: self.order, copy }));
    }

    /// Takes out the next packet whose time has come. (A queue of more than 64 MiB lets the earliest go at once.)
    pub fn pop_due(&mut self, now: u64) -> Option<(M, Vec<u8>)> {
        self.release(|held| (held.until <= now).then_some(held.until));
        let Reverse(first) = self.line.peek()?;
        if first.at > now && self.bytes <= QUEUE_LIMIT {
            return None;
        }
        let Reverse(Due { copy, .. }) = self.line.pop()?;
        self.bytes -= copy.packet.len();
        Some((copy.meta, copy.packet))
    }

    /// When [`pop_due`](Self::pop_due) is to be called next; `None` when nothing waits. May be in the past.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        let line = self.line.peek().map(|Reverse(first)| if self.bytes > QUEUE_LIMIT { 0 } else { first.at });
        line.into_iter().chain(self.held.iter().map(|held| held.until)).min()
    }

    /// What has happened so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }
}

/// The SplitMix64 generator (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
struct Random(u64);

/// Its output function: every bit of the result depends on every bit of `value`.
const fn scramble(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    fn next(&mut self) -> u64 {
        let value = scramble(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        value
    }

    /// True with probability `p`; takes one number whatever `p` is, so that one fault's rate doesn't move another's.
    fn chance(&mut self, p: f64) -> bool {
        ((self.next() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// A number below `limit`, which isn't 0.
    fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests;
