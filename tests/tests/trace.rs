//! What `ferroce trace --pid PID` shows of running processes, and that neither side can harm the other.

use ferroce_tests::{Artifacts, Fabric, Outcome, Process, World, on_both_fabrics, require, tool};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

fn command() -> String {
    Artifacts::get().ferroce().into_os_string().into_string().expect("a UTF-8 path")
}

/// `ferroce trace` of a process, with options.
fn start_trace(world: &World, process: &Process, options: &[&str]) -> Process {
    let (command, pid) = (command(), process.id().to_string());
    let words = [&[&*command, "trace", "--pid", &*pid], options].concat();
    world.first().start(&words, &[])
}

fn trace(world: &World, process: &Process, options: &[&str]) -> Outcome {
    start_trace(world, process, options).wait(LIMIT)
}

/// As [`start_trace`], of a process that has messages. The tracer is attached: another one is refused.
fn attach(world: &World, process: &Process, options: &[&str]) -> Process {
    let begin = Instant::now();
    let mut tracer = start_trace(world, process, options);
    while !trace(world, process, &["-n", "1"]).stderr.contains("it is being traced already") {
        assert!(begin.elapsed() < LIMIT, "{}", tracer.stderr());
        // The other one came first.
        if tracer.has_ended() {
            tracer = start_trace(world, process, options);
        }
    }
    tracer
}

/// Starts both sides of `waiting_pair CASE`, and waits until both `say` so.
fn pair(world: &World, program: &str, case: &str, says: &str, fabric: Fabric) -> [Process; 2] {
    let host = world.first();
    let mut server = host.start_ferroce(&[], &[program, case], fabric.settings());
    host.wait_for_listener(18515, &mut server, LIMIT);
    let mut client = host.start_ferroce(&[], &[program, case, &host.ipv4()], fabric.settings());
    for side in [&mut server, &mut client] {
        side.wait_for_output(says, LIMIT);
    }
    [server, client]
}

/// The number of a side's queue pair, as it is written.
fn number_of(side: &Process) -> String {
    side.stdout().split_whitespace().nth(2).expect("a number").to_owned()
}

/// Waits until a process has forgotten its tracer: it lets another one in.
fn wait_until_forgotten(world: &World, process: &Process) {
    let begin = Instant::now();
    while !trace(world, process, &["-n", "1"]).success() {
        assert!(begin.elapsed() < LIMIT, "the tracer is gone");
    }
}

fn messages_are_told(fabric: Fabric, _: &[&str]) {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let [server, client] = pair(&world, program, "talking", "talks", fabric);
    let sent = trace(&world, &client, &["-n", "5"]);
    sent.expect_success().expect_quiet();
    let says =
        format!(" out {} QP {} SEND, 64 bytes, request 42: IBV_WC_SUCCESS", client.id(), number_of(&client));
    assert!(sent.stdout.lines().filter(|line| line.ends_with(&says)).count() == 5, "{says}: {sent}");
    let received = trace(&world, &server, &["-n", "5", "--json", "--qp", &number_of(&server)]);
    received.expect_success().expect_quiet();
    for part in
        ["\"direction\":\"in\"", "\"operation\":\"receive\"", "\"bytes\":64", "\"wr_id\":1", "IBV_WC_SUCCESS"]
    {
        assert_eq!(received.stdout.matches(part).count(), 5, "{part}: {received}");
    }
    wait_until_forgotten(&world, &server);
    // What was filtered away is silent; the process dies under the tracer.
    let sends = attach(&world, &server, &["--op", "send"]);
    std::thread::sleep(Duration::from_millis(200));
    assert!(sends.stdout().is_empty() && sends.stderr().is_empty(), "{}{}", sends.stdout(), sends.stderr());
    drop(sends);
    let mut all = start_trace(&world, &client, &["--op", "send"]);
    all.wait_for_output("SEND, 64 bytes", LIMIT);
    client.signal(libc::SIGKILL);
    let shown = all.wait(LIMIT);
    assert!(shown.success() && shown.stderr.contains("has ended"), "{shown}");
}

on_both_fabrics! {
    messages_are_told:
    each_message_is_a_line_with_its_end: "";
}

#[test]
fn only_errors_are_told_if_nothing_else_is_wanted() {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let [server, client] = pair(&world, program, "talking", "talks", Fabric::Any);
    let mut tracer = attach(&world, &client, &["--errors", "-n", "1"]);
    assert!(tracer.stdout().is_empty(), "{}", tracer.stdout());
    server.signal(libc::SIGKILL);
    let shown = tracer.wait(LIMIT);
    let says = format!("QP {} SEND, 64 bytes, request 42: IBV_WC_RETRY_EXC_ERR\n", number_of(&client));
    assert!(shown.success() && shown.stdout.ends_with(&says), "{says}: {shown}");
}

