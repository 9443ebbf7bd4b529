//! Tests of crates in namespaces of their own: a test runs itself again there. UDP port 4791 and the abstract names are then
//! the test's alone, and all its processes end with it.
//!
//! Out of here: hosts for programs that are processes of their own; these are a [`World`](crate::World).

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Names the test that is to run inside its namespace.
const INSIDE: &str = "FERROCE_TEST_INSIDE";
const OPTIONS: [&str; 2] = ["--kill-child", "--mount-proc"];
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The test whose namespaces this process is in.
pub(crate) fn running() -> Option<String> {
    std::env::var(INSIDE).ok()
}

/// Runs `body` in new user, network and PID namespaces, with the loopback interface up. `test` is the test's full name.
pub fn in_namespace(test: &str, body: fn()) {
    run("-Urnpf", test, body);
}

/// The same with namespaces of the caller's choice, as options of unshare(1); PID and network must be among them.
pub fn run(namespaces: &str, test: &str, body: fn()) {
    if running().as_deref() == Some(test) {
        // The first process of a PID namespace ignores most signals; this ends it, and with it all the others.
        std::thread::spawn(|| {
            std::thread::sleep(TIME_LIMIT);
            eprintln!("took more than {TIME_LIMIT:?}");
            std::process::exit(99);
        });
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.unwrap().success());
        return body();
    }
    let can = Command::new("unshare").arg(namespaces).args(OPTIONS).args(["ip", "link"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        crate::record_skip(&format!(
            "no namespaces can be made here (unshare {namespaces} {} ip link)",
            OPTIONS.join(" ")
        ));
        return;
    }
    let mut child = Command::new("unshare")
        .arg(namespaces)
        .args(OPTIONS)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(INSIDE, test)
        .env_remove("FERROCE_DEVICES")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        let _ = out.read_to_string(&mut said);
        let _ = err.read_to_string(&mut said);
        said
    });
    let deadline = Instant::now() + TIME_LIMIT + Duration::from_secs(10);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{test} took more than {TIME_LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let said = reader.join().unwrap();
    assert!(status.success() && said.contains("1 passed"), "{said}");
}
