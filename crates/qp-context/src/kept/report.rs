//! What a responder keeps beyond a gap, as a packet before its sequence NAK carries it.

use super::{KEPT_RANGE, KeptNumbers};
use crate::Payload;

const WORD: usize = GapReport::WORD;
const MOST_BYTES: usize = KEPT_RANGE as usize / 8;

/// One bit for each PSN after the missing one, the next PSN first: it has come, and is kept. 64 of them are little-endian bytes.
/// No reason for a NAK is as long.
#[derive(Clone, Copy, Debug)]
pub struct GapReport {
    bytes: [u8; MOST_BYTES],
    len: usize,
}

impl GapReport {
    /// Bytes of 64 bits.
    pub const WORD: usize = 8;

    /// Of the packets after `missing`, in no more bytes than there is [room](KeptNumbers::room) for, but one word at least.
    pub fn of(kept: &KeptNumbers, missing: u64) -> Self {
        let ahead = if kept.numbers.is_empty() { 1 } else { kept.top.saturating_sub(missing) };
        let words = (ahead as usize).div_ceil(64).min(kept.room() / WORD).clamp(1, MOST_BYTES / WORD);
        let mut report = Self { bytes: [0; MOST_BYTES], len: words * WORD };
        for (bytes, first) in report.bytes.chunks_mut(WORD).take(words).zip((missing + 1..).step_by(64)) {
            bytes.copy_from_slice(&kept.numbers.word(first).to_le_bytes());
        }
        report
    }

    /// The payload of an acknowledgement, if it is a report.
    pub fn read(payload: &impl Payload) -> Option<Self> {
        let len = payload.len();
        if !(WORD..=MOST_BYTES).contains(&len) || !len.is_multiple_of(WORD) {
            return None;
        }
        let mut report = Self { bytes: [0; MOST_BYTES], len };
        payload.copy(&mut report.bytes[..len]).ok()?;
        Some(report)
    }

    /// As the payload of a NAK.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Of each 64 packets after `missing`, the first PSN, and what is kept of them.
    pub fn words(&self, missing: u64) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        let (words, _) = self.bytes[..self.len].as_chunks();
        let first = move |at| missing + 1 + 64 * at as u64;
        words.iter().enumerate().map(move |(at, word)| (first(at), u64::from_le_bytes(*word)))
    }

    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.bytes().iter().all(|byte| *byte == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(report: &GapReport, missing: u64) -> impl Iterator<Item = u64> {
        let has = |word: u64, bit: &u64| word >> bit & 1 == 1;
        let words = report.words(missing);
        words.flat_map(move |(first, word)| {
            (0..64).filter(move |bit| has(word, bit)).map(move |bit| first + bit)
        })
    }

    #[test]
    fn a_report_contains_what_is_kept_in_no_more_bytes_than_there_is_room_for() {
        let missing = (1 << 24) + 1000;
        let all = [1, 2, 64, 65, 127, 200, 900, 1000, KEPT_RANGE - 1].map(|ahead| missing + ahead);
        let mut kept = KeptNumbers { top: missing + KEPT_RANGE - 1, ..KeptNumbers::default() };
        kept.note_packet(4096);
        assert!(all.iter().all(|&number| kept.numbers.insert(number)));
        let report = GapReport::read(&GapReport::of(&kept, missing).bytes()).unwrap();
        assert!(numbers(&report, missing).eq(all) && report.bytes().len() == MOST_BYTES);
        // The headers of the report and of its NAK need room too.
        let packets = [
            (0, false, 8),
            (55, false, 8),
            (56, true, 8),
            (64, true, 16),
            (200, true, 152),
            (1000, true, MOST_BYTES),
        ];
        for (payload, may_report, len) in packets {
            kept.note_nak(true);
            kept.note_packet(payload);
            assert_eq!(kept.may_report(), may_report);
            let report = GapReport::of(&kept, missing);
            assert_eq!(report.bytes().len(), len);
            assert!(
                numbers(&report, missing).eq(all.into_iter().filter(|at| at - missing <= 8 * len as u64))
            );
        }
        let nothing = GapReport::of(&KeptNumbers::default(), missing);
        assert!(nothing.is_empty() && nothing.bytes().len() == 8);
    }

    #[test]
    fn payloads_of_other_lengths_are_not_reports() {
        for len in 0..400 {
            let is_report = (8..=MOST_BYTES).contains(&len) && len % 8 == 0;
            assert_eq!(GapReport::read(&&vec![0; len][..]).is_some(), is_report, "{len}");
        }
    }
}
