//! The output of a verbose run of Python's unittest, test by test.

use std::collections::BTreeMap;

/// How a test ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Passed,
    /// With the reason that the test gives.
    Skipped(String),
    Failed,
}

/// Verdicts by full name (`tests.test_qp.QPTest.test_query_rc_qp`).
#[derive(Debug, Default)]
pub struct Report {
    pub verdicts: BTreeMap<String, Verdict>,
    /// As the run itself counts.
    pub ran: usize,
}

impl Report {
    /// Reads what a run has written to its standard error. Lines of the library under test may stand between.
    pub fn read(output: &str) -> Self {
        let mut report = Self::default();
        let mut current: Option<String> = None;
        for line in output.lines() {
            if let Some(count) = line.strip_prefix("Ran ").and_then(|rest| rest.split(' ').next()) {
                report.ran = count.parse().unwrap_or(0);
                break;
            }
            if let Some(name) = test_name(line) {
                current = Some(name);
            }
            let Some(verdict) = verdict(line) else { continue };
            if let Some(name) = current.take() {
                report.verdicts.insert(name, verdict);
            }
        }
        report
    }

    /// Names of the tests that passed.
    pub fn passed(&self) -> impl Iterator<Item = &str> {
        self.with(|verdict| *verdict == Verdict::Passed)
    }

    /// Names of the tests that failed.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        self.with(|verdict| *verdict == Verdict::Failed)
    }

    /// Names and reasons of the tests that were skipped.
    pub fn skipped(&self) -> impl Iterator<Item = (&str, &str)> {
        self.verdicts.iter().filter_map(|(name, verdict)| match verdict {
            Verdict::Skipped(reason) => Some((name.as_str(), reason.as_str())),
            _ => None,
        })
    }

    fn with(&self, wanted: impl Fn(&Verdict) -> bool) -> impl Iterator<Item = &str> {
        self.verdicts.iter().filter(move |(_, verdict)| wanted(verdict)).map(|(name, _)| name.as_str())
    }
}

/// `test_x (tests.test_y.Class.test_x)`, or without the last part in older versions of Python.
fn test_name(line: &str) -> Option<String> {
    let (function, rest) = line.split_once(" (tests.")?;
    let (path, _) = rest.split_once(')')?;
    if !function.starts_with("test_") || function.contains(' ') {
        return None;
    }
    let path = path.strip_suffix(function).and_then(|path| path.strip_suffix('.')).unwrap_or(path);
    Some(format!("tests.{path}.{function}"))
}

fn verdict(line: &str) -> Option<Verdict> {
    let said = line.rsplit_once(" ... ").map_or(line, |(_, said)| said);
    match said {
        "ok" => Some(Verdict::Passed),
        "FAIL" | "ERROR" => Some(Verdict::Failed),
        _ => {
            let reason = said.strip_prefix("skipped ")?;
            Some(Verdict::Skipped(reason.trim_matches(['\'', '"']).into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_found_whatever_stands_between() {
        let output = "\
test_a (tests.test_x.X.test_a) ... ok
test_b (tests.test_x.X.test_b)
What it does. ... ferroce: a remark
ok
test_c (tests.test_x.X.test_c)
What it does. ... skipped 'for a reason'
test_d (tests.test_x.X) ... ERROR
test_e (tests.test_x.X) ... ferroce: a remark
FAIL

----------------------------------------------------------------------
Ran 5 tests in 0.1s
";
        let report = Report::read(output);
        assert_eq!(report.ran, 5);
        assert_eq!(report.passed().collect::<Vec<_>>(), ["tests.test_x.X.test_a", "tests.test_x.X.test_b"]);
        assert_eq!(report.failed().collect::<Vec<_>>(), ["tests.test_x.X.test_d", "tests.test_x.X.test_e"]);
        assert_eq!(report.skipped().collect::<Vec<_>>(), [("tests.test_x.X.test_c", "for a reason")]);
    }
}
