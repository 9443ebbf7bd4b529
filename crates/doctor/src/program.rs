//! A program: whether it would use Ferroce, and libraries that it needs and that aren't here. Without one of these the loader
//! won't start it, or the program won't load the library that needs it.

use std::path::Path;
use std::process::{Command, Output};

use super::diagnosis::Diagnosis;
use crate::obstacles::{Obstacle, obstacles};
use crate::paths::path_error;
use crate::{elf, install};

/// Asks the loader what it would load. As ldd(1) warns, a program with a loader of its own may be run for that.
pub fn check(program: &Path, findings: &mut Vec<Diagnosis>) {
    let name = program.display().to_string();
    match std::fs::File::open(program) {
        Ok(_) if program.is_file() => {}
        Ok(_) => {
            let says = format!("{name} isn't a file.");
            return findings.push(Diagnosis::error("program-missing", says, "name the program's file"));
        }
        Err(error) => {
            let says = format!("{name}: {}.", path_error(program, &error));
            let fix = "check the path; `command -v NAME` shows where a command is";
            return findings.push(Diagnosis::error("program-missing", says, fix));
        }
    }
    let elf = elf::inspect(program);
    let libraries = install::library_directory();
    let beside = libraries.as_deref().unwrap_or(Path::new("/"));
    let found = obstacles(program, elf.as_ref(), beside, true);
    let loads = found.is_empty();
    let of_obstacle =
        |Obstacle { says, fix }| Diagnosis::error("program-unsuitable", format!("{says}."), fix);
    findings.extend(found.into_iter().map(of_obstacle));
    if elf.is_none() {
        findings.push(Diagnosis::warning(
            "program-libraries",
            format!("{name} isn't an ELF program: its libraries are those of its interpreter."),
        ));
    } else if loads {
        let mut command = Command::new("ldd");
        command.arg(program);
        if let Ok(ours) = libraries {
            command.env("LD_LIBRARY_PATH", ours);
        }
        match command.output() {
            Ok(output) => judge(&name, &output, findings),
            Err(error) => findings.push(Diagnosis::warning(
                "program-libraries",
                format!("The libraries of {name} are unknown: ldd can't be run: {error}."),
            )),
        }
    }
}

fn judge(name: &str, output: &Output, findings: &mut Vec<Diagnosis>) {
    let text = String::from_utf8_lossy(&output.stdout);
    let missing: Vec<&str> = missing(&text).collect();
    if !output.status.success() && missing.is_empty() {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.lines().chain(text.lines()).map(str::trim).find(|line| !line.is_empty()).unwrap_or("?");
        findings.push(Diagnosis::warning(
            "program-libraries",
            format!("The libraries of {name} are unknown: {why}."),
        ));
    } else if missing.is_empty() {
        findings
            .push(Diagnosis::ok("program-libraries", format!("All libraries that {name} needs are here.")));
    }
    findings.extend(missing.into_iter().map(|library| {
        let says = format!("{name} needs {library}, which isn't here: the loader won't start it.");
        Diagnosis::error("program-libraries", says, fix(library))
    }));
}

/// The libraries that ldd(1) doesn't find.
fn missing(ldd: &str) -> impl Iterator<Item = &str> {
    ldd.lines().filter_map(|line| line.trim().strip_suffix(" => not found"))
}

fn fix(library: &str) -> String {
    match library {
        "libmlx5.so.1" | "libmlx4.so.1" | "libefa.so.1" | "libmana.so.1" | "libhns.so.1" => format!(
            "install the vendor libraries of rdma-core (Debian: ibverbs-providers); Ferroce's devices aren't of that \
             kind, so {library} has to be there and finds nothing to do"
        ),
        "librdmacm.so.1" => "install it (Debian: librdmacm1)".into(),
        _ => "install the package that has it, or add its directory to LD_LIBRARY_PATH".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn judged(status: i32, stdout: &str, stderr: &str) -> Vec<Diagnosis> {
        let output = Output {
            status: ExitStatus::from_raw(status << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        let mut findings = Vec::new();
        judge("app", &output, &mut findings);
        findings
    }

    #[test]
    fn each_missing_library_would_stop_the_program() {
        let ldd = "\tlinux-vdso.so.1 (0x7ff)\n\tlibmlx5.so.1 => not found\n\tlibibverbs.so.1 => /f/libibverbs.so.1 (0x1)\n\
                   \tlibefa.so.1 => not found\n\tlibx.so => not found\n";
        let findings = judged(0, ldd, "");
        assert_eq!(findings.len(), 3);
        for (finding, library) in findings.iter().zip(["libmlx5.so.1", "libefa.so.1", "libx.so"]) {
            assert_eq!(finding.level, Severity::Error);
            assert!(finding.message.contains(library), "{finding:?}");
            let providers = finding.fix.as_ref().unwrap().contains("ibverbs-providers");
            assert_eq!(providers, library != "libx.so", "{finding:?}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_a_directory_is_an_error() {
        for path in ["/nonexist", "/tmp"] {
            let mut findings = Vec::new();
            check(Path::new(path), &mut findings);
            assert_eq!(
                (findings.len(), findings[0].level, findings[0].code),
                (1, Severity::Error, "program-missing")
            );
        }
    }

    #[test]
    fn what_is_complete_or_no_program_is_no_obstacle() {
        let findings = judged(0, "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n", "");
        assert_eq!(findings, [Diagnosis::ok("program-libraries", "All libraries that app needs are here.")]);
        let findings = judged(1, "\tnot a dynamic executable\n", "");
        assert_eq!(findings[0].level, Severity::Warning);
        assert!(findings[0].message.ends_with("are unknown: not a dynamic executable."), "{findings:?}");
    }
}
