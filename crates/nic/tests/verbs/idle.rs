//! What goes on when nobody polls any more.

use crate::namespace::in_namespace;
use crate::pair::pair;
use ferroce_nic::{SendOp, Service};
use std::time::Duration;

const LEN: usize = 1 << 20;
/// Naps of a millisecond: a quarter of the background thread's longest sleep, and more on a machine that is as slow to wake
/// this thread as that one.
const NAPS: u32 = 250;

/// More than one turn's work, left by a thread that polled a moment ago: its lease keeps the background thread away,
/// but must not let it sleep on.
fn arrives_soon() -> bool {
    let (mut a, b) = pair(Service::Uc, LEN);
    a.memory.fill(7);
    // The background thread falls asleep.
    std::thread::sleep(Duration::from_millis(20));
    a.cq.poll(1, |_| ()).unwrap();
    a.send(1, SendOp::Write { va: b.addr(), rkey: b.mr.key() }, a.sge(0, LEN), None);
    let last = std::ptr::from_ref(&b.memory[LEN - 1]);
    for _ in 0..NAPS {
        // SAFETY: a byte of `b.memory`, which the adapter may be writing to through the kernel.
        if unsafe { last.read_volatile() } == 7 {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

#[test]
fn a_message_goes_on_when_its_sender_stops_polling() {
    in_namespace("idle::a_message_goes_on_when_its_sender_stops_polling", || {
        // Most of several, for machines that are busy with other things.
        let soon = (0..5).filter(|_| arrives_soon()).count();
        assert!(soon >= 3, "nobody goes on with the message while nobody polls");
    });
}
