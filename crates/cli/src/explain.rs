//! `ferroce explain`: what a reason, a status of a completion, an errno value or an attribute of a queue pair means.

use ferroce_explain::{
    ATTRIBUTES, Attribute, CATALOGUE, ERRNOS, FINDINGS, STATUSES, Word, entry, id, number_of, page,
};
use ferroce_nic::watch::harmless;
use std::fmt::Write as _;
use std::process::ExitCode;

use crate::output;

/// Prints what `word` means; without one, the list of what can be asked for.
pub fn explain(word: Option<&str>) -> ExitCode {
    let text = match word {
        None => list(),
        Some(word) => match text_of(word) {
            Some(text) => text,
            None => {
                eprintln!(
                    "ferroce: nothing is known of \"{}\": an ID (FC034), a vendor_err (0xfc034), a status \
                     (IBV_WC_RETRY_EXC_ERR), an errno (ENOMEM) or an attribute of a queue pair (min_rnr_timer) can be explained; \
                     `ferroce explain` lists them",
                    harmless(word)
                );
                return ExitCode::FAILURE;
            }
        },
    };
    output::print(&text)
}

fn text_of(word: &str) -> Option<String> {
    let name = word.to_ascii_uppercase();
    let same = |known: &&Word| known.name == name || known.name.strip_prefix("IBV_WC_") == Some(&name);
    if let Some(status) = STATUSES.iter().find(same) {
        return Some(status_text(status));
    }
    if let Some(errno) = ERRNOS.iter().find(same) {
        return Some(format!("# {} ({})\n\n{}\n", errno.name, errno.value, errno.means));
    }
    if let Some(attribute) = Attribute::named(word) {
        return Some(attribute_text(attribute));
    }
    number_of(word).and_then(entry).map(page)
}

/// A status, and the reasons that end requests with it.
fn status_text(status: &Word) -> String {
    let mut text = format!("# {} ({})\n\n{}\n", status.name, status.value, status.means);
    let reasons: Vec<_> = CATALOGUE.iter().filter(|entry| entry.statuses.contains(&status.name)).collect();
    if !reasons.is_empty() {
        text.push_str("\n## Reasons\n\n");
    }
    for reason in reasons {
        // Writing to a string doesn't fail.
        let _ = writeln!(text, "- {}: {}", id(reason.number), reason.title);
    }
    text
}

/// An attribute, and what comes of a wrong one.
fn attribute_text(attribute: &Attribute) -> String {
    let Attribute { name, mask, when, means, reasons } = attribute;
    let mut text = format!("# {name} ({mask})\n\nSet at {when}. {means}\n");
    if !reasons.is_empty() {
        text.push_str("\n## What a wrong value leads to\n\n");
    }
    for entry in reasons.iter().filter_map(|&number| entry(number)) {
        // Writing to a string doesn't fail.
        let _ = writeln!(text, "- {}: {}", id(entry.number), entry.title);
    }
    text
}

fn list() -> String {
    let mut text = String::from("# Reasons (also as vendor_err, in hexadecimal)\n\n");
    for reason in CATALOGUE {
        let _ = writeln!(text, "- {}: {}", id(reason.number), reason.title);
    }
    text.push_str("\n# Findings of `ferroce run --check`\n\n");
    for finding in FINDINGS {
        let _ = writeln!(text, "- {}: {}", id(finding.number), finding.title);
    }
    for (title, words) in [("Statuses of completions", STATUSES), ("Values of errno", ERRNOS)] {
        let _ = write!(text, "\n# {title}\n\n");
        for word in words {
            let _ = writeln!(text, "- {} ({})", word.name, word.value);
        }
    }
    text.push_str("\n# Attributes of queue pairs\n\n");
    for attribute in ATTRIBUTES {
        let _ = writeln!(text, "- {} ({})", attribute.name, attribute.mask);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_listed_can_be_explained() {
        let listed = list();
        let words: Vec<_> = listed
            .lines()
            .filter_map(|line| line.strip_prefix("- "))
            .map(|line| line.split([':', ' ']).next().expect("a word"))
            .collect();
        assert!(words.len() > 40, "{words:?}");
        for word in words {
            let text = text_of(word).expect(word);
            assert!(text.starts_with(&format!("# {word}")), "{text}");
        }
    }

    #[test]
    fn a_status_names_its_reasons() {
        let text = text_of("rnr_retry_exc_err").expect("a status");
        assert!(text.starts_with("# IBV_WC_RNR_RETRY_EXC_ERR (13)") && text.contains("- FC020: "), "{text}");
        assert_eq!(text_of("0xfc034"), text_of("FC034"));
        assert_eq!(text_of("FC999"), None);
        let text = text_of("IBV_QP_MAX_QP_RD_ATOMIC").expect("an attribute");
        assert!(text.starts_with("# max_rd_atomic (") && text.contains("- FC050: "), "{text}");
    }
}
