//! Packets that aren't far from each other, and what a responder knows of those that it keeps.

mod report;

pub use report::GapReport;

use core::time::Duration;
use ferroce_types::Instant;

/// How far packets are kept: so many PSNs, counted from the missing one.
pub const KEPT_RANGE: u64 = 2048;
const WORDS: usize = KEPT_RANGE as usize / 64;

/// Extended PSNs of a range of [`KEPT_RANGE`], which may move: each has the bit that its lowest digits name. Has no memory while
/// there is none.
#[derive(Debug, Default)]
pub struct PsnSet {
    words: Option<Box<[u64; WORDS]>>,
    len: u32,
}

impl PsnSet {
    /// There are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number is there.
    pub fn contains(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.words.as_ref().is_some_and(|words| words[word] & bit != 0)
    }

    /// False: it was there.
    pub fn insert(&mut self, number: u64) -> bool {
        let (word, bit) = place(number);
        let words = self.words.get_or_insert_default();
        let is_new = words[word] & bit == 0;
        self.len += u32::from(is_new);
        words[word] |= bit;
        is_new
    }

    /// False: it isn't there.
    pub fn remove(&mut self, number: u64) -> bool {
        let (word, bit) = place(number);
        let Some(words) = self.words.as_mut().filter(|words| words[word] & bit != 0) else { return false };
        words[word] &= !bit;
        self.len -= 1;
        if self.len == 0 {
            self.words = None;
        }
        true
    }

    /// 64 numbers from `first` on, the lowest bit first. All of them are in the range.
    pub fn word(&self, first: u64) -> u64 {
        let Some(words) = &self.words else { return 0 };
        let (at, shift) = ((first / 64) as usize % WORDS, first % 64);
        let above = words[(at + 1) % WORDS];
        words[at] >> shift | if shift == 0 { 0 } else { above << (64 - shift) }
    }
}

const fn place(number: u64) -> (usize, u64) {
    ((number / 64) as usize % WORDS, 1 << (number % 64))
}

/// So long after its first gap a later connection of a QP keeps nothing: packets of the one before may still be on their way, and any of
/// [`KEPT_RANGE`] PSNs would be taken for one of this connection.
const EARLIER_CONNECTION: Duration = Duration::from_secs(1);

/// What a responder knows of the packets that it keeps.
#[derive(Debug, Default)]
pub struct KeptNumbers {
    /// Which are kept.
    pub numbers: PsnSet,
    /// The highest of them.
    pub top: u64,
    /// They are dropped then, unless the gap moves before.
    pub expires: Option<Instant>,
    /// Some have been kept on this connection: sequence NAKs come with a report, if only that nothing is kept now.
    pub reports: bool,
    /// A later connection of a QP keeps nothing before that time, which its first gap sets.
    pub keeps_from: Option<Instant>,
    /// Bytes of packets beyond a gap and of those that close one, headers included, less those of the answers that they have caused: a report
    /// isn't longer, so that forged packets gain nothing.
    pub unanswered: usize,
}

/// Bytes of an acknowledgement's headers by UDP and IPv4. The headers of a request have an AETH less at most.
const HEADERS: usize = 48;

impl KeptNumbers {
    /// Packets of the connection before may not be on their way any more.
    pub fn is_past_earlier_connection(&mut self, now: Instant) -> bool {
        now >= *self.keeps_from.get_or_insert_with(|| now.after(EARLIER_CONNECTION))
    }

    /// A packet with so many bytes of payload has come, beyond a gap or into one.
    pub const fn note_packet(&mut self, payload: usize) {
        self.unanswered = self.unanswered.saturating_add(payload + HEADERS);
    }

    /// Bytes that a report may have, whose sequence NAK follows it.
    pub const fn room(&self) -> usize {
        self.unanswered.saturating_sub(2 * HEADERS)
    }

    /// A report may leave, if only with one word.
    pub const fn may_report(&self) -> bool {
        self.room() >= GapReport::WORD
    }

    /// A sequence NAK has left, after a report or alone. What one answer leaves over, no later one may use.
    pub const fn note_nak(&mut self, is_reported: bool) {
        self.unanswered = if is_reported { 0 } else { self.unanswered.saturating_sub(HEADERS) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_set_contains_what_was_inserted_wherever_its_range_begins() {
        for low in [0, 1, 63, 64, 1000, KEPT_RANGE - 1, (1 << 24) - 5] {
            let (mut set, mut model) = (PsnSet::default(), BTreeSet::new());
            let range = low..low + KEPT_RANGE;
            for number in range.clone().filter(|number| number % 7 < 3 || number % 65 == 0) {
                assert!(set.insert(number) && !set.insert(number));
                model.insert(number);
            }
            assert!(range.clone().all(|number| set.contains(number) == model.contains(&number)));
            for first in range.clone().step_by(64) {
                let bits = (0..64).filter(|bit| model.contains(&(first + bit)));
                assert_eq!(set.word(first), bits.fold(0, |word, bit| word | 1 << bit), "{first}");
            }
            for number in range {
                assert_eq!(set.remove(number), model.remove(&number));
                assert_eq!(set.is_empty(), model.is_empty());
            }
            assert!(set.words.is_none());
        }
    }
}