#[test]
fn what_is_too_much_is_left_out_and_counted_and_one_traces_at_a_time() {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let [server, client] = pair(&world, program, "hasty", "talks", Fabric::Any);
    let mut first = start_trace(&world, &client, &[]);
    first.wait_for_output("not noted: what ended in ", LIMIT);
    let second = trace(&world, &client, &[]);
    assert!(!second.success() && second.stderr.contains("it is being traced already"), "{second}");
    // A tracer that is stopped, then killed, leaves nothing, and the process goes on.
    first.signal(libc::SIGSTOP);
    let rest = trace(&world, &server, &["-n", "20"]);
    rest.expect_success();
    first.signal(libc::SIGKILL);
    wait_until_forgotten(&world, &client);
    trace(&world, &client, &["-n", "20"]).expect_success();
}

#[test]
fn who_is_stopped_is_waited_for_and_who_is_not_there_is_named() {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let [server, client] = pair(&world, program, "talking", "talks", Fabric::Any);
    let mut tracer = start_trace(&world, &server, &[]);
    tracer.wait_for_output("receive", LIMIT);
    server.signal(libc::SIGSTOP);
    let begin = Instant::now();
    while !tracer.stderr().contains("is stopped: waiting for it") {
        assert!(begin.elapsed() < LIMIT && !tracer.has_ended(), "{}", tracer.stderr());
    }
    let stopped = trace(&world, &server, &[]);
    assert!(!stopped.success() && stopped.stderr.contains("it is stopped"), "{stopped}");
    let told = tracer.stdout().len();
    server.signal(libc::SIGCONT);
    while tracer.stdout().len() == told {
        assert!(begin.elapsed() < LIMIT && !tracer.has_ended(), "{}", tracer.stderr());
    }
    drop((server, client));
    let shown = tracer.wait(LIMIT);
    assert!(shown.success() && shown.stderr.contains("has ended"), "{shown}");
    let nobody = world.first().start(&[&*command(), "trace", "--pid", "1"], &[]).wait(LIMIT);
    assert!(!nobody.success() && nobody.stderr.contains("process 1: it doesn't use Ferroce"), "{nobody}");
}

#[test]
fn nobody_traces_another_users_process_but_root() {
    require!(World::needs_other_users());
    require!(tool("setpriv", "util-linux"));
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    let words = [&World::as_user("12345")[..], &[program, "talking"]].concat();
    let mut server = host.start_ferroce_privileged(&[], &words, &[]);
    host.wait_for_listener(18515, &mut server, LIMIT);
    let ipv4 = host.ipv4();
    let words = [&World::as_user("12345")[..], &[program, "talking", &ipv4]].concat();
    let mut client = host.start_ferroce_privileged(&[], &words, &[]);
    client.wait_for_output("talks", LIMIT);
    let traced = |user: Option<&'static str>| {
        let switch = user.map(|user| World::as_user(user).join(" ")).unwrap_or_default();
        host.admin(&format!("{switch} {} trace -n 1 --pid {} 2>&1 || true", command(), client.id()))
    };
    for user in [None, Some("12345")] {
        assert!(traced(user).contains(" SEND, 64 bytes"), "{user:?}");
    }
    assert!(traced(Some("12346")).contains("isn't yours"));
}

/// Processes that take names of slots and answer each process that asks, each in its own bad way, while their parent is there. Each prints
/// its way and its number.
const HOSTILE: &str = r#"
import fcntl, json, os, signal, socket, sys, time
def memory(data, size=None):
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if size: os.ftruncate(fd, size)
    fcntl.fcntl(fd, 1033, 2 | 4)
    return fd
text = "\x1b]0;title\x07\x1b[2J\u202e"
account = {"version": text, "devices": [{"name": text, "interface": text}],
           "queue_pairs": [{"number": 1, "state": text, "device": text, "fabric": text, "peer": {"address": text}}],
           "regions": [{"access": text}], "messages": [{"number": 1, "operation": text}], "unseen": 2**64 - 1}
