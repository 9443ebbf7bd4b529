//! Texts from an untrusted process, in a form that is safe for a terminal.

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Letters of the longest text.
pub const LONGEST_TEXT: usize = 256;

/// A short text in which no letter is one that a terminal acts upon.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Text(String);

impl Text {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(harmless(text))
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(harmless(&String::deserialize(from)?)))
    }
}

/// At most [`LONGEST_TEXT`] letters of `text`, with a question mark for each that isn't a plain letter, number or sign: those
/// that move a cursor, change a colour, turn the direction of writing, or can't be seen.
#[must_use]
pub fn harmless(text: &str) -> String {
    let plain = |letter: char| {
        let visible = letter.is_alphanumeric() || letter.is_ascii_punctuation() || letter == ' ';
        if visible { letter } else { '?' }
    };
    text.chars().take(LONGEST_TEXT).map(plain).collect()
}
