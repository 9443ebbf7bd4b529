//! Why requests fail, and what would fail on an adapter, in words. All texts about both are in this crate.
//!
//! In here: the catalogue of reasons and of findings with their stable numbers, a reason as data ([`Reason`]), the line that
//! a failure makes ([`Report`]), and a finding with its forms in a report ([`Finding`]). Not here: finding the reason
//! (`proto`, `mem`, `nic`) or the finding (`capi`), and printing the line.
#![forbid(unsafe_code)]

mod attributes;
mod catalogue;
mod check;
mod entry;
mod events;
mod finding;
mod findings;
mod line;
mod page;
mod programs;
mod reason;
mod statuses;

pub use attributes::{ATTRIBUTES, Attribute};
pub use catalogue::{CATALOGUE, all, entry};
pub use check::Check;
pub use entry::Explanation;
pub use events::{ASYNC_EVENTS, CM_EVENTS, REJECTIONS};
pub use finding::{CodeLocation, Finding, ReportFormat};
pub use findings::FINDINGS;
pub use line::{PeerLocation, PeerName, Report, RequestOutcome, Subject, sentence, title};
pub use page::page;
pub use reason::{InterfaceName, KeyFault, Reason, Rights};
pub use statuses::{ERRNOS, STATUSES, Word};

use ferroce_types::vendor_err;

/// How a reason's number is written: `FC034`.
#[must_use]
pub fn id(number: u16) -> String {
    format!("FC{number:03}")
}

/// The number of a reason that a user has typed: `FC034`, `fc034`, `34`, `0xfc034` or that in decimal.
#[must_use]
pub fn number_of(word: &str) -> Option<u16> {
    let lower = word.to_ascii_lowercase();
    let digits = lower.strip_prefix("0xfc").or_else(|| lower.strip_prefix("fc")).unwrap_or(&lower);
    let number: u32 = digits.parse().ok()?;
    let known = |number: u16| entry(number).map(|entry| entry.number);
    u16::try_from(number)
        .ok()
        .and_then(known)
        .or_else(|| all().map(|entry| entry.number).find(|&n| vendor_err(n) == number))
}

/// The candidate that was probably meant by a misspelt word.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |candidate| strsim::damerau_levenshtein(word, candidate);
    let bound = 1 + word.len() / 4;
    let measured = candidates.into_iter().map(|candidate| (likeness(candidate), candidate));
    measured
        .filter(|(edits, _)| *edits <= bound)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_is_near_to_the_one_that_was_meant() {
        assert_eq!(nearest("fatel", ["memory", "fatal", "on"]), Some("fatal"));
        assert_eq!(nearest("FERROCE_FALUT", ["FERROCE_LOG", "FERROCE_FAULT"]), Some("FERROCE_FAULT"));
        assert_eq!(nearest("something", ["memory", "fatal", "on"]), None);
    }

    #[test]
    fn a_number_in_vendor_err_reads_as_the_id_in_hexadecimal() {
        assert_eq!(vendor_err(0), 0);
        for entry in all() {
            let code = vendor_err(entry.number);
            assert_eq!(format!("{code:X}"), id(entry.number));
            for word in [id(entry.number), format!("{code:#x}"), code.to_string(), entry.number.to_string()] {
                assert_eq!(number_of(&word), Some(entry.number), "{word}");
            }
        }
        assert_eq!(number_of("FC999"), None);
        assert_eq!(number_of("IBV_WC_SUCCESS"), None);
    }
}
