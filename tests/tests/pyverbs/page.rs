//! `docs/pyverbs.md`: what is skipped, and why.

use crate::report::Report;
use crate::{User, is_of_vendor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const HEAD: &str = "\
# rdma-core's own tests

The Python tests of rdma-core, as Debian ships them in `python3-pyverbs`, run unmodified on Ferroce: `cargo xtask test pyverbs`. This page is
written by that test (`cargo xtask pyverbs`), and it is the list of tests that may be skipped: one that fails, or is skipped without being listed
here, fails the project's tests. The suite runs as an ordinary user and as root of the host's network, on the default fabric and with
`FERROCE_FABRIC=udp`; the tests of reliable connections run once more with 1 % of all packets lost.
";

/// The tests of any adapter that were skipped, with the suite's reason, by user.
#[derive(Debug, Default)]
pub struct Page {
    skipped: BTreeSet<(User, String, String)>,
    counts: BTreeMap<User, [usize; 3]>,
}

impl Page {
    /// Takes in a run.
    pub fn add(&mut self, user: User, report: &Report) {
        let (vendors, others): (Vec<_>, Vec<_>) = report.skipped().partition(|(name, _)| is_of_vendor(name));
        self.counts.insert(user, [report.passed().count(), others.len(), vendors.len()]);
        self.skipped.extend(others.into_iter().map(|(name, reason)| (user, name.into(), reason.into())));
    }

    /// Whether a test may be skipped for this reason.
    pub fn lists(&self, user: User, name: &str, reason: &str) -> bool {
        self.skipped.contains(&(user, name.into(), reason.into()))
    }

    /// The page's text.
    pub fn write(&self) -> String {
        let mut page = String::from(HEAD);
        page.push_str(
            "\n| | passed | skipped | failed | other vendors' tests, all skipped |\n|---|---|---|---|---|\n",
        );
        for (user, [passed, skipped, vendors]) in &self.counts {
            writeln!(page, "| {} | {passed} | {skipped} | 0 | {vendors} |", title(*user)).expect("a string");
        }
        for user in self.counts.keys() {
            let rows = self.skipped.iter().filter(|(of, ..)| of == user);
            writeln!(
                page,
                "\n## Skipped as {}\n\n| test | the suite's reason | because |\n|---|---|---|",
                title(*user)
            )
            .expect("a string");
            for (_, name, reason) in rows {
                writeln!(page, "| `{name}` | {reason} | {} |", because(reason)).expect("a string");
            }
        }
        page
    }

    /// Reads what `write` has written.
    pub fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut user = None;
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("## Skipped as ") {
                user = [User::Ordinary, User::Root].into_iter().find(|user| title(*user) == heading);
            }
            let cells: Vec<&str> = line.split(" | ").collect();
            if let (Some(user), [name, reason, _]) = (user, &cells[..])
                && let Some(name) = name.strip_prefix("| `").and_then(|name| name.strip_suffix('`'))
            {
                page.skipped.insert((user, name.into(), (*reason).into()));
            }
        }
        page
    }
}

fn title(user: User) -> &'static str {
    match user {
        User::Ordinary => "an ordinary user",
        User::Root => "root",
    }
}

/// What lies behind a reason of the suite.
fn because(reason: &str) -> &'static str {
    if reason.contains("/dev/dri") {
        "the test allocates its memory from a graphics card"
    } else if reason.contains("huge pages") {
        "the machine has no huge pages set up"
    } else if reason.contains("Converting timestamp") {
        "only libmlx5 converts the clock of mlx5's adapters"
    } else if reason.contains("by root") {
        "raw packets need CAP_NET_RAW"
    } else {
        "not supported yet"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut page = Page::default();
        let output = "test_a (tests.x.X.test_a) ... skipped 'no | such \"thing\"'\ntest_b (tests.x.X.test_b) ... ok\nRan 2 tests";
        page.add(User::Root, &Report::read(&output.replace(" | ", " ")));
        let read = Page::read(&page.write());
        assert!(read.lists(User::Root, "tests.x.X.test_a", "no such \"thing"));
        assert!(!read.lists(User::Ordinary, "tests.x.X.test_a", "no such \"thing"));
        assert!(!read.lists(User::Root, "tests.x.X.test_b", ""));
    }
}
