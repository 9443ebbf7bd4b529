//! Cutting prose out of files: paragraphs of pages, comments, and strings of programs.

use std::path::Path;

/// Text that belongs together, with the line of each of its bytes.
#[derive(Debug, Default)]
pub struct Paragraph {
    pub text: String,
    /// Where a line of the file begins in the text, with the number of that line.
    starts: Vec<(usize, usize)>,
}

impl Paragraph {
    fn add(&mut self, line: usize, text: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.starts.push((self.text.len(), line));
        self.text.push_str(text);
    }

    /// The number of the line on which the byte at this offset stands.
    pub fn line(&self, offset: usize) -> usize {
        let after = self.starts.partition_point(|(start, _)| *start <= offset);
        self.starts[after.saturating_sub(1)].1
    }
}

/// Collects lines until something else comes.
#[derive(Default)]
struct Paragraphs {
    done: Vec<Paragraph>,
    open: Paragraph,
}

impl Paragraphs {
    fn line(&mut self, number: usize, text: &str) {
        self.open.add(number, text);
    }

    fn end(&mut self) {
        if !self.open.text.is_empty() {
            self.done.push(std::mem::take(&mut self.open));
        }
    }

    fn finish(mut self) -> Vec<Paragraph> {
        self.end();
        self.done
    }
}

/// The prose of a file, by the ending of its name. Code in backticks is blanked: it may contain any word.
pub fn paragraphs(path: &Path, source: &str) -> Vec<Paragraph> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let mut paragraphs = match ending {
        "md" => of_page(source),
        "rs" => of_program(source, true),
        "c" | "h" | "cc" | "cpp" | "js" => of_program(source, false),
        "py" => of_python(source),
        "sh" | "toml" | "yml" | "yaml" | "tsv" | "service" | "dockerfile" => of_hashes(source),
        "" if source.starts_with('#') => of_hashes(source),
        _ => Vec::new(),
    };
    for paragraph in &mut paragraphs {
        paragraph.text = without_code(&paragraph.text);
    }
    paragraphs
}

/// Replaces text in backticks, and names in braces (of format strings), keeping the length.
fn without_code(text: &str) -> String {
    let (mut inside, mut braces) = (false, false);
    let blank = |c: char| if c.len_utf8() == 1 { "_".to_owned() } else { "_".repeat(c.len_utf8()) };
    let mut kept = String::with_capacity(text.len());
    for c in text.chars() {
        braces = match c {
            '{' => true,
            '}' | ' ' => false,
            _ => braces,
        };
        if c == '`' {
            inside = !inside;
            kept.push('_');
        } else if inside || braces {
            kept += &blank(c);
        } else {
            kept.push(c);
        }
    }
    kept
}

fn of_page(source: &str) -> Vec<Paragraph> {
    let mut paragraphs = Paragraphs::default();
    let mut code = false;
    for (number, line) in (1..).zip(source.lines()) {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            code = !code;
            paragraphs.end();
        } else if code || trimmed.is_empty() {
            paragraphs.end();
        } else if trimmed.starts_with('|') {
            // Each cell is a text of its own.
            for cell in trimmed.split('|') {
                paragraphs.end();
                paragraphs.line(number, cell.trim());
            }
            paragraphs.end();
        } else {
            let item = trimmed.strip_prefix("- ").or_else(|| trimmed.strip_prefix("* "));
            let text = item.unwrap_or(trimmed).trim_start_matches(['#', '>', ' ']);
            if item.is_some() || trimmed.starts_with('#') {
                paragraphs.end();
            }
            paragraphs.line(number, text);
            if trimmed.starts_with('#') {
                paragraphs.end();
            }
        }
    }
    paragraphs.finish()
}

/// Comments that begin with a hash, and nothing else of the file.
fn of_hashes(source: &str) -> Vec<Paragraph> {
    let mut paragraphs = Paragraphs::default();
    for (number, line) in (1..).zip(source.lines()) {
        let trimmed = line.trim_start();
        match trimmed.strip_prefix('#') {
            Some(comment) if !comment.starts_with('!') && !comment.trim().is_empty() => {
                paragraphs.line(number, comment.trim_start_matches('#').trim());
            }
            _ => paragraphs.end(),
        }
    }
    paragraphs.finish()
}

