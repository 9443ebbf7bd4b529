//! What goes on when nobody polls any more.

use crate::namespace::in_namespace;
use crate::pair::pair;
use ferroce_nic::{SendOp, Service};
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;
/// The background thread's longest sleep.
const SLEEP: Duration = Duration::from_secs(1);
const ROUNDS: u32 = 6;

/// More than one turn's work, left by a thread that polled a moment ago: its lease keeps the background thread away,
/// but must not let it sleep on. Returns how long the message took.
fn arrives() -> Duration {
    let (mut a, b) = pair(Service::Uc, LEN);
    a.memory.fill(7);
    // The background thread falls asleep.
    std::thread::sleep(Duration::from_millis(20));
    a.cq.poll(1, |_| ()).unwrap();
    a.send(1, SendOp::Write { va: b.addr(), rkey: b.mr.key() }, a.sge(0, LEN), None);
    let start = Instant::now();
    let last = std::ptr::from_ref(&b.memory[LEN - 1]);
    // SAFETY: a byte of `b.memory`, which the adapter may be writing to through the kernel.
    while unsafe { last.read_volatile() } != 7 {
        assert!(start.elapsed() < 20 * SLEEP, "nobody goes on with the message");
        std::thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

#[test]
fn a_message_goes_on_when_its_sender_stops_polling() {
    in_namespace("idle::a_message_goes_on_when_its_sender_stops_polling", || {
        // Each message would wait for the end of the sleep. A busy machine may hold up one or two as long, not half of all.
        let took: Vec<Duration> = (0..ROUNDS).map(|_| arrives()).collect();
        let slept = took.iter().sum::<Duration>();
        assert!(slept < ROUNDS * SLEEP / 2, "the background thread sleeps while nobody polls: {took:?}");
    });
}
