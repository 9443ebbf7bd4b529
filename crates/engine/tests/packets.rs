//! The background thread after packets have come: it looks for more before it sleeps.

use ferroce_engine::{Deadline, Handler, Job, Loop, Queued, Runnable, Source, Thread};
use ferroce_os::{clock, fork};
use ferroce_types::Instant;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long after a packet the next one is there.
const APART: Duration = Duration::from_micros(10);
/// Packets that are taken without a sleep in between: a thread that sleeps when a look was in vain takes one.
const MANY: u32 = 20;

static ARRIVED: AtomicBool = AtomicBool::new(false);
static LAST: AtomicU64 = AtomicU64::new(0);
/// Packets since the thread slept last, and the most of them.
static TAKEN: AtomicU32 = AtomicU32::new(0);
static MOST: AtomicU32 = AtomicU32::new(0);

struct NoJob(Queued);

impl Runnable for NoJob {
    fn queued(&self) -> &Queued {
        &self.0
    }
}

impl Job for NoJob {
    fn run(self: Arc<Self>, _now: Instant) {}
}

/// A socket that a packet comes to some time after the last one was taken, and that never wakes the thread.
struct Socket;

impl Source for Socket {
    fn poll(&self, now: Instant) -> bool {
        if now < Instant(LAST.load(Ordering::SeqCst)).after(APART) {
            return false;
        }
        LAST.store(now.0, Ordering::SeqCst);
        ARRIVED.store(true, Ordering::SeqCst);
        MOST.fetch_max(TAKEN.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        true
    }

    fn has_arrived(&self) -> bool {
        ARRIVED.swap(false, Ordering::SeqCst)
    }

    fn about_to_sleep(&self) -> bool {
        TAKEN.store(0, Ordering::SeqCst);
        false
    }
}

struct Quiet;

impl Source for Quiet {}

struct Adapter(Loop<Self>, Deadline);

impl Handler for Adapter {
    type Job = NoJob;
    type Alarm = ();

    fn engine(&self) -> &Loop<Self> {
        &self.0
    }

    fn sources(&'static self) -> impl Source {
        (Socket, Quiet, Quiet, Quiet)
    }

    fn due(&'static self, _number: u32, _now: Instant) -> bool {
        self.1.taken();
        false
    }

    fn ring(&'static self, _alarm: Arc<()>, _now: Instant) {}

    fn panicked(&'static self) {}

    fn descriptors_lost(&'static self, _fd: RawFd) {}
}

#[test]
fn packets_that_follow_one_another_are_taken_without_a_sleep_in_between() {
    static ADAPTER: OnceLock<Adapter> = OnceLock::new();
    fork::install();
    let adapter = ADAPTER.get_or_init(|| Adapter(Loop::new().expect("a loop"), Deadline::default()));
    Thread::start().expect("a thread").drive(adapter);
    // Other programs that want the processor end a watch, and some sleeps then pass without one.
    let begun = clock::now();
    while MOST.load(Ordering::SeqCst) < MANY {
        assert!(clock::now().since(begun) < Duration::from_secs(30), "{MOST:?} packets at most");
        adapter.0.schedule(&adapter.1, clock::now(), 1);
        std::thread::sleep(Duration::from_millis(5));
    }
}