/// Comments and documentation strings.
fn of_python(source: &str) -> Vec<Paragraph> {
    let mut paragraphs = Paragraphs::default();
    let mut documents = false;
    for (number, line) in (1..).zip(source.lines()) {
        for (index, part) in line.split("\"\"\"").enumerate() {
            if index > 0 {
                documents = !documents;
                paragraphs.end();
            }
            if documents && !part.trim().is_empty() {
                paragraphs.line(number, part.trim());
            } else if documents {
                paragraphs.end();
            }
        }
    }
    let mut all = paragraphs.finish();
    all.extend(of_hashes(source));
    all
}

/// Comments and strings of Rust and C.
fn of_program(source: &str, rust: bool) -> Vec<Paragraph> {
    let mut paragraphs = Paragraphs::default();
    let bytes = source.as_bytes();
    let (mut at, mut line) = (0, 1);
    // The line of the last line comment: the next line continues it.
    let mut last_comment = 0;
    while at < bytes.len() {
        let rest = &source[at..];
        if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            let text = rest[..end].trim_start_matches(['/', '!']).trim();
            let starts = text.starts_with(['-', '*', '#', '|']) || text.is_empty();
            if last_comment + 1 != line || starts {
                paragraphs.end();
            }
            if !text.is_empty() && !text.starts_with("```") {
                paragraphs.line(line, text.trim_start_matches(['-', '*', '#', ' ']));
            }
            last_comment = line;
            at += end;
        } else if let Some(body) = rest.strip_prefix("/*") {
            let end = body.find("*/").map_or(rest.len(), |end| end + 4);
            paragraphs.end();
            for (index, text) in rest[..end].lines().enumerate() {
                let text =
                    text.trim().trim_start_matches(['/', '*', '!']).trim_end_matches(['/', '*']).trim();
                if text.is_empty() {
                    paragraphs.end();
                } else {
                    paragraphs.line(line + index, text);
                }
            }
            paragraphs.end();
            line += rest[..end].matches('\n').count();
            at += end;
        } else if let Some((opening, closing)) = raw_string(rest, rust) {
            let body = &rest[opening..];
            let end = body.find(&closing).unwrap_or(body.len());
            paragraphs.end();
            for (index, text) in body[..end].lines().enumerate() {
                if text.trim().is_empty() {
                    paragraphs.end();
                } else {
                    paragraphs.line(line + index, text.trim());
                }
            }
            paragraphs.end();
            let whole = (opening + end + closing.len()).min(rest.len());
            line += rest[..whole].matches('\n').count();
            at += whole;
        } else if bytes[at] == b'"' {
            let end = end_of_string(&bytes[at + 1..]);
            paragraphs.end();
            for (index, text) in rest[1..=end].split('\n').enumerate() {
                // A line of a string that ends with a backslash goes on in the next one; one that ends with \n is a line of the output.
                for part in text.trim().trim_end_matches('\\').split("\\n") {
                    if part.trim().is_empty() {
                        paragraphs.end();
                    } else {
                        paragraphs.line(line + index, part.trim());
                    }
                }
            }
            paragraphs.end();
            let whole = (end + 2).min(rest.len());
            line += rest[..whole].matches('\n').count();
            at += whole;
        } else if bytes[at] == b'\'' {
            at += length_of_char(rest, rust);
        } else {
            line += usize::from(bytes[at] == b'\n');
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    paragraphs.finish()
}

/// Where a raw string's body begins, and what ends it, if the text begins with one.
fn raw_string(rest: &str, rust: bool) -> Option<(usize, String)> {
    let hashes = rest.strip_prefix('r')?;
    let count = hashes.len() - hashes.trim_start_matches('#').len();
    (rust && hashes[count..].starts_with('"')).then(|| (count + 2, format!("\"{}", "#".repeat(count))))
}

/// The number of bytes before the quote that ends a string.
fn end_of_string(bytes: &[u8]) -> usize {
    let mut at = 0;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len().saturating_sub(1))
}

/// The bytes of a literal of one character, or of the quote of a lifetime.
fn length_of_char(rest: &str, rust: bool) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => rest[3.min(rest.len())..].find('\'').map_or(1, |end| end + 4),
        Some((_, c)) if rest[1 + c.len_utf8()..].starts_with('\'') => 2 + c.len_utf8(),
        _ if rust => 1,
        _ => 1,
    }
}
