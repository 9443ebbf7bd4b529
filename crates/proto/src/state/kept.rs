//! Packets that aren't far from each other, and what a responder knows of those that it keeps.

use super::GapReport;
use ferroce_types::Instant;

/// How far packets are kept: so many PSNs, counted from the missing one.
pub(crate) const KEPT_RANGE: u64 = 2048;
const WORDS: usize = KEPT_RANGE as usize / 64;

/// Extended PSNs of a range of [`KEPT_RANGE`], which may move: each has the bit that its lowest digits name. Has no memory while
/// there is none.
#[derive(Debug, Default)]
pub(crate) struct PsnSet {
    words: Option<Box<[u64; WORDS]>>,
    len: u32,
}

impl PsnSet {
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.words.as_ref().is_some_and(|words| words[word] & bit != 0)
    }

    /// False: it was there.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        let (word, bit) = place(number);
        let words = self.words.get_or_insert_default();
        let is_new = words[word] & bit == 0;
        self.len += u32::from(is_new);
        words[word] |= bit;
        is_new
    }

    /// False: it isn't there.
    pub(crate) fn remove(&mut self, number: u64) -> bool {
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
    pub(crate) fn word(&self, first: u64) -> u64 {
        let Some(words) = &self.words else { return 0 };
        let (at, shift) = ((first / 64) as usize % WORDS, first % 64);
        let above = words[(at + 1) % WORDS];
        words[at] >> shift | if shift == 0 { 0 } else { above << (64 - shift) }
    }
}

const fn place(number: u64) -> (usize, u64) {
    ((number / 64) as usize % WORDS, 1 << (number % 64))
}

/// What a responder knows of the packets that it keeps.
#[derive(Debug, Default)]
pub(crate) struct KeptNumbers {
    pub(crate) numbers: PsnSet,
    /// The highest of them.
    pub(crate) top: u64,
    /// They are dropped then, unless the gap moves before.
    pub(crate) expires: Option<Instant>,
    /// Some have been kept on this connection: sequence NAKs come with a report, if only that nothing is kept now.
    pub(crate) reports: bool,
    /// A later connection of a QP keeps nothing before that time, which its first gap sets.
    pub(crate) keeps_from: Option<Instant>,
    /// Bytes of packets beyond a gap and of those that close one, headers included, less those of the answers that they have caused: a report
    /// isn't longer, so that forged packets gain nothing.
    pub(crate) unanswered: usize,
}

/// Bytes of an acknowledgement's headers by UDP and IPv4. The headers of a request have an AETH less at most.
const HEADERS: usize = 48;

impl KeptNumbers {
    /// A packet with so many bytes of payload has come, beyond a gap or into one.
    pub(crate) const fn note_packet(&mut self, payload: usize) {
        self.unanswered = self.unanswered.saturating_add(payload + HEADERS);
    }

    /// Bytes that a report may have, whose sequence NAK follows it.
    pub(crate) const fn room(&self) -> usize {
        self.unanswered.saturating_sub(2 * HEADERS)
    }

    /// A report may leave, if only with one word.
    pub(crate) const fn may_report(&self) -> bool {
        self.room() >= GapReport::WORD
    }

    /// A sequence NAK has left, after a report or alone. What one answer leaves over, no later one may use.
    pub(crate) const fn note_nak(&mut self, is_reported: bool) {
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
