//! The background thread while a job goes on that something in memory has begun.

use ferroce_engine::{Handler, Job, Loop, Queued, Runnable, Source, Thread};
use ferroce_os::{clock, fork};
use ferroce_types::Instant;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// Turns of the job, and how long each takes: together a hundred times as long as a watch in which nothing comes.
const TURNS: u32 = 250;
const TURN: Duration = Duration::from_micros(20);
const LIMIT: Duration = Duration::from_secs(20);

static ADAPTER: OnceLock<Adapter> = OnceLock::new();
/// What begins the job lies in memory.
static LIES_THERE: AtomicBool = AtomicBool::new(true);
static WATCHES_ENDED: AtomicU32 = AtomicU32::new(0);

/// A job of many turns. At the end it sends the number of watches that have ended meanwhile.
struct LongJob {
    queued: Queued,
    turns: AtomicU32,
    ended: mpsc::Sender<u32>,
}

impl Runnable for LongJob {
    fn queued(&self) -> &Queued {
        &self.queued
    }
}

impl Job for LongJob {
    fn run(self: Arc<Self>, now: Instant) {
        let until = now.after(TURN);
        while clock::now() < until {
            std::hint::spin_loop();
        }
        if self.turns.fetch_add(1, Ordering::Relaxed) < TURNS {
            adapter().engine.enqueue(&self);
        } else {
            self.ended.send(WATCHES_ENDED.load(Ordering::Relaxed)).expect("the test waits");
        }
    }
}

/// Memory in which one thing comes.
struct Memory;

impl Source for Memory {
    fn has_memory(&self) -> bool {
        LIES_THERE.load(Ordering::SeqCst)
    }

    fn watch_memory(&self) -> bool {
        let found = LIES_THERE.swap(false, Ordering::SeqCst);
        if found {
            adapter().engine.enqueue(&adapter().job);
        }
        found
    }

    fn look_away(&self) {
        WATCHES_ENDED.fetch_add(1, Ordering::Relaxed);
    }
}

struct Quiet;

impl Source for Quiet {}

struct Adapter {
    engine: Loop<Self>,
    job: Arc<LongJob>,
}

fn adapter() -> &'static Adapter {
    ADAPTER.get().expect("it is made first")
}

impl Handler for Adapter {
    type Job = LongJob;
    type Alarm = ();

    fn engine(&self) -> &Loop<Self> {
        &self.engine
    }

    fn sources(&'static self) -> impl Source {
        (Memory, Quiet, Quiet, Quiet)
    }

    fn due(&'static self, _number: u32, _now: Instant) -> bool {
        true
    }

    fn ring(&'static self, _alarm: Arc<()>, _now: Instant) {}

    fn panicked(&'static self) {}

    fn descriptors_lost(&'static self, _fd: RawFd) {}
}

#[test]
fn a_watch_lasts_while_what_it_has_found_goes_on() {
    fork::install();
    let (ended, watches) = mpsc::channel();
    let job = Arc::new(LongJob { queued: Queued::default(), turns: AtomicU32::new(0), ended });
    let engine = Loop::new().expect("a loop");
    let adapter = ADAPTER.get_or_init(|| Adapter { engine, job });
    Thread::start().expect("a thread").drive(adapter);
    assert_eq!(watches.recv_timeout(LIMIT), Ok(0));
}
