//! `ferroce run` as a person or a script meets it.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use common::{Installation, run};

#[test]
fn our_libraries_come_first_and_the_rest_of_the_environment_stays() {
    let ferroce = Installation::new();
    let show = "echo $LD_LIBRARY_PATH; echo $FERROCE_RUN; echo ${FERROCE_CAPTURE-none} ${FERROCE_FAULT-none}; echo $MINE";
    let outcome = run(ferroce
        .ferroce(&["run", "--", "/bin/sh", "-c", show])
        .env("LD_LIBRARY_PATH", "/elsewhere")
        .env("MINE", "kept"));
    let ours = ferroce.path("lib/ferroce");
    assert_eq!(outcome.stdout, format!("{}:/elsewhere\n1\nnone none\nkept\n", ours.display()));
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
}

#[test]
fn what_cannot_be_explained_is_named_without_what_a_terminal_acts_upon() {
    let ferroce = Installation::new();
    let outcome = run(&mut ferroce.ferroce(&["explain", "FC\x1b]0;title\x07\u{202e}"]));
    assert_eq!(outcome.status, Some(1));
    assert!(
        outcome.stderr.starts_with("ferroce explain: unknown word \"FC?]0;title??\""),
        "{}",
        outcome.stderr
    );
}

#[test]
fn run_inside_run_names_the_libraries_once() {
    let ferroce = Installation::new();
    let command = ferroce.path("bin/ferroce");
    let outcome = run(&mut ferroce.ferroce(&[
        "run",
        command.to_str().unwrap(),
        "run",
        "sh",
        "-c",
        "echo $LD_LIBRARY_PATH",
    ]));
    assert_eq!(outcome.stdout, format!("{}\n", ferroce.path("lib/ferroce").display()));
}

#[test]
fn entries_are_shown_unless_they_are_not_wanted() {
    let ferroce = Installation::new();
    let show = "echo ${LD_PRELOAD-none}; echo $PATH; echo ${ASAN_OPTIONS-none}";
    let ours = ferroce.path("lib/ferroce").display().to_string();
    let expected = format!(
        "{ours}/libibverbs.so.1:{ours}/librdmacm.so.1:{ours}/libferroce_preload.so\n{ours}/bin:/usr/bin:/bin\nverify_asan_link_order=0\n"
    );
    for words in
        [&["sh", "-c", show][..], &[ferroce.path("bin/ferroce").to_str().unwrap(), "run", "sh", "-c", show]]
    {
        let outcome = run(ferroce.ferroce(&["run"]).args(words).env("PATH", "/usr/bin:/bin"));
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), (expected.as_str(), ""));
    }
    let without =
        ferroce.ferroce(&["run", "--no-preload", "sh", "-c", show]).env("PATH", "/usr/bin:/bin").output();
    assert_eq!(String::from_utf8(without.unwrap().stdout).unwrap(), "none\n/usr/bin:/bin\nnone\n");
}

