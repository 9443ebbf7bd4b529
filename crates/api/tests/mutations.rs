//! The conformance suite notices when a rule of soundness is broken: each mutation of the source must fail the test of its rule, in
//! simulations.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A change of the source that breaks a rule.
struct Mutation {
    rule: &'static str,
    /// Below `crates`.
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// The test that must fail.
    test: &'static str,
}

const MUTATIONS: [Mutation; 10] = [
    Mutation {
        rule: "S6: a queue pair ends before its memory comes back",
        file: "api/src/verbs/core.rs",
        from: "self.receives.cq().set_windows(inner.qpn(), None);",
        to: "self.receives.cq().set_windows(inner.qpn(), None); std::mem::forget(inner);",
        test: "a_destroyed_queue_pair_returns_what_was_outstanding",
    },
    Mutation {
        rule: "S6: a window ends before its memory comes back",
        file: "api/src/verbs/loans.rs",
        from: "drop(ended);",
        to: "std::mem::forget(ended);",
        test: "a_recalled_loan_is_not_written",
    },
    Mutation {
        rule: "S6: a loan is over when the peer has returned it, and not before",
        file: "api/src/verbs/loans.rs",
        from: "self.returned.load(Ordering::Acquire) || lock",
        to: "true || lock",
        test: "a_loan_returns_with_its_buffer",
    },
    Mutation {
        rule: "S6: no completion from before a recall names the key of a later loan",
        file: "api/src/verbs/loans.rs",
        from: "keys.find(|key| !state.recalled.contains_key(key))",
        to: "keys.find(|_| true)",
        test: "a_completion_from_before_a_recall_returns_no_later_loan",
    },
    Mutation {
        rule: "S6: a scope waits for its requests",
        file: "api/src/verbs/scope.rs",
        from: "ends.drain(0)?;",
        to: "",
        test: "a_scope_sends_and_receives_borrowed_memory",
    },
    Mutation {
        rule: "S6: a panic in a scope ends its requests",
        file: "api/src/verbs/scope.rs",
        from: "drop(ends.core.destroy());",
        to: "",
        test: "memory_of_a_scope_that_panics_is_not_written",
    },
    Mutation {
        rule: "S8: a loan has the rights that were lent",
        file: "api/src/verbs/ops.rs",
        from: "remote_write: write, remote_atomic: atomic, ..Access::default() };",
        to: "remote_write: write | true, remote_atomic: atomic, ..Access::default() };",
        test: "a_loan_has_no_more_rights_and_bytes_than_were_lent",
    },
    Mutation {
        rule: "S8: a window is of use to its queue pair's peer alone",
        file: "sim/src/env.rs",
        from: "of_qp: Some(user.qpn)",
        to: "of_qp: None",
        test: "a_loan_is_of_no_use_to_another_queue_pair",
    },
    Mutation {
        rule: "S10: no more completions than entries",
        file: "api/src/verbs/slots.rs",
        from: "if depth > free {",
        to: "if depth > free + 1 {",
        test: "completion_queues_never_get_more_than_they_hold",
    },
    Mutation {
        rule: "S10: a shared receive queue has entries for all its receives",
        file: "api/src/verbs/slots.rs",
        from: "        queues.reserve(depth, self.capacity)?;\n        queues.joined.insert(queue.number,",
        to: "        queues.joined.insert(queue.number,",
        test: "completion_queues_never_get_more_than_they_hold",
    },
];

/// The crates that are changed. The others are those of the workspace.
const COPIED: [&str; 2] = ["api", "sim"];

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let copied = Command::new("cp").arg("-r").arg(from.join(".")).arg(to).status().unwrap();
    assert!(copied.success(), "{} can't be copied", from.display());
}

/// A copy of the workspace, of links where nothing is changed.
fn copy_of_the_workspace() -> PathBuf {
    let root = fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap();
    let copied = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutated-api");
    for stale in fs::read_dir(&copied).into_iter().flatten().flatten().filter(|it| it.file_name() != "target")
    {
        let path = stale.path();
        let _ = if path.is_symlink() || path.is_file() {
            fs::remove_file(&path)
        } else {
            fs::remove_dir_all(&path)
        };
    }
    fs::create_dir_all(copied.join("crates")).unwrap();
    let link = |from: &Path, to: &Path| {
        for entry in fs::read_dir(root.join(from)).unwrap().flatten() {
            let (name, to) = (entry.file_name(), to.join(entry.file_name()));
            if !["target", "crates", ".git"].iter().chain(&COPIED).any(|it| name == *it) {
                std::os::unix::fs::symlink(entry.path(), copied.join(to)).unwrap();
            }
        }
    };
    link(Path::new(""), Path::new(""));
    link(Path::new("crates"), Path::new("crates"));
    for name in COPIED {
        copy(&root.join("crates").join(name), &copied.join("crates").join(name));
    }
    copied
}

/// Runs a test of the copy, and returns whether it passes, with the output.
fn passes(copied: &Path, test: &str) -> (bool, String) {
    let output = Command::new(env!("CARGO"))
        .args([
            "test",
            "--quiet",
            "--offline",
            "--locked",
            "-p",
            "ferroce",
            "--no-default-features",
            "--features",
            "sim",
        ])
        .args(["--test", "conformance", "--", "--exact", test])
        .current_dir(copied)
        .env("CARGO_TARGET_DIR", copied.join("target"))
        .envs([("CARGO_PROFILE_DEV_OPT_LEVEL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")])
        .env("RUSTFLAGS", "-Awarnings")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

#[test]
#[ignore = "takes three minutes: the simulation is built again for each mutation"]
fn each_mutation_fails_the_test_of_its_rule() {
    let copied = copy_of_the_workspace();
    let (passed, output) = passes(&copied, "none");
    assert!(passed, "the copy doesn't build:\n{output}");
    let mut complaints = Vec::new();
    for Mutation { rule, file, from, to, test } in MUTATIONS {
        let path = copied.join("crates").join(file);
        let source = fs::read_to_string(&path).unwrap();
        assert_eq!(source.matches(from).count(), 1, "{rule}: the source has changed");
        fs::write(&path, source.replace(from, to)).unwrap();
        let (passed, output) = passes(&copied, test);
        fs::write(&path, source).unwrap();
        if passed || output.contains("could not compile") || !output.contains("running 1 test") {
            complaints.push(format!("{rule}: {test} {output}"));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
