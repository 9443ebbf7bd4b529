//! Tests that hold `docs/` and the book to the code: what the pages name exists, and the first page stays a page.
//!
//! Here: paths, links, names of tests, lengths. Not here: the table of locks (`os`, beside the order), generated pages, what
//! is typed in the book (`tests/tests/book`).

use crate::workspace;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Pages that `xtask` and the tests write.
const GENERATED: [&str; 5] = ["COMPATIBILITY.md", "CONFORMANCE.md", "MATRIX.md", "PERFTEST.md", "pyverbs.md"];
/// Where paths begin, as pages write them.
const ROOTS: [&str; 6] = ["crates/", "tests/", "xtask/", "docs/", "fuzz/", ".ci/"];
/// How the book, which is read elsewhere, links to our files.
const SOURCES: &str = "https://github.com/ferroce/ferroce/blob/main/";
/// Columns of a line in a page that people write.
const LONGEST_LINE: usize = 160;
const LONGEST_GLOSSARY: usize = 25;
/// Words of the README.
const LONGEST_README: usize = 700;
/// Lines of the changelog, all versions together, until there are several.
const LONGEST_CHANGELOG: usize = 60;

/// A page, and its text.
struct Page {
    path: PathBuf,
    text: String,
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, text }
    }

    fn name(&self) -> String {
        self.path.strip_prefix(workspace()).expect("a page of the workspace").display().to_string()
    }

    fn is_generated(&self) -> bool {
        GENERATED.iter().any(|name| self.path.ends_with(name))
    }

    /// The lines outside of blocks of code, each with its number.
    fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut code = false;
        (1..).zip(self.text.lines()).filter(move |(_, line)| {
            let fence = line.trim_start().starts_with("```");
            code ^= fence;
            !fence && !code
        })
    }

    /// What the page's headings are called in links.
    fn anchors(&self) -> BTreeSet<String> {
        let headings = self.prose().filter(|(_, line)| line.starts_with('#'));
        headings.map(|(_, line)| anchor(line.trim_start_matches('#').trim())).collect()
    }

    /// The part of the page under a heading.
    fn section(&self, heading: &str) -> &str {
        let (_, rest) = self.text.split_once(&format!("\n## {heading}\n")).expect("the heading");
        rest.split_once("\n## ").map_or(rest, |(section, _)| section)
    }
}

/// A heading as links name it: small letters, no punctuation, hyphens for spaces.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// All files under a directory with this ending.
fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a directory").map(|entry| entry.expect("an entry")) {
            let kind = entry.file_type().expect("its type");
            if kind.is_dir() && entry.file_name() != "target" {
                directories.push(entry.path());
            } else if kind.is_file() && entry.path().extension().is_some_and(|found| found == ending) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

fn pages() -> Vec<Page> {
    files(&workspace().join("docs"), "md").into_iter().map(Page::read).collect()
}

fn pages_of_the_book() -> Vec<Page> {
    files(&workspace().join("book/src"), "md").into_iter().map(Page::read).collect()
}

/// What stands in backticks in a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The targets of links in a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

fn expect_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn pages_name_files_that_exist_by_their_whole_paths() {
    let mut complaints = Vec::new();
    for page in pages().iter().filter(|page| !page.is_generated()) {
        // Held by a test of its own, which has another form.
        let of_locks = page.path.ends_with("locks.md");
        for (number, line) in page.prose() {
            for word in quoted(line).filter(|word| !word.contains([' ', '*', '…'])) {
                let whole = ROOTS.iter().any(|root| word.starts_with(root));
                if whole && !workspace().join(word).exists() {
                    complaints.push(format!("{}:{number}: {word} doesn't exist", page.name()));
                }
                if !whole && word.ends_with(".rs") && !of_locks {
                    complaints.push(format!("{}:{number}: {word} isn't a whole path", page.name()));
                }
            }
        }
    }
    expect_none(&complaints);
}

/// "`NAME` in `FILE`" and "`NAME` (`FILE`)".
#[test]
fn names_that_pages_place_in_a_file_are_there() {
    let mut complaints = Vec::new();
    let mut placed = 0;
    for page in pages().iter().filter(|page| !page.is_generated()) {
        let prose: Vec<&str> = page.prose().map(|(_, line)| line.trim()).collect();
        let text = prose.join(" ");
        let parts: Vec<&str> = text.split('`').collect();
        for three in parts.windows(3).skip(1).step_by(2) {
            let [name, between, file] = three else { continue };
            let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '!');
            if is_name && matches!(*between, " in " | " (") && file.ends_with(".rs") {
                placed += 1;
                let text = fs::read_to_string(workspace().join(file)).unwrap_or_default();
                if !text.contains(name.trim_end_matches('!')) {
                    complaints.push(format!("{}: {file} has no {name}", page.name()));
                }
            }
        }
    }
    expect_none(&complaints);
    assert!(placed > 10, "{placed}");
}

