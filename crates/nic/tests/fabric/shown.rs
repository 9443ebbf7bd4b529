//! How processes of the host are shown to one that asks all of them.

use super::namespace::in_namespace;
use ferroce_host::{Host, QueryResult, ask_all};
use ferroce_tests::wait::eventually;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Any user can fill the queue of connections: its process isn't one of another PID namespace for that.
#[test]
fn a_process_that_too_many_wait_to_ask_is_shown_as_such() {
    in_namespace("shown::a_process_that_too_many_wait_to_ask_is_shown_as_such", || {
        let host = Host::join().unwrap();
        let slot = host.slots()[0];
        let ask = || {
            let all = ask_all(0, 4096, Duration::from_secs(60), |_, account| Some(account.len())).unwrap();
            all.into_iter().find(|one| one.slots.contains(&slot))
        };
        while host.dial(slot).is_ok() {}
        // Where the kernel lists the users of sockets.
        if let Some(crowded) = ask() {
            assert_eq!((crowded.pid, crowded.told), (Some(std::process::id()), QueryResult::Crowded));
        }
        (0..10).for_each(|_| host.answer_requests());
        std::thread::scope(|scope| {
            let asks = scope.spawn(ask);
            while !asks.is_finished() {
                host.answer_requests();
                std::thread::sleep(Duration::from_millis(1));
            }
            let found = asks.join().unwrap().expect("it is shown");
            assert_eq!(found.pid, Some(std::process::id()));
            assert_ne!(found.told, QueryResult::Silence);
        });
    });
}

/// The slots that each process with this test's number is shown with.
fn shown_slots() -> Vec<Vec<u16>> {
    let all = ask_all(0, 4096, Duration::from_millis(200), |_, account| Some(account.len())).unwrap();
    let own = all.into_iter().filter(|one| one.pid == Some(std::process::id()));
    own.map(|mut one| {
        one.slots.sort_unstable();
        one.slots
    })
    .collect()
}

#[test]
fn a_process_is_shown_once_though_one_of_its_slots_is_crowded() {
    in_namespace("shown::a_process_is_shown_once_though_one_of_its_slots_is_crowded", || {
        let host = Host::join().unwrap();
        let mut slots = [host.slots()[0], host.claim_slot().unwrap()];
        slots.sort_unstable();
        for crowded in slots {
            while host.dial(crowded).is_ok() {}
            assert_eq!(shown_slots(), [slots], "{crowded} is crowded");
            eventually("its queue has room", || {
                host.answer_requests();
                host.dial(crowded).is_ok()
            });
        }
    });
}

/// Processes are asked 128 at a time.
#[test]
fn a_process_is_shown_once_though_many_have_slots_between_its_own() {
    in_namespace("shown::a_process_is_shown_once_though_many_have_slots_between_its_own", || {
        const OTHERS: u16 = 130;
        let host = Host::join().unwrap();
        let mut slots = host.slots().to_vec();
        while slots[slots.len() - 1] - slots[0] < 4 * OTHERS {
            slots.push(host.claim_slot().unwrap());
            slots.sort_unstable();
        }
        let [first, last] = [slots[0], slots[slots.len() - 1]];
        let between: Vec<u16> =
            (first + 1..last).filter(|slot| !slots.contains(slot)).take(OTHERS.into()).collect();
        // Each of these processes has a slot, and ends with this process.
        let code = format!(
            "import os,socket,sys
for slot in {between:?}:
    if os.fork()==0:
        s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); s.bind('\\0ferroce-2-slot-%d'%slot); s.listen(64)
        os.write(1,b'ready\\n'); sys.stdin.read(); os._exit(0)
sys.stdin.read()
while True:
    try: os.wait()
    except ChildProcessError: break"
        );
        let mut python = Command::new("python3");
        let started = python.args(["-c", &code]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut others) = started else { return ferroce_tests::record_skip("no python3") };
        let mut lines = BufReader::new(others.stdout.take().unwrap()).lines();
        for _ in 0..OTHERS {
            assert_eq!(lines.next().unwrap().unwrap(), "ready");
        }
        assert_eq!(shown_slots(), [slots]);
        drop(others.stdin.take());
        assert!(others.wait().unwrap().success());
    });
}
