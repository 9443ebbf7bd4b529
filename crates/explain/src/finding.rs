//! A finding of the checker: its line, and its form in a report.

use crate::findings::IN_DOUBT;
use crate::{FINDINGS, entry, id};
use core::fmt;
use std::fmt::Write as _;
use std::path::Path;

/// A place in the program's code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodeLocation {
    /// A function, or a module with an offset in it.
    pub function: String,
    /// A source file and a line in it, where debugging information has them.
    pub source: Option<(String, u32)>,
}

/// A use of verbs that would fail on an adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its number in the catalogue.
    pub number: u16,
    /// The object, as `QP 0x000123`, or the call.
    pub about: String,
    /// Details.
    pub known: String,
    /// The place in the program.
    pub place: Option<CodeLocation>,
}

impl fmt::Display for CodeLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.function)?;
        self.source.as_ref().map_or(Ok(()), |(file, line)| write!(f, " ({file}:{line})"))
    }
}

impl Finding {
    /// False if a correct program may have this finding too.
    #[must_use]
    pub const fn is_certain(&self) -> bool {
        self.number != IN_DOUBT
    }

    /// Its text, without ID and fix.
    fn text(&self) -> String {
        let title = entry(self.number).map_or("", |entry| entry.title);
        let mut text = format!("{}: {title} ({}", self.about, self.known);
        if let Some(place) = &self.place {
            // Writing to a string doesn't fail.
            let _ = write!(text, "; at {place}");
        }
        text.push(')');
        text
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fix = entry(self.number).map_or("", |entry| entry.fix);
        write!(f, "{} {}. {fix}", id(self.number), self.text())
    }
}

/// The format of a report. A report is complete after each entry that is added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReportFormat {
    /// The lines.
    Text,
    /// An array of objects.
    Json,
    /// The Static Analysis Results Interchange Format, 2.1.0.
    Sarif,
}

impl ReportFormat {
    /// The format for a file's name: `.json`, `.sarif`, or text.
    #[must_use]
    pub fn of(file: &Path) -> Self {
        match file.extension().and_then(|end| end.to_str()) {
            Some("json") => Self::Json,
            Some("sarif") => Self::Sarif,
            _ => Self::Text,
        }
    }

    /// How a report begins.
    #[must_use]
    pub fn head(self) -> String {
        match self {
            Self::Text => String::new(),
            Self::Json => "[".to_owned(),
            Self::Sarif => sarif_head(),
        }
    }

    /// How a report ends; an entry is inserted before.
    #[must_use]
    pub const fn tail(self) -> &'static str {
        match self {
            Self::Text => "",
            Self::Json => "\n]\n",
            Self::Sarif => "\n]}]}\n",
        }
    }

    /// A finding of a process. `first`: it is the report's first.
    #[must_use]
    pub fn entry(self, finding: &Finding, process: (u32, &str), first: bool) -> String {
        let (pid, program) = process;
        let comma = if first { "\n" } else { ",\n" };
        let source = finding.place.as_ref().and_then(|place| place.source.as_ref());
        let number = id(finding.number);
        match self {
            Self::Text => format!("{program}[{pid}]: {finding}\n"),
            Self::Json => {
                let entry = entry(finding.number);
                let place = finding.place.as_ref().map_or("null".to_owned(), |place| {
                    let source = source.map_or(String::new(), |(file, line)| {
                        format!(", \"file\": {}, \"line\": {line}", quoted(file))
                    });
                    format!("{{\"function\": {}{source}}}", quoted(&place.function))
                });
                format!(
                    "{comma}{{\"id\": \"{number}\", \"title\": {}, \"about\": {}, \"known\": {}, \"place\": {place}, \
                     \"fix\": {}, \"pid\": {pid}, \"program\": {}}}",
                    quoted(entry.map_or("", |entry| entry.title)),
                    quoted(&finding.about),
                    quoted(&finding.known),
                    quoted(entry.map_or("", |entry| entry.fix)),
                    quoted(program),
                )
            }
            Self::Sarif => {
                let location = source.map_or(String::new(), |(file, line)| {
                    format!(
                        ", \"locations\": [{{\"physicalLocation\": {{\"artifactLocation\": {{\"uri\": {}}}, \
                         \"region\": {{\"startLine\": {line}}}}}}}]",
                        quoted(&uri(file))
                    )
                });
                let level = if finding.is_certain() { "error" } else { "warning" };
                format!(
                    "{comma}{{\"ruleId\": \"{number}\", \"level\": \"{level}\", \"message\": {{\"text\": {}}}{location}}}",
                    quoted(&format!("{program}[{pid}]: {}", finding.text()))
                )
            }
        }
    }
}

