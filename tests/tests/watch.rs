//! What `ferroce ps` and `ferroce stats` show of real processes: a pair that hangs can be understood, a stopped process doesn't
//! hold up the command, and processes of other users are hidden.

use ferroce_tests::{Artifacts, Fabric, Outcome, Process, World, on_both_fabrics, require, tool};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

/// A command of ours, as an ordinary user.
fn ferroce(world: &World, words: &[&str]) -> Outcome {
    let ferroce = Artifacts::get().ferroce().into_os_string().into_string().expect("a UTF-8 path");
    let words = [&[&*ferroce], words].concat();
    world.first().start(&words, &[]).wait(LIMIT)
}

/// Starts both sides of `waiting_pair CASE`, and waits until both wait.
fn waiting_pair(world: &World, program: &str, case: &str, fabric: Fabric) -> [Process; 2] {
    let host = world.first();
    let mut server = host.start_ferroce(&[], &[program, case], fabric.settings());
    host.wait_for_listener(18515, &mut server, LIMIT);
    let mut client = host.start_ferroce(&[], &[program, case, &host.ipv4()], fabric.settings());
    for side in [&mut server, &mut client] {
        side.wait_for_output("waits", LIMIT);
    }
    [server, client]
}

/// The number of a side's queue pair, as it is written.
fn number_of(side: &Process) -> String {
    let line = side.stdout();
    line.split_whitespace().nth(2).expect("a number").to_owned()
}

/// Runs a command of ours until `says` is so of its output: a queue pair may be at work just when it is looked at.
fn shown(world: &World, words: &[&str], says: impl Fn(&str) -> bool) -> String {
    let begin = Instant::now();
    loop {
        let shown = ferroce(world, words);
        shown.expect_success().expect_quiet();
        if says(&shown.stdout) {
            return shown.stdout;
        }
        assert!(begin.elapsed() < LIMIT, "{shown}");
    }
}

/// The row of a queue pair, with one space between words.
fn row(shown: &str, number: &str) -> Option<String> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    shown.lines().map(words).find(|row| row.starts_with(number) && !row.contains("wait for each other"))
}

fn a_hung_pair(fabric: Fabric, words: &[&str]) {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let sides = waiting_pair(&world, program, words[0], fabric);
    let [server, client] = sides.each_ref().map(number_of);
    let mutual = words[0] == "mutual";
    let [of_server, of_client] = match mutual {
        true => ["0/16 1/16 1 waits for a message; its peer has none to send"; 2],
        false => [
            "0/16 0/16 1 has nothing to do: no request is posted",
            "1/16 0/16 1 waits with request 42 (SEND, 64 bytes): its peer has had no receive posted for # s",
        ],
    };
    let text = shown(&world, &["ps"], |shown| {
        let ends = |number: &str, says: &str| {
            row(shown, number).is_some_and(|row| without_seconds(&row).ends_with(says))
        };
        ends(&server, of_server) && ends(&client, of_client)
    });
    println!("{text}");
    for side in &sides {
        assert!(text.contains(&format!("Process {} of user ", side.id())), "{text}");
    }
    let last = text.lines().last().unwrap_or_default();
    let both = last.contains(&server) && last.contains(&client);
    assert_eq!(both && last.contains("wait for each other's message"), mutual, "{text}");
}

/// A row without the number of seconds at its end.
fn without_seconds(row: &str) -> String {
    match row.strip_suffix(" s").and_then(|row| row.rsplit_once(' ')) {
        Some((row, _)) => format!("{row} # s"),
        None => row.to_owned(),
    }
}

/// The lines without what differs from run to run: numbers, and the commands.
fn without_numbers(shown: &str) -> Vec<String> {
    let is_number = |word: &str| {
        let word = word.trim_matches(['(', ')']);
        word.starts_with("0x") || word.parse::<u64>().is_ok()
    };
    let line = |line: &str| {
        let line = if line.starts_with("Process ") { line.split(": ").next().unwrap_or(line) } else { line };
        let (line, user) = line.split_once(" of user ").map_or((line, ""), |(line, _)| (line, " of user"));
        let words = line.split_whitespace().map(|word| if is_number(word) { "#" } else { word });
        words.collect::<Vec<_>>().join(" ") + user
    };
    shown.lines().map(line).collect()
}

#[test]
fn the_book_shows_what_ps_shows_of_two_that_wait_for_each_other() {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let in_book = include_str!("../../book/shown/hung_pair.txt");
    let _sides = waiting_pair(&world, program, "mutual", Fabric::Any);
    shown(&world, &["ps"], |shown| without_numbers(shown) == without_numbers(in_book));
}

