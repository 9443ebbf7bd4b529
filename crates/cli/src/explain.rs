//! `ferroce explain`: what a reason, a status of a completion, an errno value, an event or an attribute of a queue pair means.

use ferroce_explain::{
    ASYNC_EVENTS, ATTRIBUTES, Attribute, CATALOGUE, CM_EVENTS, ERRNOS, FINDINGS, REJECTIONS, STATUSES, Word,
    all, entry, id, nearest, number_of, page,
};
use ferroce_watch::harmless;
use std::fmt::Write as _;
use std::process::ExitCode;

use crate::output;

/// All words with a value, by what they are values of.
const WORDS: [(&str, &[Word]); 5] = [
    ("Statuses of completions", STATUSES),
    ("Values of errno", ERRNOS),
    ("Events of rdma_cm", CM_EVENTS),
    ("Statuses of RDMA_CM_EVENT_REJECTED", REJECTIONS),
    ("Asynchronous events of devices", ASYNC_EVENTS),
];
/// What may be left out of a name.
const PREFIXES: [&str; 4] = ["IBV_WC_", "RDMA_CM_EVENT_", "IB_CM_REJ_", "IBV_EVENT_"];

/// Prints what `word` means; without one, the list of what can be asked for.
pub fn explain(word: Option<&str>) -> ExitCode {
    match word.map_or_else(|| Some(list()), text_of) {
        Some(text) => output::print(&text),
        None => {
            let word = word.unwrap_or_default();
            let meant = nearest(&word.to_ascii_uppercase(), names());
            let meant = meant.map_or_else(String::new, |meant| format!(" (did you mean {meant}?)"));
            eprintln!(
                "ferroce explain: unknown word \"{}\"{meant}; expected an ID (FC034), a vendor_err, a status, an errno, an event, a \
                 number or a QP attribute. `ferroce explain` lists them",
                harmless(word)
            );
            ExitCode::FAILURE
        }
    }
}

/// All names that are explained, in capital letters but for attributes.
fn names() -> impl Iterator<Item = &'static str> {
    let words = WORDS.iter().flat_map(|(_, words)| *words);
    let attributes = ATTRIBUTES.iter().flat_map(|attribute| [attribute.name, attribute.mask]);
    let short = |word: &'static Word| {
        let short = PREFIXES.iter().find_map(|prefix| word.name.strip_prefix(prefix));
        [Some(word.name), short].into_iter().flatten()
    };
    words.flat_map(short).chain(attributes)
}

fn text_of(word: &str) -> Option<String> {
    let word = word.trim();
    if let Ok(number) = word.parse::<i32>()
        && let Some(text) = readings(number)
    {
        return Some(text);
    }
    let name = word.to_ascii_uppercase();
    let same = |known: &&Word| {
        known.name == name
            || PREFIXES.iter().any(|prefix| known.name.strip_prefix(prefix) == Some(&name))
            || (!known.text.is_empty() && known.text.eq_ignore_ascii_case(word))
    };
    let found: Vec<String> = WORDS
        .iter()
        .filter_map(|(title, words)| words.iter().find(same).map(|word| word_text(title, word)))
        .collect();
    let found: Vec<String> = Attribute::named(word).map(attribute_text).into_iter().chain(found).collect();
    match found.is_empty() {
        true => number_of(word).and_then(entry).map(page),
        false => Some(found.join("\n")),
    }
}

/// Everything that a bare number may be: programs print statuses, errno values (also negative) and IDs alike.
fn readings(number: i32) -> Option<String> {
    let positive = number.checked_abs()?;
    let mut found = Vec::new();
    for (title, words) in WORDS {
        let value = if title == "Values of errno" { positive } else { number };
        found.extend(words.iter().find(|word| word.value == value).map(|word| word_text(title, word)));
    }
    let reason = u16::try_from(number).ok().and_then(|number| all().find(|entry| entry.number == number));
    found.extend(reason.map(|entry| {
        let id = id(entry.number);
        format!("# {id}: {}\n\nA reason or finding: `ferroce explain {id}`.\n", entry.title)
    }));
    match found.len() {
        0 => None,
        1 => found.pop(),
        count => Some(format!("{number} has {count} meanings.\n\n{}", found.join("\n"))),
    }
}

/// A word, and of a status the reasons that end requests with it.
fn word_text(title: &str, word: &Word) -> String {
    match title {
        "Statuses of completions" => status_text(word),
        _ => {
            let text = if word.text.is_empty() { String::new() } else { format!(": {}", word.text) };
            format!("# {} ({}){text}\n\n{title}. {}\n", word.name, word.value, word.means)
        }
    }
}

/// A status, and the reasons that end requests with it.
fn status_text(status: &Word) -> String {
    let Word { name, value, text, means } = status;
    let mut text = format!("# {name} ({value}): {text}\n\n{means}\n");
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
    for (title, words) in WORDS {
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
    fn a_bare_number_has_all_its_meanings() {
        let text = text_of("12").expect("a number");
        assert!(text.starts_with("12 has "), "{text}");
        for part in
            ["IBV_WC_RETRY_EXC_ERR (12)", "- FC010: ", "ENOMEM (12)", "FC012", "RDMA_CM_EVENT_MULTICAST_JOIN"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        for (word, part) in [
            ("4", "IBV_WC_LOC_PROT_ERR"),
            ("8", "IB_CM_REJ_INVALID_SERVICE_ID"),
            ("-110", "# ETIMEDOUT (110)"),
            ("0xfc012", "# FC012"),
            ("1032210", "# FC012"),
        ] {
            assert!(text_of(word).expect(word).contains(part), "{word}");
        }
        assert_eq!(text_of("-7777"), None);
    }

    #[test]
    fn texts_and_events_are_explained() {
        for (word, part) in [
            ("remote access error", "# IBV_WC_REM_ACCESS_ERR (10)"),
            ("Transport retry counter exceeded", "# IBV_WC_RETRY_EXC_ERR (12)"),
            ("RDMA_CM_EVENT_REJECTED", "28: the program at the peer"),
            ("rejected", "# RDMA_CM_EVENT_REJECTED"),
            ("IBV_EVENT_QP_FATAL", "The QP is in ERR"),
            ("ETIMEDOUT", "no neighbour answers"),
            ("Connection refused", "# ECONNREFUSED (111)"),
        ] {
            assert!(text_of(word).expect(word).contains(part), "{word}");
        }
    }

    #[test]
    fn a_misspelt_word_finds_the_one_that_was_meant() {
        assert_eq!(nearest("IBV_WC_RETRY_EXC_ER", names()), Some("IBV_WC_RETRY_EXC_ERR"));
        assert_eq!(nearest("EINVALL", names()), Some("EINVAL"));
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
