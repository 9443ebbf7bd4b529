//! `ferroce run --check`: a program for each finding and its correct twin, on each fabric. The finding is reported exactly once, the
//! twin prints nothing.

use ferroce_tests::pages::error_programs;
use ferroce_tests::{Artifacts, Fabric, Outcome, Pair, Skip, World, require, tool};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(50);

/// Cases of `c/misuse/checked.c`, the finding, and the reason of the request that fails because of it.
const CASES: &[(&str, &str, Option<&str>)] = &[
    ("queue_never_signaled", "FC100", None),
    ("region_in_use", "FC101", Some("FC031")),
    ("path_mtu", "FC105", None),
    ("never_asked_for", "FC110", None),
];

/// The same, of mistakes that one process makes by itself, with any peer.
const LONE_CASES: &[(&str, &str, Option<&str>)] = &[
    ("small_queue", "FC102", None),
    ("unacknowledged", "FC103", None),
    ("armed_late", "FC104", None),
    ("memlock", "FC107", None),
    ("event_never_asked_for", "FC110", None),
];

/// The same, of memory: these processes exchange packets, whatever the fabric.
const MEMORY_CASES: &[(&str, &str, Option<&str>)] = &[
    ("sent_buffer", "FC108", None),
    ("read_buffer", "FC109", None),
    ("receive_buffer", "FC109", None),
    ("overlapping_receives", "FC109", None),
    ("shared_receive_buffer", "FC109", None),
    ("xrc_receive_buffer", "FC109", None),
    ("tagged_receive_buffer", "FC109", None),
];

/// What the programs of these cases leave isn't tested here.
const CHECK: &str = "--check=-FC106";
const CHECK_MEMORY: &str = "--check=memory,-FC106";

/// The runtime of AddressSanitizer wants to be the first library; `ferroce run` preloads one before it.
const SANITIZED: &[(&str, &str)] = &[("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0")];

fn run(world: &World, options: &[&str], words: &[&str], fabric: Fabric) -> Outcome {
    world.first().start_ferroce(options, words, fabric.settings()).wait(LIMIT)
}

/// The IDs that lines of standard error begin with, in order. A line about a send queue that is really full for a moment isn't a finding.
fn ids(outcome: &Outcome) -> Vec<&str> {
    let id = |line| -> Option<&str> { str::strip_prefix(line, "ferroce: ")?.split(' ').next() };
    let is_full = |line: &&str| line.starts_with("ferroce: ibv_post_send: the send queue of");
    let lines = outcome.stderr.lines().filter(|line| !is_full(line));
    let mut ids: Vec<_> = lines.map(|line| id(line).unwrap_or_else(|| panic!("{outcome}"))).collect();
    ids.sort_unstable();
    ids
}

fn check(cases: &[(&str, &str, Option<&str>)], options: &str, fabric: Fabric, processes: &str) {
    let path = require!(Artifacts::get().c_program("misuse/checked"));
    let world = require!(World::one_host(1500));
    for (case, finding, reason) in cases {
        let wrong = run(&world, &[options], &[&path, case, "wrong", processes], fabric);
        wrong.expect_success();
        let expected: Vec<_> = reason.iter().chain([finding]).copied().collect();
        let mut said = ids(&wrong);
        if *case == "path_mtu" {
            // Both ends report it if they ask each other at the same time.
            said.dedup();
        }
        assert_eq!(said, expected, "{case}: {wrong}");
        run(&world, &[options], &[&path, case, "right", processes], fabric).expect_ok().expect_quiet();
    }
}

#[test]
fn every_case_is_in_the_table() {
    let path = require!(Artifacts::get().c_program("misuse/checked"));
    let listed = Command::new(path).output().expect("the program runs").stdout;
    let listed = String::from_utf8(listed).expect("case names are ASCII");
    let cases = CASES.iter().chain(LONE_CASES).chain(MEMORY_CASES).map(|case| case.0);
    assert_eq!(listed.lines().collect::<Vec<_>>(), cases.collect::<Vec<_>>());
}

