//! Work that goes on when no thread polls any more.

use crate::namespace::in_namespace;
use crate::pair::pair;
use ferroce_nic::Poll as _;
use ferroce_proto::SendOp;
use ferroce_wire::Service;
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;
/// The background thread's longest sleep.
const SLEEP: Duration = Duration::from_secs(1);
const ROUNDS: usize = 6;

/// More than one turn's work, left by a thread that polled a moment ago: its lease keeps the background thread away,
/// but must not let it sleep on. Whether the message comes before a sleep half as long as the longest has ended, which
/// begins at the same time.
fn comes_first() -> bool {
    let (mut a, b) = pair(Service::Uc, LEN);
    a.memory.fill(7);
    // The background thread falls asleep.
    std::thread::sleep(Duration::from_millis(20));
    a.cq.poll(1, |_| ()).unwrap();
    let sleeper = std::thread::spawn(|| std::thread::sleep(SLEEP / 2));
    a.send(1, SendOp::Write { va: b.addr(), rkey: b.mr.key() }, a.sge(0, LEN), None);
    let start = Instant::now();
    let last = std::ptr::from_ref(&b.memory[LEN - 1]);
    // SAFETY: a byte of `b.memory`, which the adapter may be writing to through the kernel.
    while unsafe { last.read_volatile() } != 7 {
        assert!(start.elapsed() < 20 * SLEEP, "the message doesn't go on");
        std::thread::sleep(Duration::from_millis(1));
    }
    let first = !sleeper.is_finished();
    sleeper.join().unwrap();
    first
}

#[test]
fn a_message_goes_on_when_its_sender_stops_polling() {
    in_namespace("idle::a_message_goes_on_when_its_sender_stops_polling", || {
        // No message comes first if the background thread sleeps on. With 30 programs for each processor, half of them come late.
        let first = (0..ROUNDS).filter(|_| comes_first()).count();
        assert!(first > 1, "the background thread sleeps on: {first} of {ROUNDS}");
    });
}
