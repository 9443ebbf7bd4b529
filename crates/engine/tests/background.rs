//! The background thread beside a fork.

use ferroce_engine::{Handler, Job, Loop, Queued, Runnable, Source, Thread};
use ferroce_os::fork;
use ferroce_types::Instant;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a test waits for what must come.
const LIMIT: Duration = Duration::from_secs(60);
/// How long the handler takes, from when a fork has begun.
const AT_WORK: Duration = Duration::from_millis(100);

/// Half of what [`Handler::panicked`] does is done.
static HALF_DONE: AtomicBool = AtomicBool::new(false);
static DONE: AtomicBool = AtomicBool::new(false);
static FORK_HAS_BEGUN: AtomicBool = AtomicBool::new(false);
static ROUNDS: AtomicU32 = AtomicU32::new(0);

struct NoJob(Queued);

impl Runnable for NoJob {
    fn queued(&self) -> &Queued {
        &self.0
    }
}

impl Job for NoJob {
    fn run(self: Arc<Self>, _now: Instant) {}
}

/// Panics in its first round.
struct Panics;

impl Source for Panics {
    fn poll(&self, _now: Instant) -> bool {
        assert!(ROUNDS.fetch_add(1, Ordering::SeqCst) > 0, "the panic that the test is about");
        false
    }
}

struct Adapter(Loop<Self>);

impl Handler for Adapter {
    type Job = NoJob;
    type Alarm = ();

    fn engine(&self) -> &Loop<Self> {
        &self.0
    }

    fn sources(&'static self) -> impl Source {
        (Panics, Quiet, Quiet, Quiet)
    }

    fn due(&'static self, _number: u32, _now: Instant) -> bool {
        false
    }

    fn ring(&'static self, _alarm: Arc<()>, _now: Instant) {}

    fn panicked(&'static self) {
        HALF_DONE.store(true, Ordering::SeqCst);
        wait_for(&FORK_HAS_BEGUN);
        std::thread::sleep(AT_WORK);
        DONE.store(true, Ordering::SeqCst);
    }

    fn descriptors_lost(&'static self, _fd: RawFd) {}
}

struct Quiet;

impl Source for Quiet {}

fn wait_for(flag: &AtomicBool) {
    let since = std::time::Instant::now();
    while !flag.load(Ordering::SeqCst) {
        assert!(since.elapsed() < LIMIT, "nothing has happened");
        std::thread::sleep(Duration::from_millis(1));
    }
}

extern "C" fn fork_begins() {
    FORK_HAS_BEGUN.store(true, Ordering::SeqCst);
}

#[test]
fn a_fork_waits_until_the_devices_have_failed_after_a_panic() {
    static ADAPTER: OnceLock<Adapter> = OnceLock::new();
    fork::install();
    // Registered later, it runs before the fork gate closes.
    // SAFETY: the handler stores a word.
    unsafe { libc::pthread_atfork(Some(fork_begins), None, None) };
    let adapter = ADAPTER.get_or_init(|| Adapter(Loop::new().expect("a loop")));
    Thread::start().expect("a thread").drive(adapter);
    wait_for(&HALF_DONE);
    // SAFETY: the child reads words and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let good = DONE.load(Ordering::SeqCst) && fork::enter_library().is_ok();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child has seen half of what the handler does");
    let since = std::time::Instant::now();
    while ROUNDS.load(Ordering::SeqCst) < 2 {
        assert!(since.elapsed() < LIMIT, "the thread doesn't go on");
        std::thread::sleep(Duration::from_millis(1));
    }
}
