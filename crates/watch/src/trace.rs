//! Messages of a process as they end, for those who trace it.

use super::bounded::list;
use super::text::Text;
use serde::{Deserialize, Serialize};

/// Messages that are noted between two questions.
pub const BURST: usize = 512;
/// Queue pairs that a filter can name.
pub const NAMED: usize = 16;

/// Which messages are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only those that ended with an error.
    pub errors: bool,
    /// Only those of these queue pairs, of which the first [`NAMED`] count; none: of all.
    pub numbers: Vec<u32>,
}

impl Filter {
    /// As it is in a request.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let numbers = self.numbers.iter().take(NAMED).flat_map(|number| number.to_le_bytes());
        std::iter::once(u8::from(self.errors)).chain(numbers).collect()
    }

    /// The filter of a request.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&errors, rest) = bytes.split_first()?;
        let (numbers, []) = rest.as_chunks() else { return None };
        (errors <= 1 && numbers.len() <= NAMED).then(|| Self {
            errors: errors == 1,
            numbers: numbers.iter().map(|number| u32::from_le_bytes(*number)).collect(),
        })
    }
}

/// What has ended since the question before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceBatch {
    /// The messages, in the order of their ends.
    #[serde(deserialize_with = "list")]
    pub messages: Vec<TracedMessage>,
    /// Nanoseconds since the question before.
    pub passed: u64,
    /// Nanoseconds of these in which nothing was noted, as [`BURST`] messages had been.
    pub unseen: u64,
}

/// A message that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TracedMessage {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub at: u64,
    /// The process's queue pair.
    pub number: u32,
    /// It has come; else the process has sent it, or asked for it.
    pub received: bool,
    /// What it does.
    pub operation: Text,
    /// Bytes.
    pub bytes: u64,
    /// The program's number of the request.
    pub wr_id: u64,
    /// The status of its completion, as `enum ibv_wc_status` has it.
    pub status: u8,
}

impl TraceBatch {
    /// The form in which it is sent.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Nothing in it has a form that JSON hasn't.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The message that a process has sent; `None` if it isn't valid.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_as_it_was_written() {
        for filter in [
            Filter::default(),
            Filter { errors: true, numbers: vec![0x12_3456, 7] },
            Filter { errors: false, numbers: vec![1; NAMED] },
        ] {
            assert_eq!(Filter::from_bytes(&filter.to_bytes()), Some(filter));
        }
        for nonsense in [&[][..], &[2], &[0, 1, 2, 3], &[0; 1 + 4 * (NAMED + 1)]] {
            assert_eq!(Filter::from_bytes(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn what_is_told_is_what_is_read_and_nonsense_is_nothing() {
        let message =
            TracedMessage { at: 1, operation: "SEND".into(), bytes: u64::MAX, ..TracedMessage::default() };
        let trace = TraceBatch { messages: vec![message], passed: 5, unseen: 3 };
        assert_eq!(TraceBatch::from_bytes(&trace.to_bytes()), Some(trace));
        let hostile = br#"{"messages":[{"operation":"a\u001b[2J\r\n","new":1}]}"#;
        assert_eq!(TraceBatch::from_bytes(hostile).unwrap().messages[0].operation, "a?[2J??");
        let many = format!("{{\"messages\":[{}]}}", vec!["{}"; crate::MOST + 1].join(","));
        for nonsense in ["", "[]x", "{\"passed\":-1}", "{\"messages\":[{\"status\":256}]}", &many] {
            assert_eq!(TraceBatch::from_bytes(nonsense.as_bytes()), None, "{nonsense:.40}");
        }
    }
}
