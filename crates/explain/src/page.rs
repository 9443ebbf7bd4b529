//! The page of a reason or a finding, for `ferroce explain` and `docs/errors`.

use crate::findings::{ALWAYS_REPORTED, IN_DOUBT};
use crate::{Explanation, id, programs};
use ferroce_types::vendor_err;
use std::fmt::Write as _;

/// Columns of a line.
const WIDTH: usize = 120;

/// Text in lines.
fn filled(text: &str) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let len = word.chars().count();
        if column > 0 && column + 1 + len > WIDTH {
            lines.push('\n');
            column = 0;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += len;
    }
    lines
}

/// The page of a reason, in Markdown.
#[must_use]
pub fn page(entry: &Explanation) -> String {
    let mut title = entry.title.to_owned();
    if let Some(first) = title.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let mut page = format!("# {}: {title}\n\n{}\n", id(entry.number), filled(entry.means));
    // Writing to a string doesn't fail.
    let _ = write!(
        page,
        "\n## How to find the cause\n\n{}\n\n## The fix\n\n{}\n",
        filled(entry.see),
        filled(entry.fix)
    );
    let code = vendor_err(entry.number);
    let statuses = match entry.statuses {
        [] if entry.number == ALWAYS_REPORTED => {
            "`ferroce run` reports it, with `--check` as a finding. No request fails because of it.".to_owned()
        }
        [] if entry.number == IN_DOUBT => {
            "`ferroce run --check` reports it, and `--check=fatal` doesn't end the process for it. No request fails because of it."
                .to_owned()
        }
        [] if entry.is_finding() => "`ferroce run --check` reports it. No request fails because of it.".to_owned(),
        [] => "No request fails because of it: messages are dropped.".to_owned(),
        statuses => format!("Completions: {}, with `vendor_err` {code:#x} ({code}).", statuses.join(", ")),
    };
    let _ = write!(page, "\n## Where it is reported\n\n{}\n", filled(&statuses));
    let _ = write!(page, "\n## A program that causes it\n\n{}\n", filled(&programs::sentence(entry.number)));
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::all;
    use std::collections::BTreeMap;
    use std::path::Path;

    const INTRODUCTION: &str = "\
# Why requests fail, and what `--check` finds

A page for each reason and each finding (from FC100 on), generated from the catalogue (`crates/explain/src`). `ferroce explain FC034` prints
the same page, `ferroce explain` the list, and `ferroce explain IBV_WC_RETRY_EXC_ERR` the reasons of a status.
Each page names a small program of the tests that makes the mistake.
[How reasons are found](../design/explain.md).

";

    fn index() -> String {
        let line = |entry: &Explanation| format!("- [{0}]({0}.md): {1}\n", id(entry.number), entry.title);
        std::iter::once(INTRODUCTION.to_owned()).chain(all().map(line)).collect()
    }

    /// With FERROCE_WRITE_PAGES=1 the test writes the pages.
    #[test]
    fn the_pages_of_docs_are_those_of_the_catalogue() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        let of_entries = all().map(|entry| (format!("{}.md", id(entry.number)), page(entry)));
        let pages: BTreeMap<_, _> = of_entries.chain([("README.md".to_owned(), index())]).collect();
        if std::env::var_os("FERROCE_WRITE_PAGES").is_some() {
            std::fs::create_dir_all(&folder).expect("docs");
            for (name, text) in &pages {
                std::fs::write(folder.join(name), text).expect("a page");
            }
        }
        let there =
            std::fs::read_dir(&folder).expect("docs/errors").map(|entry| entry.expect("an entry").path());
        let there: BTreeMap<_, _> = there
            .map(|path| {
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                (name, std::fs::read_to_string(&path).expect("a page"))
            })
            .collect();
        assert!(pages == there, "run this test with FERROCE_WRITE_PAGES=1, and look at the difference");
    }
}
