//! Libraries that a program needs and that aren't here: the loader won't start it, or a program won't load the library
//! that asks for them.

use std::path::Path;
use std::process::{Command, Output};

use super::Finding;
use crate::install;

/// Asks the loader what it would load. As ldd(1) warns, a program with a loader of its own may be run for that.
pub fn check(program: &Path, findings: &mut Vec<Finding>) {
    let mut command = Command::new("ldd");
    command.arg(program);
    if let Ok(ours) = install::library_directory() {
        command.env("LD_LIBRARY_PATH", ours);
    }
    let name = program.display().to_string();
    match command.output() {
        Ok(output) => judge(&name, &output, findings),
        Err(error) => findings.push(Finding::note(format!(
            "What libraries {name} needs isn't known: ldd can't be run: {error}."
        ))),
    }
}

fn judge(name: &str, output: &Output, findings: &mut Vec<Finding>) {
    let text = String::from_utf8_lossy(&output.stdout);
    let missing: Vec<&str> = missing(&text).collect();
    if !output.status.success() && missing.is_empty() {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.lines().chain(text.lines()).map(str::trim).find(|line| !line.is_empty()).unwrap_or("?");
        findings.push(Finding::note(format!("What libraries {name} needs isn't known: {why}.")));
    } else if missing.is_empty() {
        findings.push(Finding::fine(format!("All libraries that {name} needs are here.")));
    }
    findings.extend(missing.into_iter().map(|library| {
        let says = format!("{name} needs {library}, which isn't here: the loader won't start it.");
        Finding::stop(says, fix(library))
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
    use crate::doctor::Weight;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn judged(status: i32, stdout: &str, stderr: &str) -> Vec<Finding> {
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
            assert_eq!(finding.weight, Weight::Stop);
            assert!(finding.says.contains(library), "{finding:?}");
            let providers = finding.fix.as_ref().unwrap().contains("ibverbs-providers");
            assert_eq!(providers, library != "libx.so", "{finding:?}");
        }
    }

    #[test]
    fn what_is_complete_or_no_program_is_no_obstacle() {
        let findings = judged(0, "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n", "");
        assert_eq!(findings, [Finding::fine("All libraries that app needs are here.")]);
        let findings = judged(1, "\tnot a dynamic executable\n", "");
        assert_eq!(findings[0].weight, Weight::Note);
        assert!(findings[0].says.ends_with("isn't known: not a dynamic executable."), "{findings:?}");
    }
}