on_both_fabrics! {
    a_hung_pair:
    each_waits_for_the_others_message: "mutual";
    a_message_waits_for_a_receive: "unposted";
}

fn a_stopped_process(fabric: Fabric) {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let [server, client] = waiting_pair(&world, program, "mutual", fabric);
    server.signal(libc::SIGSTOP);
    let begin = Instant::now();
    let [_, _, shown] = [(); 3].map(|()| ferroce(&world, &["ps"]));
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    server.signal(libc::SIGCONT);
    let of_server = format!("Process {} of user", server.id());
    let mut lines = shown.stdout.lines().skip_while(|line| !line.starts_with(&of_server));
    assert!(lines.next().is_some() && lines.next() == Some("  stopped (no details)"), "{shown}");
    let waits = "waits for a message from its peer, whose process is stopped";
    let of_client = number_of(&client);
    assert!(row(&shown.stdout, &of_client).is_some_and(|row| row.ends_with(waits)), "{shown}");
    // It goes on, and answers again.
    self::shown(&world, &["ps"], |shown| shown.ends_with("has anything to send.\n"));
}

fn a_wait_without_limit_is_reported(fabric: Fabric) {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let [server, mut client] = waiting_pair(&world, program, "unposted", fabric);
    client.wait_for_error(
        " waits: the first message came before the first receive was posted (no receive for 3 s; ",
        LIMIT,
    );
    let lines = client.stderr();
    let begin = format!("ferroce: FC020 QP {}: request 42 (SEND of 64 bytes to QP ", number_of(&client));
    assert!(lines.starts_with(&begin), "{lines}");
    let number = number_of(&client);
    let shown = shown(&world, &["ps"], |shown| {
        row(shown, &number).is_some_and(|row| row.contains("has had no receive posted for 5 s"))
    });
    assert_eq!(client.stderr().lines().count(), 1, "once: {}{shown}", client.stderr());
    assert_eq!(server.stderr(), "");
}

#[test]
fn a_wait_without_limit_for_a_receive_is_reported_once() {
    a_wait_without_limit_is_reported(Fabric::Any);
}

#[test]
fn a_wait_without_limit_for_a_receive_is_reported_once_over_udp() {
    a_wait_without_limit_is_reported(Fabric::Udp);
}

/// The book's page on differences from adapters has these numbers.
#[test]
fn an_idle_process_has_64_sockets_an_address_and_few_other_descriptors() {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let sides = waiting_pair(&world, program, "mutual", Fabric::Udp);
    let addresses = world.first().admin("ip -o address show dev eth0").lines().count();
    for side in &sides {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", side.id())).expect("a process").count();
        let others = descriptors.checked_sub(64 * addresses).expect("a group of sockets for each address");
        assert!((10..=40).contains(&others), "{descriptors} descriptors with {addresses} addresses");
    }
}

#[test]
fn an_interface_that_is_down_is_named() {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::two_hosts(1500));
    let [first, last] = [world.first(), world.last()];
    let mut server = last.start_ferroce(&[], &[program, "talking"], &[]);
    last.wait_for_listener(18515, &mut server, LIMIT);
    let mut client = first.start_ferroce(&[], &[program, "talking", &last.ipv4()], &[]);
    client.wait_for_output("talks", LIMIT);
    first.admin("ip link set eth0 down");
    client.wait_for_error("the peer's address (the interface eth0 is down)", LIMIT);
    assert!(client.stderr().starts_with("ferroce: FC014 QP "), "{}", client.stderr());
}

