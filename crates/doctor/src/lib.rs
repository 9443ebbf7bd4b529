//! `ferroce doctor`: what would stop a verbs program here, in plain words, with the fix.
//!
//! Each file looks at one thing and returns findings; what it reads from the system comes in as a string, so that it
//! can be tested. Nothing here needs privileges or leaves a trace. Out of here: repairing anything.

mod copy;
mod diagnosis;
mod elf;
mod host;
pub mod install;
mod limits;
mod obstacles;
mod paths;
mod peer;
mod port;
mod program;
mod usable;

pub use elf::{Program, inspect};
pub use obstacles::{Obstacle, obstacles};
pub use paths::path_error;

use anstyle::AnsiColor;
use diagnosis::{Diagnosis, Severity};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

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
    let fails = findings.iter().any(|finding| finding.level == Severity::Error);
    if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What keeps a program from finding any device here, with its fix.
pub fn no_device() -> Option<String> {
    let mut findings = Vec::new();
    if !usable::check(&mut findings).is_empty() {
        return None;
    }
    let errors = findings.into_iter().filter(|finding| finding.level == Severity::Error);
    let line = |Diagnosis { message, fix, .. }: Diagnosis| match fix {
        Some(fix) => format!("{message} Fix: {fix}"),
        None => message,
    };
    Some(errors.map(line).collect::<Vec<_>>().join("\n")).filter(|lines| !lines.is_empty())
}

fn to_json(findings: &[Diagnosis]) -> Value {
    let finding = |Diagnosis { level, code, message, fix }: &Diagnosis| json!({ "level": level.name(), "code": code, "message": message, "fix": fix });
    findings.iter().map(finding).collect()
}

fn report(findings: &[Diagnosis]) -> String {
    let mut text = String::new();
    for Diagnosis { level, code, message, fix } in findings {
        let colour = match level {
            Severity::Ok => AnsiColor::Green,
            Severity::Warning => AnsiColor::Yellow,
            Severity::Error => AnsiColor::Red,
        };
        let style = colour.on_default();
        text.push_str(&format!("{style}{}{style:#}[{code}]: {message}\n", level.name()));
        if let Some(fix) = fix {
            text.push_str(&format!("  fix: {fix}\n"));
        }
    }
    let errors = findings.iter().filter(|finding| finding.level == Severity::Error).count();
    text.push('\n');
    text.push_str(&match errors {
        0 => "Nothing found that would stop a verbs program here.\n".to_owned(),
        1 => "1 error: a program that depends on it fails here.\n".to_owned(),
        _ => format!("{errors} errors: a program that depends on them fails here.\n"),
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_counts_what_would_stop_a_program() {
        let plain = |findings: &[Diagnosis]| anstream::adapter::strip_str(&report(findings)).to_string();
        let fine = plain(&[Diagnosis::ok("sky", "All is well."), Diagnosis::warning("sky", "It rains.")]);
        assert_eq!(
            fine,
            "ok[sky]: All is well.\nwarning[sky]: It rains.\n\nNothing found that would stop a verbs program here.\n"
        );
        let network = Diagnosis::error("network", "No network.", "plug it in");
        let bad = plain(&[network, Diagnosis::error("power", "No power.", "switch it on")]);
        assert!(bad.starts_with("error[network]: No network.\n  fix: plug it in\n"), "{bad}");
        assert!(bad.ends_with("\n2 errors: a program that depends on them fails here.\n"), "{bad}");
    }

    #[test]
    fn findings_are_there_as_json_too() {
        let power = Diagnosis::error("power", "No power.", "switch it on");
        let json = to_json(&[Diagnosis::ok("sky", "All is well."), power]);
        assert_eq!(json[0], json!({ "level": "ok", "code": "sky", "message": "All is well.", "fix": null }));
        assert_eq!((&json[1]["level"], &json[1]["fix"]), (&"error".into(), &"switch it on".into()));
    }
}