#[test]
fn pages_of_findings_name_programs_that_have_them() {
    let cases: Vec<_> =
        CASES.iter().chain(LONE_CASES).chain(MEMORY_CASES).map(|case| (case.0, case.1)).collect();
    let named: Vec<_> = error_programs().into_iter().filter(|named| named.number >= 100).collect();
    assert_eq!(named.len(), 11, "{named:?}");
    for named in named {
        let finding = format!("FC{:03}", named.number);
        let is_case = named.program == "misuse/checked" && cases.contains(&(&*named.case, &*finding));
        assert!(is_case || (&*named.program, &*finding) == ("misuse/leftovers", "FC106"), "{named:?}");
    }
}

/// A call that hangs is reported without the checker, too.
#[test]
fn a_destruction_that_waits_is_told_without_the_checker() {
    let path = require!(Artifacts::get().c_program("misuse/checked"));
    let world = require!(World::one_host(1500));
    let run = |how| run(&world, &[], &[&path, "unacknowledged", how, "one"], Fabric::Any);
    let wrong = run("wrong");
    wrong.expect_success();
    assert_eq!(ids(&wrong), ["FC103"], "{wrong}");
    assert!(
        wrong.stderr.contains(
            "FC103 ibv_destroy_cq: the call waits until events are acknowledged (completion events: 1)"
        ),
        "{wrong}"
    );
    run("right").expect_ok().expect_quiet();
}

#[test]
fn findings_in_one_process() {
    check(CASES, CHECK, Fabric::Any, "one");
    check(LONE_CASES, CHECK, Fabric::Any, "one");
}

#[test]
fn findings_through_shared_memory() {
    check(CASES, CHECK, Fabric::Any, "two");
}

#[test]
fn findings_over_udp() {
    check(CASES, CHECK, Fabric::Udp, "two");
}

#[test]
fn memory_that_is_written_while_requests_name_it() {
    check(MEMORY_CASES, CHECK_MEMORY, Fabric::Any, "two");
}

#[test]
fn address_sanitizer_reports_who_touches_memory_that_the_adapter_fills() {
    let path = require!(Artifacts::get().sanitized_program("misuse/checked"));
    let world = require!(World::one_host(1500));
    for (case, finding, _) in MEMORY_CASES {
        let run = |how| {
            let words = [&*path, case, how, "one"];
            world.first().start_ferroce(&[CHECK_MEMORY], &words, SANITIZED).wait(LIMIT)
        };
        let wrong = run("wrong");
        let is_reported = wrong.stderr.contains("AddressSanitizer: use-after-poison");
        assert_eq!(is_reported, *finding == "FC109", "{case}: {wrong}");
        run("right").expect_ok().expect_quiet();
    }
}

#[test]
fn memory_of_requests_that_have_ended_with_their_device_or_process_may_be_touched() {
    let path = require!(Artifacts::get().sanitized_program("misuse/touched_later"));
    let world = require!(World::one_host(1500));
    for how in ["reset", "close", "fork", "fork_and_reuse"] {
        let words = [&*path, how];
        world.first().start_ferroce(&[CHECK_MEMORY], &words, SANITIZED).wait(LIMIT).expect_ok();
    }
    let outcome = world.first().start_ferroce(&[CHECK_MEMORY], &[&path, "none"], SANITIZED).wait(LIMIT);
    assert!(outcome.stderr.contains("AddressSanitizer: use-after-poison"), "{outcome}");
}

#[test]
fn objects_that_are_left_are_told_with_where_they_were_made() {
    let path = require!(Artifacts::get().c_program("misuse/leftovers"));
    let world = require!(World::one_host(1500));
    for how in ["close", "exit"] {
        let outcome = run(&world, &["--check"], &[&path, how], Fabric::Any);
        outcome.expect_ok();
        assert_eq!(ids(&outcome), ["FC106"], "{outcome}");
        for left in ["1 cq made at ", "1 mr made at ", "1 pd made at "] {
            assert!(outcome.stderr.contains(left), "{outcome}");
        }
    }
    run(&world, &["--check"], &[&path, "none"], Fabric::Any).expect_ok().expect_quiet();
}