#[test]
fn env_prints_what_run_sets() {
    let ferroce = Installation::new();
    let names = ["LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "ASAN_OPTIONS", "FERROCE_RUN"];
    let show = names.map(|name| format!("echo {name}=$(printenv {name})")).join("; ");
    let expected = run(&mut ferroce.ferroce(&["run", "sh", "-c", &show])).stdout;
    let command = ferroce.path("bin/ferroce");
    let eval = format!("eval \"$({} env)\"; {show}", command.display());
    let mut shell =
        ferroce.ferroce(&["run", "--no-preload", "env", "-u", "LD_LIBRARY_PATH", "sh", "-c", &eval]);
    assert_eq!(run(&mut shell).stdout, expected);
    let mut lines: Vec<String> =
        run(&mut ferroce.ferroce(&["env", "--lines"])).stdout.lines().map(str::to_owned).collect();
    let mut wanted: Vec<&str> = expected.lines().collect();
    lines.sort();
    wanted.sort();
    assert_eq!(lines, wanted);
    let json = run(&mut ferroce.ferroce(&["env", "--json"])).stdout;
    assert!(json.contains("\"FERROCE_RUN\": \"1\""), "{json}");
}

#[test]
fn options_set_what_variables_set() {
    let ferroce = Installation::new();
    let show = "echo $FERROCE_DEVICES $FERROCE_FABRIC $FERROCE_LOG $FERROCE_TRUST $FERROCE_LINK_LAYER";
    let options =
        ["--devices", "mlx5_0=lo", "--fabric", "udp", "--log", "debug", "--trust", "root", "--link-layer"];
    let run_with = |first: &[&str], last: &[&str]| {
        let mut command = ferroce.ferroce(first);
        run(command.args(options).arg("infiniband").args(last))
    };
    let outcome = run_with(&["run"], &["sh", "-c", show]);
    assert_eq!(outcome.stdout, "mlx5_0=lo udp debug root infiniband\n", "{outcome:?}");
    for printed in [run_with(&["run", "--print-env"], &[]), run_with(&["env"], &[])] {
        assert!(printed.stdout.contains("export FERROCE_DEVICES='mlx5_0=lo'\n"), "{printed:?}");
        assert!(printed.stdout.contains("export FERROCE_TRUST='root'\n"), "{printed:?}");
    }
    let outcome = run(ferroce
        .ferroce(&["run", "--fault", "drop=1%", "--print-env", "echo", "started"])
        .env("FERROCE_FAULT", "nonsense"));
    assert!(outcome.stdout.contains("export FERROCE_FAULT='drop=1%'\n"), "{outcome:?}");
    assert!(!outcome.stdout.contains("started"), "{outcome:?}");
}

#[test]
fn what_means_nothing_is_refused_before_the_command_starts() {
    let ferroce = Installation::new();
    for (options, status, says) in [
        (&["--devices", "nonsense"][..], 125, "has no \"=\""),
        (&["--log", "debgu"], 125, "--log debgu: "),
        (&["--check=fatel"], 125, "did you mean fatal?"),
        (&["--fabric", "upd"], 2, "udp"),
        (&["--strict=connectx6"], 2, "connectx-6"),
        (&["--captur", "x"], 2, "--capture"),
    ] {
        let outcome = run(ferroce.ferroce(&["run"]).args(options).args(["echo", "started"]));
        assert_eq!((outcome.status, &*outcome.stdout), (Some(status), ""), "{outcome:?}");
        assert!(outcome.stderr.contains(says), "{outcome:?}");
        assert_eq!(
            outcome.stderr.matches("nonsense").count(),
            usize::from(options[1..] == ["nonsense"]),
            "{outcome:?}"
        );
    }
    let outcome = run(&mut ferroce.ferroce(&["docter"]));
    assert!(outcome.status == Some(2) && outcome.stderr.contains("'doctor'"), "{outcome:?}");
    let outcome = run(ferroce.ferroce(&["run", "echo", "started"]).env("FERROCE_FABRICS", "udp"));
    assert!(outcome.stderr.contains("did you mean FERROCE_FABRIC?"), "{outcome:?}");
}

#[test]
fn a_capture_is_no_process_and_a_process_no_capture() {
    let ferroce = Installation::new();
    let traced = |arguments: &[&str]| {
        run(ferroce.ferroce(&["trace"]).args(arguments).current_dir(ferroce.path("lib")))
    };
    let outcome = traced(&["123"]);
    assert!(outcome.status == Some(1) && outcome.stderr.contains("`ferroce trace --pid 123`"), "{outcome:?}");
    std::fs::write(ferroce.path("lib/123"), "nothing").unwrap();
    let outcome = traced(&["123"]);
    assert!(outcome.status == Some(1) && outcome.stderr.contains("123: it isn't a capture"), "{outcome:?}");
    assert_eq!(traced(&["--pid", "1", "123"]).status, Some(2));
    assert_eq!(traced(&["--pid", "1", "--follow"]).status, Some(2));
    assert_eq!(traced(&[]).status, Some(2));
}

#[test]
fn the_package_of_a_client_that_is_missing_is_named() {
    let ferroce = Installation::new();
    for (client, package) in
        [("ib_write_bw", "perftest"), ("rping", "rdmacm-utils"), ("ibv_devinfo", "ibverbs-utils")]
    {
        let outcome = run(ferroce.ferroce(&["run", client]).env("PATH", "/nowhere"));
        assert!(outcome.status == Some(127) && outcome.stderr.contains(package), "{outcome:?}");
    }
}

#[test]
fn command_keeps_its_process_id_and_exit_status() {
    let ferroce = Installation::new();
    let child =
        ferroce.ferroce(&["run", "sh", "-c", "echo $$; exit 42"]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{pid}\n"));
    assert_eq!(output.status.code(), Some(42));
}

#[test]
fn options_after_the_command_are_the_commands() {
    let ferroce = Installation::new();
    let outcome = run(&mut ferroce.ferroce(&["run", "echo", "--capture", "x", "--help", "-n"]));
    assert_eq!(outcome.stdout, "--capture x --help -n\n");
}

#[test]
fn commands_that_cannot_run_give_the_shells_exit_status_and_say_why() {
    let ferroce = Installation::new();
    let plain = ferroce.path("plain");
    std::fs::write(&plain, "not a program").unwrap();
    let orphan = ferroce.path("orphan");
    std::fs::write(&orphan, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&orphan, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (command, status, says) in [
        ("no-such-command-here", 127, "no-such-command-here: there is no such command in PATH"),
        ("./no/such/file", 127, "./no/such/file: there is no such file"),
        (plain.to_str().unwrap(), 126, "permission denied"),
        (orphan.to_str().unwrap(), 126, "its interpreter"),
    ] {
        let outcome = run(&mut ferroce.ferroce(&["run", command]));
        assert_eq!(outcome.status, Some(status), "{outcome:?}");
        assert!(outcome.stderr.starts_with("ferroce run: ") && outcome.stderr.contains(says), "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    }
}

#[test]
fn missing_library_is_an_error_with_the_fix() {
    let ferroce = Installation::new();
    for library in ["libferroce_preload.so", "librdmacm.so.1", "libibverbs.so.1"] {
        std::fs::remove_file(ferroce.path("lib/ferroce").join(library)).unwrap();
        let outcome = run(&mut ferroce.ferroce(&["run", "true"]));
        assert_eq!(outcome.status, Some(125));
        assert!(outcome.stderr.contains(&format!("{library} is not in")), "{outcome:?}");
    }
}

#[test]
fn capture_file_exists_with_its_header_before_the_command_starts() {
    let ferroce = Installation::new();
    let show = "echo $FERROCE_CAPTURE; od -An -tx1 -N4 \"$FERROCE_CAPTURE\"";
    let outcome = run(ferroce
        .ferroce(&["run", "--capture", "here.pcapng", "sh", "-c", show])
        .current_dir(ferroce.path("lib")));
    let file = ferroce.path("lib/here.pcapng");
    assert_eq!(outcome.stdout, format!("{}\n 0a 0d 0d 0a\n", file.display()), "{outcome:?}");

    let outcome = run(&mut ferroce.ferroce(&["run", "--capture", "/no/such/directory/x.pcapng", "true"]));
    assert_eq!(outcome.status, Some(125));
    assert!(outcome.stderr.contains("--capture /no/such/directory/x.pcapng: "), "{outcome:?}");
}

#[test]
fn a_command_that_cannot_run_leaves_no_capture() {
    let ferroce = Installation::new();
    let file = ferroce.path("none.pcapng");
    let outcome = run(&mut ferroce.ferroce(&["run", "--capture", file.to_str().unwrap(), "./no/such/file"]));
    assert!(outcome.status == Some(127) && !file.exists(), "{outcome:?}");
}

#[test]
fn a_report_is_a_regular_file_or_nothing_starts() {
    let ferroce = Installation::new();
    let pipe = ferroce.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for file in [pipe.to_str().unwrap(), "/dev/full", "/dev/null"] {
        let outcome =
            run(&mut ferroce.ferroce(&["run", "--check", "--check-report", file, "echo", "started"]));
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(125), ""), "{outcome:?}");
        assert!(
            outcome.stderr.contains(&format!("--check-report {file}: not a regular file")),
            "{outcome:?}"
        );
    }
    let log = ferroce.path("log");
    std::fs::write(&log, "precious\n").unwrap();
    let output = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
    let mut command =
        ferroce.ferroce(&["run", "--check", "--check-report", "/dev/stdout", "echo", "started"]);
    assert_eq!(command.stdout(output).stderr(Stdio::null()).status().unwrap().code(), Some(125));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "precious\n");
}

#[test]
fn faults_are_checked_before_the_command_starts() {
    let ferroce = Installation::new();
    let outcome =
        run(&mut ferroce.ferroce(&["run", "--fault", "drop=1%,seed=7", "sh", "-c", "echo $FERROCE_FAULT"]));
    assert_eq!((outcome.stdout.as_str(), outcome.status), ("drop=1%,seed=7\n", Some(0)), "{outcome:?}");
    for (wrong, says) in [("drop=101%", "from 0% to 100%"), ("lose=1%", "\"lose\""), ("drop", "KEY=VALUE")] {
        let outcome = run(&mut ferroce.ferroce(&["run", "--fault", wrong, "echo", "started"]));
        assert_eq!((outcome.status, outcome.stdout.as_str()), (Some(125), ""), "{outcome:?}");
        assert!(outcome.stderr.contains(says), "{outcome:?}");
    }
}

#[test]
fn programs_that_would_not_load_our_library_are_told_of() {
    if Command::new("cc").arg("--version").output().is_err() {
        return ferroce_tests::record_skip("there is no C compiler here (cc)");
    }
    let ferroce = Installation::new();
    let source = ferroce.path("main.c");
    std::fs::write(&source, "int main(void) { return 3; }\n").unwrap();
    let other = ferroce.path("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("libibverbs.so.1"), "").unwrap();
    let build = |name: &str, options: &[&str]| {
        let program = ferroce.path(name);
        let built = Command::new("cc").arg("-o").arg(&program).arg(&source).args(options).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        program.into_os_string().into_string().unwrap()
    };
    let rpath = &["-Wl,--disable-new-dtags,-rpath,$ORIGIN/other"][..];
    for (name, options, how, says) in [
        ("rpath", rpath, "--no-preload", "RPATH"),
        // Preloaded, it comes before that one too.
        ("preloaded", rpath, "--", ""),
        ("runpath", &["-Wl,--enable-new-dtags,-rpath,$ORIGIN/other"], "--no-preload", ""),
        ("harmless", &["-Wl,--disable-new-dtags,-rpath,/no/library/here"], "--no-preload", ""),
        ("static", &["-static"], "--", "statically linked"),
    ] {
        let program = build(name, options);
        let outcome = run(&mut ferroce.ferroce(&["run", how, &program]));
        assert_eq!(outcome.status, Some(3), "the command runs all the same: {outcome:?}");
        assert_eq!(outcome.stderr.is_empty(), says.is_empty(), "{outcome:?}");
        assert!(outcome.stderr.contains(says), "{outcome:?}");
        if name == "static" {
            let doctor = run(&mut ferroce.ferroce(&["doctor", "--program", &program]));
            assert!(doctor.stdout.contains("error[program-unsuitable]: "), "{doctor:?}");
            assert!(doctor.status == Some(1) && doctor.stdout.contains("statically linked"), "{doctor:?}");
        }
    }
}

#[test]
fn help_names_every_command_and_missing_arguments_are_usage_errors() {
    let ferroce = Installation::new();
    let outcome = run(&mut ferroce.ferroce(&["--help"]));
    for word in [
        "run",
        "devices",
        "sysfs",
        "doctor",
        "explain",
        "view",
        "help",
        "Watch running programs:",
        "Examples:",
    ] {
        assert!(outcome.stdout.contains(word), "{outcome:?}");
    }
    assert_eq!(run(&mut ferroce.ferroce(&["run"])).status, Some(2));
    assert_eq!(run(&mut ferroce.ferroce(&[])).status, Some(2));
}
