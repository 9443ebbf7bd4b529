//! The rules, by their numbers in CONTRIBUTING.md.

use super::text::Paragraph;
use regex::Regex;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use syn::visit::{self, Visit};

/// Lines above a fence on which its comment may begin.
const COMMENT_ABOVE: usize = 8;

/// A sentence, fence or type against a rule.
#[derive(Clone, Debug)]
pub struct Finding {
    pub rule: u32,
    pub file: PathBuf,
    pub line: usize,
    /// The words, or the type's name.
    pub words: String,
}

impl Finding {
    /// What the list of exceptions counts by.
    pub fn key(&self) -> (u32, String) {
        let what = if self.rule == 10 { self.words.clone() } else { self.file.display().to_string() };
        (self.rule, what)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: rule {}: {}", self.file.display(), self.line, self.rule, self.words)
    }
}

/// Words that break a rule in any sentence: the rule's number, the pattern, and a pattern that the words around must not have.
static PATTERNS: LazyLock<Vec<(u32, Regex)>> = LazyLock::new(|| {
    let pattern = |rule, pattern: &str| (rule, Regex::new(pattern).expect("a pattern"));
    vec![
        // A sentence or clause whose subject is a person that the text doesn't name. A question may begin with "Who".
        pattern(1, r"(?i)\b(whoever|whomever|nobody|somebody|no one|everybody)\b"),
        pattern(1, r"(?:^|[.;:] )Who\b[^.?!]*(?:[.!;:]|$)"),
        pattern(1, r"[;:(] ?who \w+"),
        pattern(1, r", who (?:asks|has|is|reads|wants|waits|comes|sends|goes|does|knows)\b[^,]*,"),
        pattern(1, r"\b(?:and|at|but|by|for|from|in|of|on|or|than|to|with) who \w+"),
        pattern(2, r"(?i)\b(?:says?|said|tells?|told|hears?|heard)\b"),
        pattern(3, r"(?i)\bmend(?:s|ed|ing)?\b"),
        // "There is no", "is no longer" and "is no more than" are idiomatic.
        pattern(4, r"(?i)\S+ (?:is|are|was|were) no (?:[a-z-]+)"),
    ]
});

/// Matches if any of the patterns does: most paragraphs are read only once.
static ANY: LazyLock<Regex> = LazyLock::new(|| {
    let all: Vec<String> = PATTERNS.iter().map(|(_, pattern)| format!("(?:{pattern})")).collect();
    Regex::new(&all.join("|")).expect("a pattern")
});

static IDIOMS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)\b(?:there|here) (?:is|are|was|were) no |\bno (?:longer|more|less|fewer|greater|later|earlier|larger|smaller)\b").expect("a pattern")
});

/// Checks a paragraph.
pub fn sentences(file: &Path, paragraph: &Paragraph, findings: &mut Vec<Finding>) {
    if !ANY.is_match(&paragraph.text) {
        return;
    }
    for (rule, pattern) in PATTERNS.iter() {
        for found in pattern.find_iter(&paragraph.text) {
            if *rule == 4 && IDIOMS.is_match(found.as_str()) {
                continue;
            }
            findings.push(Finding {
                rule: *rule,
                file: file.to_owned(),
                line: paragraph.line(found.start()),
                words: around(&paragraph.text, found.start(), found.end()),
            });
        }
    }
}

/// The words with some of what surrounds them.
fn around(text: &str, start: usize, end: usize) -> String {
    let from = text[..start].char_indices().rev().nth(30).map_or(0, |(at, _)| at);
    let to = text[end..].char_indices().nth(30).map_or(text.len(), |(at, _)| end + at);
    text[from..to].trim().to_owned()
}

/// Rule 9: a fence has a comment that names its partner.
pub fn fences(file: &Path, source: &str, findings: &mut Vec<Finding>) {
    let lines: Vec<&str> = source.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let is_fence = (code.contains("fence(") || code.contains("membarrier(")) && !code.contains("fn ");
        let named =
            || lines[index.saturating_sub(COMMENT_ABOVE)..=index].iter().any(|line| line.contains("SYNC:"));
        if is_fence && !named() {
            let words = code.trim().to_owned();
            findings.push(Finding { rule: 9, file: file.to_owned(), line: index + 1, words });
        }
    }
}

/// Rule 10: the types of all crates, with the places of their definitions.
#[derive(Default)]
pub struct Types {
    places: BTreeMap<String, Vec<(PathBuf, usize)>>,
}

impl Types {
    /// Adds the types that a file defines outside of its tests.
    pub fn read(&mut self, file: &Path, source: &str) -> syn::Result<()> {
        let mut visitor = Definitions { types: self, file };
        visitor.visit_file(&syn::parse_file(source)?);
        Ok(())
    }

    /// The types whose name is used more than once: a finding for each further place.
    pub fn repeated(self, findings: &mut Vec<Finding>) {
        for (name, places) in self.places {
            for (file, line) in places.into_iter().skip(1) {
                findings.push(Finding { rule: 10, file, line, words: name.clone() });
            }
        }
    }
}

struct Definitions<'a> {
    types: &'a mut Types,
    file: &'a Path,
}

impl Definitions<'_> {
    fn add(&mut self, name: &syn::Ident) {
        let place = (self.file.to_owned(), name.span().start().line);
        self.types.places.entry(name.to_string()).or_default().push(place);
    }
}

impl<'ast> Visit<'ast> for Definitions<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let test = |attribute: &syn::Attribute| {
            attribute.path().is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string().contains("test"))
        };
        if !module.attrs.iter().any(test) {
            visit::visit_item_mod(self, module);
        }
    }

    /// Types within a function have its scope.
    fn visit_block(&mut self, _: &'ast syn::Block) {}

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add(&item.ident);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add(&item.ident);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.add(&item.ident);
    }
}