good = memory(json.dumps(account).encode())
endless = memory(b"[", 1 << 40)
granted = b"FRCE\x02\x00\x00\x00"
def answer(way, connection):
    send = lambda data, fds: socket.send_fds(connection, [data], fds)
    if way == "garbage": send(os.urandom(100), [])
    if way == "escapes": send(granted, [good])
    if way == "endless": send(granted, [endless])
    if way == "hasty":
        for _ in range(20): send(granted, [good])
def serve(way, slot):
    parent = os.getppid()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0ferroce-2-slot-%d" % slot)
    listener.listen(64)
    print(way, os.getpid(), ".", flush=True)
    listener.settimeout(0.1)
    connections = []
    while os.getppid() == parent:
        try:
            connection = listener.accept()[0]
            connection.settimeout(0)
            if way != "rude": connections.append(connection)
        except OSError: pass
        for connection in connections:
            try:
                if connection.recv(200): answer(way, connection)
            except OSError: pass
        listener.settimeout(0.005 if connections else 0.1)
signal.alarm(60)
for number, way in enumerate(["silent", "garbage", "escapes", "endless", "hasty", "rude"]):
    if os.fork() == 0: serve(way, 4000 + number)
time.sleep(60)
"#;

#[test]
fn whatever_a_watched_process_answers_harms_no_watcher() {
    require!(tool("python3", "python3"));
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let sides = pair(&world, program, "mutual", "waits", Fabric::Any);
    let mut hostile = world.first().start(&["python3", "-c", HOSTILE, "\x1b[31mred"], &[]);
    let ways = ["silent", "garbage", "escapes", "endless", "hasty", "rude"];
    for way in ways {
        hostile.wait_for_output(&format!("{way} "), LIMIT);
    }
    let says = hostile.stdout();
    let run = |words: &[&str]| {
        let begin = Instant::now();
        let shown = world.first().start(&[&[&*command()], words].concat(), &[]).wait(LIMIT);
        assert!(begin.elapsed() < Duration::from_secs(10), "{words:?}: {:?}", begin.elapsed());
        for text in [&shown.stdout, &shown.stderr] {
            assert!(!text.contains(['\x1b', '\x07', '\u{202e}']), "{words:?}: {shown}");
        }
        shown
    };
    for words in
        [&["ps"][..], &["ps", "--json"], &["top", "--once", "-i", "0.01"], &["stats", "--qp"], &["stats"]]
    {
        let shown = run(words);
        let names = |side: &Process| words == ["stats"] || shown.stdout.contains(&side.id().to_string());
        assert!(shown.success() && sides.iter().all(names), "{shown}");
    }
    for way in ways {
        let pid = says.lines().find_map(|line| line.strip_prefix(way)).expect("a number");
        let pid = pid.split_whitespace().next().expect("a number");
        let shown = run(&["trace", "-n", "3", "--pid", pid]);
        assert_eq!(shown.success(), matches!(way, "escapes" | "hasty"), "{way}: {shown}");
    }
}

/// A watcher that asks badly, and one that asks and never reads.
const RUDE_WATCHER: &str = r#"
import os, re, socket, sys
prefix = "ferroce-2-slot-"
names = set(re.findall("@(" + prefix + "[0-9]+)", open("/proc/net/unix").read()))
def dial(name):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect("\0" + name)
    return connection
def ask(connection, what):
    # The process may have closed the connection.
    try: connection.send(what)
    except ConnectionError: pass
header = b"FRCE\x02\x09\x00\x00"
for name in names:
    for question in [b"", b"\x02", b"\x00\x01", b"\x00" + b"\xff" * 119]:
        ask(dial(name), header + question)
    connection = dial(name)
    ask(connection, header + b"\x00")
    try:
        for _ in range(5000): connection.send(header + b"\x00", socket.MSG_DONTWAIT)
    except OSError: pass
    second = dial(name)
    ask(second, header + b"\x00")
    connection.close()
    third = dial(name)
    ask(third, header + b"\x00")
    ask(third, b"nonsense")
print(len(names), "asked", flush=True)
"#;

#[test]
fn whatever_a_watcher_asks_harms_no_process() {
    require!(tool("python3", "python3"));
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let [server, client] = pair(&world, program, "talking", "talks", Fabric::Any);
    let rude = world.first().start(&["python3", "-c", RUDE_WATCHER], &[]).wait(LIMIT);
    assert!(rude.success() && rude.stdout.starts_with("2 asked"), "{rude}");
    for side in [&server, &client] {
        wait_until_forgotten(&world, side);
        let shown = trace(&world, side, &["-n", "3"]);
        assert!(shown.success() && shown.stdout.lines().count() >= 3, "{shown}");
    }
}