/// The tool and its rules, up to the results.
fn sarif_head() -> String {
    let rules: Vec<String> = FINDINGS
        .iter()
        .map(|entry| {
            format!(
                "{{\"id\": \"{}\", \"shortDescription\": {{\"text\": {}}}, \"fullDescription\": {{\"text\": {}}}, \
                 \"help\": {{\"text\": {}}}}}",
                id(entry.number),
                quoted(entry.title),
                quoted(entry.means),
                quoted(entry.fix)
            )
        })
        .collect();
    format!(
        "{{\"version\": \"2.1.0\", \"$schema\": \"https://json.schemastore.org/sarif-2.1.0.json\", \"runs\": [{{\"tool\": \
         {{\"driver\": {{\"name\": \"ferroce\", \"version\": \"{}\", \"rules\": [\n{}\n]}}}}, \"results\": [",
        env!("CARGO_PKG_VERSION"),
        rules.join(",\n")
    )
}

/// A file's name as a relative or absolute reference (RFC 3986).
fn uri(file: &str) -> String {
    let mut text = String::from(if file.starts_with('/') { "file://" } else { "" });
    for byte in file.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~+".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a string doesn't fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            // Writing to a string doesn't fail.
            c if c.is_control() => drop(write!(json, "\\u{:04x}", c as u32)),
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> Finding {
        Finding {
            number: 100,
            about: "QP 0x000123".into(),
            known: "17 of 16".into(),
            place: Some(CodeLocation { function: "main".into(), source: Some(("a \"b\".c".into(), 12)) }),
        }
    }

    #[test]
    fn a_line_names_object_place_and_fix() {
        assert_eq!(
            finding().to_string(),
            "FC100 QP 0x000123: more send requests are outstanding than the send queue holds (17 of 16; at main \
             (a \"b\".c:12)). Signal at least one request in max_send_wr / 2, and poll its completion before posting more."
        );
    }

    #[test]
    fn a_finding_in_doubt_is_a_warning() {
        let level = |number| {
            let text = ReportFormat::Sarif.entry(&Finding { number, ..finding() }, (7, "a.out"), true);
            ["error", "warning"].map(|level| text.contains(&format!("\"level\": \"{level}\"")))
        };
        assert_eq!((level(109), level(110)), ([true, false], [false, true]));
    }

    #[test]
    fn the_name_of_a_file_chooses_the_form() {
        let formats = ["a.json", "a.sarif", "a.txt", "a"].map(|name| ReportFormat::of(Path::new(name)));
        assert_eq!(
            formats,
            [ReportFormat::Json, ReportFormat::Sarif, ReportFormat::Text, ReportFormat::Text]
        );
    }

    #[test]
    fn strings_and_references_are_escaped() {
        assert_eq!(quoted("a\"\\\n\u{1b}é"), r#""a\"\\\u000a\u001bé""#);
        assert_eq!(uri("/a b/c.c"), "file:///a%20b/c.c");
    }

    #[test]
    fn entries_go_between_head_and_tail() {
        let format = ReportFormat::Json;
        let two = [true, false].map(|first| format.entry(&finding(), (7, "a.out"), first)).concat();
        let report = format.head() + &two + format.tail();
        assert!(report.starts_with("[\n{\"id\": \"FC100\"") && report.ends_with("}\n]\n"), "{report}");
        assert_eq!(report.matches("},\n{").count(), 1);
    }
}
