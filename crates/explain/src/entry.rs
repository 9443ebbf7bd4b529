//! An entry of the catalogue.

/// The first number of a finding; smaller ones are reasons of requests that fail.
pub(crate) const FIRST_FINDING: u16 = 100;

/// A reason, or a finding.
#[derive(Clone, Copy, Debug)]
pub struct Explanation {
    /// Its number: 34 is FC034.
    pub number: u16,
    /// What is wrong, in a few words without a full stop.
    pub title: &'static str,
    /// Its meaning and its usual causes.
    pub means: &'static str,
    /// How to find out which cause applies.
    pub see: &'static str,
    /// The fix, in a sentence, which the log line contains too.
    pub fix: &'static str,
    /// The statuses of completions with this reason, at either side. Empty for findings.
    pub statuses: &'static [&'static str],
}

impl Explanation {
    /// Whether it is a finding of `ferroce run --check` instead of the reason of a completion.
    #[must_use]
    pub const fn is_finding(&self) -> bool {
        self.number >= FIRST_FINDING
    }
}
