//! Calls through the C interface, by the C program `calls.c` on the linked library: each case in a process of its own,
//! where it may be in a network namespace of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use super::library::{library, made_once};

/// Compiles `calls.c` against the installed headers and the linked library.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let directory = library().parent().expect("a directory");
        made_once(&directory.join("calls"), |program| {
            let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
                .args(["-Wall", "-g", "-pthread", "-o"])
                .arg(program)
                .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/libibverbs/calls.c"))
                .arg("-L")
                .arg(directory)
                .arg("-libverbs")
                .output()
                .expect("cc");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        })
    })
}

/// Runs a case; the program ends itself after a minute.
fn run(case: &str, settings: &[(&str, &str)]) -> Output {
    const NAMESPACE: [&str; 4] = ["--user", "--map-root-user", "--net", "sh"];
    let own_namespace = Command::new("unshare").args(NAMESPACE).args(["-c", "ip link set lo up"]).output();
    let mut command = if own_namespace.is_ok_and(|output| output.status.success()) {
        let mut command = Command::new("unshare");
        command.args(NAMESPACE).args(["-c", "ip link set lo up && exec \"$@\"", "sh"]).arg(program());
        command
    } else {
        Command::new(program())
    };
    command
        .arg(case)
        .env("LD_LIBRARY_PATH", program().parent().expect("a directory"))
        .env_remove("FERROCE_RUN")
        .env_remove("FERROCE_LOG")
        .env_remove("FERROCE_DEVICES")
        .envs(settings.iter().copied())
        .output()
        .expect("the program starts")
}

#[track_caller]
fn expect_ok(case: &str, settings: &[(&str, &str)]) -> String {
    let output = run(case, settings);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{case}: {}\n{stderr}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{case}: {stderr}");
    stderr
}

macro_rules! cases {
    ($($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                let stderr = expect_ok(stringify!($case), &[]);
                assert_eq!(stderr, "", "without settings nothing is printed");
            }
        )*

        #[test]
        fn every_case_is_run() {
            let output = Command::new(program())
                .env("LD_LIBRARY_PATH", program().parent().expect("a directory"))
                .output()
                .expect("the program starts");
            let listed = String::from_utf8(output.stdout).expect("text");
            assert_eq!(listed.lines().collect::<Vec<_>>(), [$(stringify!($case)),*]);
        }
    };
}

cases! {
    extended_cq_iterates_over_completions
    changed_region_keeps_its_keys_and_loses_the_old_memory
    answer_reaches_the_sender_of_a_datagram
    tables_end_where_the_port_says
    symbol_query_port_writes_no_more_than_old_programs_have
    device_attributes_fit_the_room_of_the_caller
    queues_change_their_size
    what_is_not_there_says_eopnotsupp
    destroying_a_cq_waits_for_its_unacknowledged_event
    async_event_names_its_object_and_is_acknowledged
    device_keeps_its_address_from_list_to_list
    both_versions_of_a_name_lead_to_the_same_function
    loaded_library_has_no_thread_and_no_descriptor
    refused_call
}

#[test]
fn a_refused_call_says_why_once_a_second_under_ferroce_run() {
    let stderr = expect_ok("refused_call", &[("FERROCE_RUN", "1")]);
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{stderr}");
    assert!(lines[0].starts_with("ferroce: ibv_modify_qp: ") && lines[0].contains("RTS"), "{stderr}");
}

#[test]
fn probing_for_features_prints_nothing_under_ferroce_run() {
    assert_eq!(expect_ok("what_is_not_there_says_eopnotsupp", &[("FERROCE_RUN", "1")]), "");
}

#[test]
fn ferroce_log_shows_refusals() {
    let stderr = expect_ok("refused_call", &[("FERROCE_LOG", "ferroce_ibverbs=debug")]);
    assert_eq!(stderr.matches("ibv_modify_qp").count(), 3, "{stderr}");
}