#[test]
fn links_of_pages_lead_somewhere() {
    let mut complaints = Vec::new();
    let names = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"];
    let at_the_root = names.map(|name| Page::read(workspace().join(name)));
    for page in pages().iter().chain(&at_the_root).chain(&pages_of_the_book()) {
        for (number, line) in page.prose() {
            for target in links(line) {
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let to = match (file, file.strip_prefix(SOURCES)) {
                    ("", _) => page.path.clone(),
                    (_, Some(ours)) => workspace().join(ours),
                    (file, None) if file.contains("://") => continue,
                    (file, None) => page.path.parent().expect("a directory").join(file),
                };
                let leads = to.exists() && (heading.is_empty() || Page::read(to).anchors().contains(heading));
                if !leads {
                    complaints.push(format!("{}:{number}: {target} leads nowhere", page.name()));
                }
            }
        }
    }
    expect_none(&complaints);
}

#[test]
fn tests_that_prove_something_exist() {
    let mut tests = BTreeSet::new();
    for directory in ["crates", "tests", "xtask"] {
        for file in files(&workspace().join(directory), "rs") {
            let text = fs::read_to_string(file).expect("a source");
            let mut lines = text.lines().map(str::trim);
            while lines.any(|line| line == "#[test]") {
                let Some(function) = lines.by_ref().find(|line| !line.starts_with("#[")) else { break };
                let name = function.strip_prefix("fn ").and_then(|rest| rest.split_once('('));
                tests.extend(name.map(|(name, _)| name.to_owned()));
            }
            // Those that a macro makes of a list: `name: body;`.
            let cases = text.split("cases! {").skip(1).filter_map(|rest| rest.split_once("\n}"));
            let names =
                cases.flat_map(|(list, _)| list.lines()).filter_map(|line| line.trim().split_once(':'));
            tests.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
    // Cases of C programs.
    for file in files(&workspace().join("tests"), "c") {
        let text = fs::read_to_string(file).expect("a source");
        let cases = text.split("CASE(").skip(1).filter_map(|rest| rest.split_once(')'));
        tests.extend(cases.map(|(name, _)| name.to_owned()));
    }
    let mut complaints = Vec::new();
    let mut named = 0;
    for page in pages() {
        for proof in page.text.split("Proven by:").skip(1) {
            // Up to the end of the sentence, which no name contains.
            let (names, _) = proof.split_once('.').expect("a full stop");
            for name in quoted(names) {
                named += 1;
                if !tests.contains(name) {
                    complaints.push(format!("{}: there is no test {name}", page.name()));
                }
            }
        }
    }
    expect_none(&complaints);
    assert!(named > 10, "{named}");
}

#[test]
fn the_first_page_has_a_short_glossary_and_every_other_page() {
    let first = Page::read(workspace().join("docs/README.md"));
    let words = first.section("Glossary").lines().filter(|line| line.starts_with("| ")).skip(1);
    assert!((1..=LONGEST_GLOSSARY).contains(&words.count()));

    let decisions = Page::read(workspace().join("docs/decisions/README.md"));
    let errors = Page::read(workspace().join("docs/errors/README.md"));
    let mut complaints = Vec::new();
    for page in pages() {
        let file = page.path.file_name().expect("a name").to_string_lossy().into_owned();
        let link = match page.path.parent() {
            Some(parent) if parent.ends_with("design") => first.text.contains(&format!("(design/{file})")),
            Some(parent) if parent.ends_with("decisions") && file != "README.md" => {
                decisions.text.contains(&format!("({file})"))
            }
            Some(parent) if parent.ends_with("errors") && file != "README.md" => {
                errors.text.contains(&format!("({file})"))
            }
            _ => file == "README.md" || first.text.contains(&format!("({file})")),
        };
        if !link {
            complaints.push(format!("{} isn't listed", page.name()));
        }
    }
    expect_none(&complaints);
}

#[test]
fn the_readme_and_the_changelog_are_short() {
    let words = Page::read(workspace().join("README.md")).text.split_whitespace().count();
    assert!(words <= LONGEST_README, "{words} words");
    let lines = Page::read(workspace().join("CHANGELOG.md")).text.lines().count();
    assert!(lines <= LONGEST_CHANGELOG, "{lines} lines");
}

#[test]
fn the_first_page_names_every_crate() {
    let first = Page::read(workspace().join("docs/README.md"));
    let table = first.section("Crates");
    let crates = workspace().join("crates");
    let missing: Vec<_> = files(&crates, "toml")
        .iter()
        .filter_map(|manifest| manifest.parent()?.strip_prefix(&crates).ok()?.to_str().map(str::to_owned))
        .filter(|name| !table.contains(&format!("| `{name}` |")))
        .collect();
    expect_none(&missing);
}

#[test]
fn lines_of_pages_fit_a_screen() {
    let mut complaints = Vec::new();
    for page in pages().iter().filter(|page| !page.is_generated()).chain(&pages_of_the_book()) {
        // Rows of their tables are as wide as they need to be.
        let rows = page.path.ends_with("locks.md") || page.path.ends_with("design/host.md");
        for (number, line) in (1..).zip(page.text.lines()) {
            let columns = line.chars().count();
            if columns > LONGEST_LINE && !(rows && line.starts_with('|')) {
                complaints.push(format!("{}:{number}: {columns} columns", page.name()));
            }
        }
    }
    expect_none(&complaints);
}

#[test]
fn the_book_lists_its_pages() {
    let summary = Page::read(workspace().join("book/src/SUMMARY.md"));
    let listed: BTreeSet<&str> = summary.text.lines().flat_map(links).collect();
    let mut complaints = Vec::new();
    for page in pages_of_the_book().iter().filter(|page| !page.path.ends_with("SUMMARY.md")) {
        let name = page.path.strip_prefix(workspace().join("book/src")).expect("a page of the book");
        if !listed.contains(&*name.to_string_lossy()) {
            complaints.push(format!("SUMMARY.md doesn't list {}", name.display()));
        }
    }
    expect_none(&complaints);
}

#[test]
fn the_book_names_each_variable() {
    let page = Page::read(workspace().join("book/src/reference.md"));
    let mut named = 0;
    for file in ["crates/parts/src", "crates/udp/src", "crates/access/src", "crates/netdev/src"]
        .iter()
        .flat_map(|folder| files(&workspace().join(folder), "rs"))
    {
        let text = fs::read_to_string(file).expect("a source");
        for line in
            text.lines().filter(|line| line.starts_with("pub const ") && line.contains("= \"FERROCE_"))
        {
            let name = line.split('"').nth(1).expect("a string");
            named += 1;
            assert!(page.text.contains(&format!("| `{name}` |")), "reference.md doesn't have {name}");
        }
    }
    assert!(named >= 7, "{named}");
}

/// A setuid program ignores its environment: `ferroce_os::setting` sees to that, and nothing else reads variables in a library.
#[test]
fn libraries_read_variables_by_setting_alone() {
    // Files outside of a running library (builds, tests), libraries that setuid programs don't load (preloaded ones), and files that
    // check the program's privileges themselves.
    let others = [
        "crates/os/src/setting.rs",
        "crates/capi/entry/src/log.rs",
        "crates/capi/entry/src/call.rs",
        "crates/capi/link/machine.rs",
        "crates/explain/src/page.rs",
        "crates/rsocket/preload/src/forking.rs",
        "crates/rsocket/preload/src/rsocket.rs",
        "crates/sim/src/explore.rs",
        "crates/system/src/library.rs",
        "crates/udp/src/tap/mod.rs",
    ];
    let mut read = BTreeSet::new();
    for file in files(&workspace().join("crates"), "rs") {
        let name = file.strip_prefix(workspace()).expect("a file of the workspace").display().to_string();
        let is_command = ["crates/cli/", "crates/doctor/"].iter().any(|of| name.starts_with(of));
        let is_library = !is_command && !name.contains("/tests/");
        let text = fs::read_to_string(&file).expect("a source");
        if is_library && ["env::var", "getenv("].iter().any(|call| text.contains(call)) {
            read.insert(name);
        }
    }
    assert_eq!(read, others.map(str::to_owned).into());
}

#[test]
fn headings_are_linked_as_they_are_shown() {
    assert_eq!(anchor("Keys and gates"), "keys-and-gates");
    assert_eq!(anchor("Entries in `/sys` and `/dev`"), "entries-in-sys-and-dev");
}