#[test]
fn a_fatal_finding_ends_the_process_with_a_status_of_its_own() {
    let path = require!(Artifacts::get().c_program("misuse/leftovers"));
    let world = require!(World::one_host(1500));
    for (how, output) in [("close", ""), ("exit", "ok\n")] {
        let outcome = run(&world, &["--check=fatal"], &[&path, how], Fabric::Any);
        assert_eq!((outcome.status.code(), &*outcome.stdout), (Some(99), output), "{outcome}");
        assert_eq!(ids(&outcome), ["FC106"], "{outcome}");
    }
    // What isn't written yet is waited for, with a bound.
    for pipe in ["full", "broken"] {
        let outcome = run(&world, &["--check=fatal"], &[&path, pipe], Fabric::Any);
        assert_eq!(outcome.status.code(), Some(99), "{outcome}");
        assert_eq!(ids(&outcome), ["FC106"], "{outcome}");
    }
    run(&world, &["--check=fatal"], &[&path, "none"], Fabric::Any).expect_ok().expect_quiet();
    run(&world, &["--check=fatal,-FC106"], &[&path, "exit"], Fabric::Any).expect_ok().expect_quiet();
}

#[test]
fn a_report_has_each_finding_and_is_whole() {
    let path = require!(Artifacts::get().c_program("misuse/leftovers"));
    let world = require!(World::one_host(1500));
    for (name, how, marks) in [
        ("none.json", "none", &["[\n]\n"][..]),
        ("one.json", "exit", &["\"id\": \"FC106\"", "\"function\": \"", "leftovers", "\n]\n"]),
        ("one.sarif", "exit", &["\"version\": \"2.1.0\"", "\"ruleId\": \"FC106\"", "\n]}]}\n"]),
        ("one.txt", "exit", &["]: FC106 exit: "]),
    ] {
        let file = format!("/tmp/{name}");
        run(&world, &["--check", "--check-report", &file], &[&path, how], Fabric::Any).expect_ok();
        let file = world.first().path(&file);
        let report = std::fs::read_to_string(&file).expect("a report");
        assert!(marks.iter().all(|mark| report.contains(mark)), "{report}");
        if !name.ends_with(".txt") {
            let parsed = Command::new("python3").args(["-m", "json.tool"]).arg(&file).output();
            assert!(parsed.is_ok_and(|output| output.status.success()), "{report}");
        }
    }
}

/// The published schema may not be copied: `FERROCE_SARIF_SCHEMA` names it (`sarif-schema-2.1.0.json` of OASIS).
fn sarif_schema() -> Result<String, Skip> {
    let schema = std::env::var("FERROCE_SARIF_SCHEMA");
    let schema =
        schema.map_err(|_| Skip("FERROCE_SARIF_SCHEMA doesn't name the schema of SARIF 2.1.0".into()))?;
    match Command::new("python3").args(["-c", "import jsonschema"]).output() {
        Ok(output) if output.status.success() => Ok(schema),
        _ => Err(Skip("Python has no module jsonschema".into())),
    }
}

