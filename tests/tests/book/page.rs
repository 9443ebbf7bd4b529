//! A page of the book: what is typed on it, what else it shows, and its pictures of messages.

use ferroce_tests::Outcome;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Stands for whatever comes there; on a line of its own, for any lines.
const ANYTHING: char = '…';

pub struct Page {
    pub transcripts: Vec<Transcript>,
    /// The blocks that aren't typed.
    pub others: Vec<Block>,
    /// `pictures/NAME.svg` for which the page makes `NAME.pcapng`, without `.svg`.
    pub pictures: Vec<String>,
}

/// A block of `console`: lines that begin with `$ ` are typed, the others are the output.
pub struct Transcript {
    lines: Vec<String>,
}

/// A block of something else.
pub struct Block {
    pub language: String,
    /// The files whose code the block contains, relative to the book: those of the line `<!-- code: FILE:PART … -->` above it.
    pub files: Vec<String>,
    pub text: String,
}

/// The pages, relative to `src`, in the order of their names.
pub fn names(book: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["", "hour/"] {
        for entry in fs::read_dir(book.join("src").join(folder)).expect("a directory of the book") {
            let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
            if name.ends_with(".md") {
                found.push(format!("{folder}{name}"));
            }
        }
    }
    found.sort();
    found
}

impl Page {
    pub fn read(book: &Path, name: &str) -> Self {
        let text = fs::read_to_string(book.join("src").join(name)).expect("a page");
        let mut page = Self { transcripts: Vec::new(), others: Vec::new(), pictures: Vec::new() };
        let mut lines = text.lines();
        let mut files = Vec::new();
        while let Some(line) = lines.next() {
            if let Some(names) = line.strip_prefix("<!-- code: ").and_then(|rest| rest.strip_suffix(" -->")) {
                files =
                    names.split(' ').map(|name| name.split(':').next().unwrap_or(name).to_owned()).collect();
            } else if let Some(language) = line.strip_prefix("```") {
                let block: Vec<String> =
                    lines.by_ref().take_while(|line| *line != "```").map(str::to_owned).collect();
                let files = std::mem::take(&mut files);
                if language == "console" && files.is_empty() {
                    page.transcripts.push(Transcript { lines: block });
                } else {
                    let text = block.join("\n");
                    page.others.push(Block { language: language.into(), files, text });
                }
            } else if let Some((_, rest)) = line.split_once("pictures/")
                && let Some((name, _)) = rest.split_once(".svg)")
                && text.contains(&format!("{name}.pcapng"))
            {
                page.pictures.push(name.into());
            }
        }
        page
    }
}

impl Transcript {
    pub fn commands(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| line.strip_prefix("$ "))
    }

    /// The commands for `bash -e`: the last fails if one in the background has.
    pub fn script(&self) -> String {
        let typed: Vec<&str> = self.commands().collect();
        format!("{}\nfor job in $(jobs -p); do wait $job; done", typed.join("\n"))
    }

    /// The promised lines are parts of the output in this order, and one line of output may be several lines of the page.
    pub fn compare_wrapped(&self, outcome: &Outcome) -> Result<(), String> {
        let promised: Vec<&str> =
            self.lines.iter().map(|line| &**line).filter(|line| !line.starts_with("$ ")).collect();
        let promised = format!("{ANYTHING}{}{ANYTHING}", promised.join(&ANYTHING.to_string()));
        let said = format!("{} {}", outcome.stdout, outcome.stderr).lines().collect::<Vec<_>>().join(" ");
        if matches(&promised, &said) { Ok(()) } else { Err(format!("\"{promised}\" isn't in the output")) }
    }

    /// Two programs may speak at once: the lines are compared without regard to their order.
    pub fn compare(&self, outcome: &Outcome) -> Result<(), String> {
        let promised: Vec<&str> =
            self.lines.iter().map(|line| &**line).filter(|line| !line.starts_with("$ ")).collect();
        let said: Vec<&str> =
            outcome.stdout.lines().chain(outcome.stderr.lines()).filter(|line| !line.is_empty()).collect();
        let anything = ANYTHING.to_string();
        for line in promised.iter().filter(|line| !line.is_empty() && **line != anything) {
            if !said.iter().any(|said| matches(line, said)) {
                return Err(format!("\"{line}\" isn't in the output"));
            }
        }
        match said.iter().find(|said| !promised.iter().any(|line| matches(line, said))) {
            Some(more) => Err(format!("\"{more}\" is in the output, too")),
            None => Ok(()),
        }
    }
}

/// Whether a line is the promised one, in which [`ANYTHING`] stands for anything.
fn matches(promised: &str, said: &str) -> bool {
    let mut parts = promised.split(ANYTHING);
    let Some(mut rest) = parts.next().and_then(|first| said.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    true
}

/// Copies the programs to a directory in which any user may write.
pub fn lay_out(programs: &Path, to: &Path) {
    fs::create_dir(to).expect("the host's directory for temporary files");
    fs::set_permissions(to, fs::Permissions::from_mode(0o777)).expect("our own directory");
    for entry in fs::read_dir(programs).expect("the programs") {
        let entry = entry.expect("an entry");
        let copy = to.join(entry.file_name());
        fs::copy(entry.path(), &copy).expect("a file can be copied");
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o644)).expect("our own file");
    }
}

#[test]
fn dots_stand_for_anything() {
    assert!(matches("a … c … e", "a bb c d e"));
    assert!(matches("…", "whatever") && matches("a…", "a") && matches("same", "same"));
    assert!(!matches("a … c", "a b d") && !matches("same", "same and more") && !matches("a…b", "c b"));
}
