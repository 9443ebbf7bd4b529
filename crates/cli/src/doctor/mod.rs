//! `ferroce doctor`: what would stop a verbs program here, in plain words, with the fix.
//!
//! Each file looks at one thing and returns findings; what it reads from the system comes in as a string, so that it
//! can be tested. Nothing here needs privileges or leaves a trace. Out of here: repairing anything.

mod copy;
mod host;
mod limits;
mod peer;
mod port;
mod program;
mod usable;

use anstyle::AnsiColor;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// As it should be.
    Fine,
    /// Good to know: something is slower or can't be known from here.
    Note,
    /// Would stop a program.
    Stop,
}

/// One sentence about this host, and the fix if there is one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    weight: Weight,
    says: String,
    fix: Option<String>,
}

impl Finding {
    fn fine(says: impl Into<String>) -> Self {
        Self { weight: Weight::Fine, says: says.into(), fix: None }
    }

    fn note(says: impl Into<String>) -> Self {
        Self { weight: Weight::Note, says: says.into(), fix: None }
    }

    fn stop(says: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { weight: Weight::Stop, says: says.into(), fix: Some(fix.into()) }
    }

    fn with_fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

/// Looks at everything, prints it, and fails if something would stop a program.
pub fn doctor(peer: Option<&str>, program: Option<&Path>, json: bool) -> ExitCode {
    let mut findings = Vec::new();
    let devices = usable::check(&mut findings);
    port::check(&devices, &mut findings);
    host::check(&mut findings);
    copy::check(&mut findings);
    limits::check(&devices, &mut findings);
    if let Some(peer) = peer {
        peer::check(peer, &devices, &mut findings);
    }
    if let Some(program) = program {
        program::check(program, &mut findings);
    }
    let text = if json { format!("{:#}\n", to_json(&findings)) } else { report(&findings) };
    // Without colours where it isn't a terminal, or NO_COLOR is set.
    anstream::print!("{text}");
    let stops = findings.iter().any(|finding| finding.weight == Weight::Stop);
    if stops { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What keeps a program from finding any device here, with its fix.
pub fn no_device() -> Option<String> {
    let mut findings = Vec::new();
    if !usable::check(&mut findings).is_empty() {
        return None;
    }
    let stops = findings.into_iter().filter(|finding| finding.weight == Weight::Stop);
    let line = |Finding { says, fix, .. }: Finding| match fix {
        Some(fix) => format!("{says} Fix: {fix}"),
        None => says,
    };
    Some(stops.map(line).collect::<Vec<_>>().join("\n")).filter(|lines| !lines.is_empty())
}

fn to_json(findings: &[Finding]) -> Value {
    let finding = |Finding { weight, says, fix }: &Finding| {
        let weight = match weight {
            Weight::Fine => "ok",
            Weight::Note => "note",
            Weight::Stop => "stop",
        };
        json!({ "weight": weight, "says": says, "fix": fix })
    };
    findings.iter().map(finding).collect()
}

fn report(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let (mark, colour) = match finding.weight {
            Weight::Fine => ("  ok ", AnsiColor::Green),
            Weight::Note => ("note ", AnsiColor::Yellow),
            Weight::Stop => ("STOP ", AnsiColor::Red),
        };
        let style = colour.on_default();
        text.push_str(&format!("{style}{mark}{style:#} {}\n", finding.says));
        if let Some(fix) = &finding.fix {
            text.push_str(&format!("      Fix: {fix}\n"));
        }
    }
    let stops = findings.iter().filter(|finding| finding.weight == Weight::Stop).count();
    text.push('\n');
    text.push_str(&match stops {
        0 => "Nothing found that would stop a verbs program here.\n".to_owned(),
        1 => "One thing would stop a verbs program here.\n".to_owned(),
        _ => format!("{stops} things would stop a verbs program here.\n"),
    });
    text
}

/// The name of a user, or the number where there is none.
fn user_name(uid: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    match user_in(&users, uid) {
        Some(name) => format!("{name} (uid {uid})"),
        None => format!("uid {uid}"),
    }
}

fn user_in(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_counts_what_would_stop_a_program() {
        let plain = |findings: &[Finding]| anstream::adapter::strip_str(&report(findings)).to_string();
        let fine = plain(&[Finding::fine("All is well."), Finding::note("It rains.")]);
        assert_eq!(
            fine,
            "  ok  All is well.\nnote  It rains.\n\nNothing found that would stop a verbs program here.\n"
        );
        let bad =
            plain(&[Finding::stop("No network.", "plug it in"), Finding::stop("No power.", "switch it on")]);
        assert!(bad.starts_with("STOP  No network.\n      Fix: plug it in\n"), "{bad}");
        assert!(bad.ends_with("\n2 things would stop a verbs program here.\n"), "{bad}");
    }

    #[test]
    fn findings_are_there_as_json_too() {
        let json = to_json(&[Finding::fine("All is well."), Finding::stop("No power.", "switch it on")]);
        assert_eq!(json[0], json!({ "weight": "ok", "says": "All is well.", "fix": null }));
        assert_eq!((&json[1]["weight"], &json[1]["fix"]), (&"stop".into(), &"switch it on".into()));
    }

    #[test]
    fn users_are_looked_up_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:100::/home/alice:/bin/sh\nbroken\n";
        assert_eq!(user_in(passwd, 1000), Some("alice"));
        assert_eq!(user_in(passwd, 100), None);
    }
}
