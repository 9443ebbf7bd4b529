//! What the man pages of rdma-core's libibverbs and librdmacm document, and what checks it: `tests/conformance/pages.tsv`.

use std::collections::BTreeSet;

/// One fact: a return value, an errno, a completion status or event, a flag, a limit or another rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fact {
    /// The man page; `-` where a function has none.
    pub page: &'static str,
    /// The function, or the program of a page of section 1.
    pub function: &'static str,
    /// `return`, `errno`, `status`, `flag`, `limit` or `rule`.
    pub kind: &'static str,
    /// What the page says, in our words.
    pub what: &'static str,
    /// What checks it.
    pub check: Check,
}

/// What checks a fact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// A check that a program of the conformance suite prints.
    Program {
        /// The program.
        program: &'static str,
        /// The check's name.
        name: &'static str,
    },
    /// A test elsewhere.
    Elsewhere {
        /// Its file, in the repository.
        file: &'static str,
        /// A name in that file.
        name: &'static str,
    },
    /// The fact doesn't apply to this device; why.
    NotApplicable(&'static str),
}

impl Fact {
    /// Something checks it.
    #[must_use]
    pub fn is_checked(&self) -> bool {
        !matches!(self.check, Check::NotApplicable(_))
    }

    /// The program of the conformance suite that checks it.
    #[must_use]
    pub fn program(&self) -> Option<&'static str> {
        match self.check {
            Check::Program { program, .. } => Some(program),
            Check::Elsewhere { .. } | Check::NotApplicable(_) => None,
        }
    }
}

/// Every fact, page by page.
///
/// # Panics
/// A line of the table hasn't six fields, or two say the same.
#[must_use]
pub fn facts() -> Vec<Fact> {
    let table = include_str!("../conformance/pages.tsv");
    let facts: Vec<Fact> = table.lines().filter(|line| !line.starts_with('#')).map(fact).collect();
    let mut seen = BTreeSet::new();
    for fact in &facts {
        let new = seen.insert((fact.page, fact.function, fact.kind, fact.what));
        assert!(new, "pages.tsv says twice: {} {}: {}", fact.page, fact.function, fact.what);
    }
    facts
}

fn fact(line: &'static str) -> Fact {
    let fields: Vec<&str> = line.split('\t').collect();
    let [page, function, kind, what, place, name] = fields[..] else {
        panic!("pages.tsv: not six fields: {line}");
    };
    let kinds = ["return", "errno", "status", "flag", "limit", "rule"];
    assert!(kinds.contains(&kind), "pages.tsv: {kind} is no kind of fact: {line}");
    let check = match place {
        "-" => Check::NotApplicable(name),
        file if file.contains('/') => Check::Elsewhere { file, name },
        program => Check::Program { program, name },
    };
    Fact { page, function, kind, what, check }
}
