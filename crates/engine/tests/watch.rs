//! The background thread while it watches memory that always has something for it.

use ferroce_engine::{Deadline, Handler, Job, Loop, Queued, Runnable, Source, Thread};
use ferroce_os::{clock, fork};
use ferroce_types::Instant;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the test takes.
const LENGTH: Duration = Duration::from_millis(500);
/// How long each find takes: so many that a round by their number alone would never come.
const FIND: Duration = Duration::from_micros(100);

static FINDS: AtomicU32 = AtomicU32::new(0);
static OVER: AtomicBool = AtomicBool::new(false);
/// The longest time between two rounds of everything, in ns, and when the last one was.
static LONGEST: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);
static DUE: AtomicU32 = AtomicU32::new(0);

struct NoJob(Queued);

impl Runnable for NoJob {
    fn queued(&self) -> &Queued {
        &self.0
    }
}

impl Job for NoJob {
    fn run(self: Arc<Self>, _now: Instant) {}
}

/// Memory in which there is always something.
struct Busy;

impl Source for Busy {
    fn poll(&self, now: Instant) -> bool {
        let last = LAST.swap(now.0, Ordering::SeqCst);
        if last != 0 {
            LONGEST.fetch_max(now.0 - last, Ordering::SeqCst);
        }
        false
    }

    fn has_memory(&self) -> bool {
        !OVER.load(Ordering::SeqCst)
    }

    fn watch_memory(&self) -> bool {
        let until = clock::now().after(FIND);
        while clock::now() < until {
            std::hint::spin_loop();
        }
        FINDS.fetch_add(1, Ordering::SeqCst);
        !OVER.load(Ordering::SeqCst)
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
        (Busy, Quiet, Quiet, Quiet)
    }

    fn due(&'static self, _number: u32, _now: Instant) -> bool {
        self.1.taken();
        DUE.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn ring(&'static self, _alarm: Arc<()>, _now: Instant) {}

    fn panicked(&'static self) {}

    fn descriptors_lost(&'static self, _fd: RawFd) {}
}

#[test]
fn deadlines_and_sockets_have_their_turns_while_memory_is_never_empty() {
    static ADAPTER: OnceLock<Adapter> = OnceLock::new();
    fork::install();
    let adapter = ADAPTER.get_or_init(|| Adapter(Loop::new().expect("a loop"), Deadline::default()));
    Thread::start().expect("a thread").drive(adapter);
    adapter.0.schedule(&adapter.1, clock::now().after(Duration::from_millis(20)), 1);
    std::thread::sleep(LENGTH);
    OVER.store(true, Ordering::SeqCst);
    let finds = FINDS.load(Ordering::SeqCst);
    assert!(finds > 20, "the thread doesn't watch: {finds} finds");
    assert_eq!(DUE.load(Ordering::SeqCst), 1);
    // A machine with other work to do may keep the thread waiting for a while.
    let longest = Duration::from_nanos(LONGEST.load(Ordering::SeqCst));
    assert!(longest < LENGTH / 4, "{longest:?} without a round");
}
