//! What the man pages of rdma-core's libibverbs and librdmacm document, and what checks it: `tests/conformance/pages.tsv`. And which
//! programs the pages of `docs/errors` name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// One fact: a return value, an errno, a completion status or event, a flag, a limit or another rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fact {
    /// The man page; `-` where a function has none.
    pub page: &'static str,
    /// The function, or the program of a page of section 1.
    pub function: &'static str,
    /// `return`, `errno`, `status`, `flag`, `limit` or `rule`.
    pub kind: &'static str,
    /// The fact itself, in our words.
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
/// A line of the table hasn't six fields, or two contain the same fact.
#[must_use]
pub fn facts() -> Vec<Fact> {
    let table = include_str!("../conformance/pages.tsv");
    let facts: Vec<Fact> = table.lines().filter(|line| !line.starts_with('#')).map(fact).collect();
    let mut seen = BTreeSet::new();
    for fact in &facts {
        let new = seen.insert((fact.page, fact.function, fact.kind, fact.what));
        assert!(new, "pages.tsv contains a fact twice: {} {}: {}", fact.page, fact.function, fact.what);
    }
    facts
}

fn fact(line: &'static str) -> Fact {
    let fields: Vec<&str> = line.split('\t').collect();
    let [page, function, kind, what, place, name] = fields[..] else {
        panic!("pages.tsv: not six fields: {line}");
    };
    let kinds = ["return", "errno", "status", "flag", "limit", "rule"];
    assert!(kinds.contains(&kind), "pages.tsv: {kind} isn't a kind of fact: {line}");
    let check = match place {
        "-" => Check::NotApplicable(name),
        file if file.contains('/') => Check::Elsewhere { file, name },
        program => Check::Program { program, name },
    };
    Fact { page, function, kind, what, check }
}

/// The program that a page of `docs/errors` names.
#[derive(Debug)]
pub struct ErrorProgram {
    /// The page's number: 34 of FC034.
    pub number: u16,
    /// As [`crate::Artifacts::c_program`] takes it.
    pub program: String,
    /// The case of the program.
    pub case: String,
    /// The option of `ferroce run` that it needs.
    pub option: Option<String>,
}

/// The programs that pages of `docs/errors` name, by number. A page may name none.
///
/// # Panics
/// A page has neither.
#[must_use]
pub fn error_programs() -> Vec<ErrorProgram> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors");
    let files = fs::read_dir(folder).expect("docs/errors").map(|entry| entry.expect("an entry").path());
    let mut programs: Vec<_> = files
        .filter_map(|path| {
            let number = path.file_stem()?.to_str()?.strip_prefix("FC")?.parse().ok()?;
            let text = fs::read_to_string(&path).expect("a page");
            let (_, says) =
                text.split_once("## A program that causes it\n\n").expect("a page names its program");
            let mut words = says.split('`').skip(1).step_by(2);
            let Some(source) = words.next() else {
                assert!(says.starts_with("None: "), "{says}");
                return None;
            };
            let program = source.strip_prefix("tests/c/")?.strip_suffix(".c")?.to_owned();
            let case = words.next()?.to_owned();
            Some(ErrorProgram { number, program, case, option: words.next().map(str::to_owned) })
        })
        .collect();
    programs.sort_by_key(|program| program.number);
    programs
}