/// A listener, a request that its stopped process doesn't answer, and the connection that follows.
fn connections_are_shown(fabric: Fabric) {
    require!(tool("rping", "rdmacm-utils"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    let address = host.ipv4();
    // It gives the client its sockets while the server is stopped.
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let mut holder = host.start_ferroce(&[], &[program, "mutual"], fabric.settings());
    host.wait_for_listener(18515, &mut holder, LIMIT);
    let mut server = host.start_ferroce(&[], &["rping", "-s", "-C", "100000"], fabric.settings());
    host.wait_for_rdma_port(0x0106, 7174, &mut server, LIMIT);
    let server_id = server.id().to_string();
    shown(&world, &["ps", &server_id], |shown| shown.contains("\n  listens at 0.0.0.0:7174\n"));
    server.signal(libc::SIGSTOP);
    let line = ["rping", "-c", "-C", "100000", "-a", &address];
    let client = host.start_ferroce(&[], &line, fabric.settings());
    let client_id = client.id().to_string();
    let waits = format!(" s for the answer of {address}:7174\n");
    let waits_for = |shown: &str| {
        let rows = shown.split_inclusive('\n');
        rows.filter_map(|row| row.strip_prefix("  waits ")?.strip_suffix(&waits)?.parse::<u32>().ok()).next()
    };
    let first = waits_for(&shown(&world, &["ps"], |shown| waits_for(shown).is_some()));
    shown(&world, &["ps", &client_id], |shown| waits_for(shown) > first);
    let json = shown(&world, &["ps", "--json", &client_id], |shown| shown.contains("\"REQ_SENT\""));
    assert!(json.contains(&format!("\"peer\": \"{address}:7174\"")), "{json}");
    server.signal(libc::SIGCONT);
    let connected = format!("\n  is connected to {address}:7174 (QP 0x");
    shown(&world, &["ps", &client_id], |shown| shown.contains(&connected));
    shown(&world, &["ps", &server_id], |shown| shown.contains(&format!("\n  is connected to {address}:")));
}

#[test]
fn listeners_and_connections_are_shown() {
    connections_are_shown(Fabric::Any);
}

#[test]
fn listeners_and_connections_are_shown_over_udp() {
    connections_are_shown(Fabric::Udp);
}

#[test]
fn a_stopped_process_is_shown_as_stopped_and_keeps_nobody_waiting() {
    a_stopped_process(Fabric::Any);
}

#[test]
fn a_stopped_process_is_shown_as_stopped_also_over_udp() {
    a_stopped_process(Fabric::Udp);
}

#[test]
fn what_is_shown_is_there_as_json_too() {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let sides = waiting_pair(&world, program, "mutual", Fabric::Any);
    let shown = ferroce(&world, &["ps", "--json", &sides[0].id().to_string()]);
    shown.expect_success().expect_quiet();
    for part in [
        &format!("\"pid\": {},", sides[0].id()),
        "\"condition\": \"running\"",
        "\"waits\": \"waits for a message; its peer has none to send\"",
        "\"operation\"",
    ] {
        assert_eq!(shown.stdout.contains(part), part != "\"operation\"", "{part}: {shown}");
    }
    assert!(
        !shown.stdout.contains(&format!("\"pid\": {},", sides[1].id())),
        "only what was asked for: {shown}"
    );
    let nobody = ferroce(&world, &["ps", "1"]);
    assert!(!nobody.success() && nobody.stderr.contains("process 1 doesn't use Ferroce"), "{nobody}");
}

/// Runs a command of ours, as root, or as a user without capabilities.
fn ferroce_as(world: &World, user: Option<&str>, words: &str) -> String {
    let ferroce = Artifacts::get().ferroce();
    let switch = user.map(|user| World::as_user(user).join(" ")).unwrap_or_default();
    world.first().admin(&format!("{switch} {} {words} 2>&1", ferroce.display()))
}

#[test]
fn a_user_sees_their_own_processes_and_root_sees_all() {
    require!(World::needs_other_users());
    require!(tool("setpriv", "util-linux"));
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    let words = [&World::as_user("12345")[..], &[program, "mutual"]].concat();
    let mut server = host.start_ferroce_privileged(&[], &words, &[]);
    host.wait_for_listener(18515, &mut server, LIMIT);
    let shown = ferroce_as(&world, None, "ps");
    assert!(shown.contains(&format!("Process {} of user 12345: ", server.id())), "{shown}");
    assert!(shown.contains("INIT") && shown.contains("isn't connected yet"), "{shown}");
    let own = ferroce_as(&world, Some("12345"), "ps");
    assert_eq!(own, shown, "what root sees is what the user sees");
    for command in ["ps", "stats"] {
        let others = ferroce_as(&world, Some("12346"), command);
        assert!(others.starts_with(&format!("ferroce {command}: no process of this user")), "{others}");
    }
}

#[test]
fn top_goes_on_when_a_process_that_it_shows_dies() {
    require!(tool("script", "bsdutils"));
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let [server, client] = waiting_pair(&world, program, "mutual", Fabric::Any);
    let table = ferroce(&world, &["top", "--once", "--interval", "0.05"]);
    table.expect_success().expect_quiet();
    for side in [&server, &client] {
        assert!(table.stdout.lines().any(|line| line.starts_with(&side.id().to_string())), "{table}");
    }
    let top = Artifacts::get().ferroce();
    let command = format!("stty rows 20 cols 120; {} top -i 0.05 -n 20; echo status=$?", top.display());
    let mut top = world.first().start(&["script", "-qec", &*command, "/dev/null"], &[]);
    top.wait_for_output(&number_of(&server), LIMIT);
    server.signal(libc::SIGKILL);
    let shown = top.wait(LIMIT);
    assert!(shown.stdout.contains("status=0"), "{shown}");
    let rest = ferroce(&world, &["top", "--json", "--processes", "-i", "0.05", "-n", "1"]);
    rest.expect_success().expect_quiet();
    assert!(rest.stdout.contains(&format!("\"pid\":{}", client.id())), "{rest}");
    assert!(!rest.stdout.contains(&format!("\"pid\":{}", server.id())), "{rest}");
}

#[test]
fn counters_go_by_the_names_of_the_kernel() {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let sides = waiting_pair(&world, program, "unposted", Fabric::Any);
    let devices = ferroce(&world, &["stats"]);
    devices.expect_success().expect_quiet();
    assert!(devices.stdout.starts_with("link ferroce0/1 sent_pkts "), "{devices}");
    assert!(devices.stdout.contains(" sent_bytes 64 rcvd_bytes 0\n"), "{devices}");
    let refused = |text: &str| {
        let values =
            text.split("\"send_rnr_err\": ").skip(1).map(|rest| rest.split(',').next().unwrap_or(""));
        values.filter_map(|value| value.parse::<u64>().ok()).sum::<u64>()
    };
    let pairs = shown(&world, &["stats", "--qp", "--json"], |shown| refused(shown) > 0);
    for side in &sides {
        assert!(pairs.contains(&format!("\"pid\": {},", side.id())), "{pairs}");
    }
}

#[test]
fn counters_in_sys_are_those_of_the_processes_that_are_there() {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let counter = |name: &str| {
        let path = format!("/sys/class/infiniband/ferroce0/ports/1/{name}");
        let mut cat = world.first().start_ferroce(&[], &["cat", &path], &[]);
        cat.wait(LIMIT).expect_success().expect_quiet().stdout.trim().parse::<u64>().expect("a number")
    };
    assert_eq!(counter("hw_counters/sent_pkts"), 0, "no process uses the device");
    let sides = waiting_pair(&world, program, "unposted", Fabric::Any);
    assert_eq!(counter("counters/port_xmit_data"), 64 / 4);
    let begin = Instant::now();
    while counter("hw_counters/send_rnr_err") == 0 {
        assert!(begin.elapsed() < LIMIT, "the peer has no receive");
    }
    drop(sides);
}

#[test]
fn a_capture_is_told_a_line_a_message() {
    let program = &*require!(Artifacts::get().c_program("watch/waiting_pair"));
    let world = require!(World::one_host(1500));
    let host = world.first();
    let file = "/tmp/trace.pcapng";
    let capture = ["--capture", file];
    let mut server = host.start_ferroce(&[], &[program, "unposted"], Fabric::Any.settings());
    host.wait_for_listener(18515, &mut server, LIMIT);
    let mut client =
        host.start_ferroce(&capture, &[program, "unposted", &host.ipv4()], Fabric::Any.settings());
    client.wait_for_output("waits", LIMIT);
    let ferroce = Artifacts::get().ferroce().into_os_string().into_string().expect("a UTF-8 path");
    let mut follower = host.start(&[&*ferroce, "trace", "--follow", file], &[]);
    follower.wait_for_output("NAK: receiver not ready", LIMIT);
    let text = follower.stdout();
    assert!(
        text.contains(" out 10.77.0.1 > 10.77.0.1 QP ") && text.contains("SEND, 64 bytes in 1 packet,"),
        "{text}"
    );
    client.signal(libc::SIGKILL);
    let refusals = shown(&world, &["trace", "--json", "--errors", file], |shown| !shown.is_empty());
    assert!(refusals.lines().all(|line| line.contains("\"refusal\":\"receiver not ready\"")), "{refusals}");
    let missing = self::ferroce(&world, &["trace", "/tmp/nothing"]);
    assert!(!missing.success() && missing.stderr.contains("/tmp/nothing"), "{missing}");
    let number = self::ferroce(&world, &["trace", "1"]);
    assert!(!number.success() && number.stderr.contains("`ferroce trace --pid 1`"), "{number}");
    let nothing = self::ferroce(&world, &["trace", "--op", "nothing", file]);
    assert!(nothing.success() && nothing.stdout.is_empty(), "{nothing}");
    assert!(nothing.stderr.contains("is wanted by the options"), "{nothing}");
}