#[test]
fn a_sarif_report_is_valid_by_the_published_schema() {
    let schema = require!(sarif_schema());
    let path = require!(Artifacts::get().c_program("misuse/checked"));
    let world = require!(World::one_host(1500));
    let words = [&*path, "queue_never_signaled", "wrong", "one"];
    run(&world, &["--check", "--check-report", "/tmp/report.sarif"], &words, Fabric::Any).expect_success();
    let validate = "import json, jsonschema, sys; read = lambda f: json.load(open(f)); \
                    report = read(sys.argv[1]); assert len(report['runs'][0]['results']) > 0; \
                    jsonschema.validate(report, read(sys.argv[2]))";
    let report = world.first().path("/tmp/report.sarif");
    let output = Command::new("python3").args(["-c", validate]).arg(report).arg(schema).output();
    let output = output.expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_finding_that_the_report_lacks_is_told() {
    let path = require!(Artifacts::get().c_program("misuse/leftovers"));
    let world = require!(World::one_host(1500));
    let settings = [("FERROCE_CHECK_REPORT", "/dev/full")];
    let outcome = world.first().start_ferroce(&["--check"], &[&path, "close"], &settings).wait(LIMIT);
    outcome.expect_ok();
    let lines: Vec<_> = outcome.stderr.lines().collect();
    assert!(lines[0].starts_with("ferroce: FC106 "), "{outcome}");
    let missing = "ferroce: findings are missing in the report /dev/full: No space left on device";
    assert!(lines[1].starts_with(missing) && lines.len() == 2, "{outcome}");
}

#[test]
fn what_only_looks_like_a_mistake_is_no_finding() {
    let path = require!(Artifacts::get().c_program("misuse/blameless"));
    let world = require!(World::one_host(1500));
    let cases = Command::new(&path).output().expect("the program runs").stdout;
    for case in String::from_utf8(cases).expect("case names are ASCII").lines() {
        // A finding that a correct program may have ends no process.
        let expected: &[_] = if case == "answer_in_memory" { &["FC110"] } else { &[] };
        for options in ["--check=fatal", "--check=memory"] {
            let outcome = run(&world, &[options], &[&path, case], Fabric::Any);
            outcome.expect_ok();
            let refusals = ["FC001", "FC030", "FC061"];
            let findings: Vec<_> = ids(&outcome).into_iter().filter(|id| !refusals.contains(id)).collect();
            assert_eq!(findings, expected, "{case}: {outcome}");
        }
    }
}

/// A program that uses verbs correctly: the first finding would end it.
fn client(words: &[&str]) {
    let package = if words[0].starts_with("ibv_") { "ibverbs-utils" } else { "perftest" };
    require!(tool(words[0], package));
    let world = require!(World::one_host(1500));
    for fabric in [Fabric::Any, Fabric::Udp] {
        let outcome = Pair::new(&world, fabric).options(&["--check=fatal"]).limit(LIMIT).run(words);
        outcome.expect_success();
        assert!(!outcome.to_string().contains("ferroce: FC"), "{outcome}");
    }
    world.first().expect_no_traces();
}

macro_rules! clients {
    ($($name:ident: $($word:literal)*;)*) => {$(
        #[test]
        fn $name() {
            client(&[$($word),*]);
        }
    )*};
}

clients! {
    write_bw: "ib_write_bw" "-n" "50" "-s" "4096" "-q" "2" "-F" "-x" "1";
    read_lat: "ib_read_lat" "-n" "50" "-s" "4096" "-F" "-x" "1";
    send_lat_with_events: "ib_send_lat" "-n" "50" "-e" "-F" "-x" "1";
    rc_pingpong: "ibv_rc_pingpong" "-g" "1" "-e" "-n" "50";
    srq_pingpong: "ibv_srq_pingpong" "-g" "1" "-n" "50";
    ud_pingpong: "ibv_ud_pingpong" "-g" "1" "-n" "50";
}

/// perftest's client destroys one of the two completion queues that it makes for SENDs (seen with gdb: two calls of ibv_create_cq, one of
/// ibv_destroy_cq).
#[test]
fn what_perftest_leaves_is_told() {
    require!(tool("ib_send_bw", "perftest"));
    let world = require!(World::one_host(1500));
    let words = ["ib_send_bw", "-n", "50", "-s", "64", "-F", "-x", "1"];
    let outcome = Pair::new(&world, Fabric::Any).options(&["--check"]).limit(LIMIT).run(&words);
    outcome.expect_success();
    assert_eq!((ids(&outcome.client), ids(&outcome.server)), (vec!["FC106"], vec![]), "{outcome}");
    assert!(outcome.client.stderr.contains("(1 cq made at ib_send_bw"), "{outcome}");
}
