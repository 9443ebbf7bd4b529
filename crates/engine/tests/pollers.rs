//! What threads that poll look at: at memory first and always, at everything else where something may come from there.

use ferroce_engine::{Handler, Job, Loop, Queued, Runnable, Source};
use ferroce_types::Instant;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const POLLS: u32 = 640;

#[derive(Default)]
struct Turn {
    queued: Queued,
    turns: AtomicU32,
}

impl Runnable for Turn {
    fn queued(&self) -> &Queued {
        &self.queued
    }
}

impl Job for Turn {
    fn run(self: Arc<Self>, _now: Instant) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts the rounds of everything.
struct Rounds<'a>(&'a Adapter);

impl Source for Rounds<'_> {
    fn poll(&self, _now: Instant) -> bool {
        self.0.rounds.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn is_beyond_memory(&self) -> bool {
        self.0.has_socket.load(Ordering::Relaxed)
    }
}

struct Quiet;

impl Source for Quiet {}

struct Adapter {
    engine: Loop<Self>,
    rounds: AtomicU32,
    has_socket: AtomicBool,
}

impl Handler for Adapter {
    type Job = Turn;
    type Alarm = ();

    fn engine(&self) -> &Loop<Self> {
        &self.engine
    }

    fn sources(&'static self) -> impl Source {
        (Quiet, Rounds(self), Quiet, Quiet)
    }

    fn due(&'static self, _number: u32, _now: Instant) -> bool {
        false
    }

    fn ring(&'static self, _alarm: Arc<()>, _now: Instant) {}

    fn panicked(&'static self) {}

    fn descriptors_lost(&'static self, _fd: RawFd) {}
}

fn adapter() -> &'static Adapter {
    Box::leak(Box::new(Adapter {
        engine: Loop::new().unwrap(),
        rounds: AtomicU32::new(0),
        has_socket: AtomicBool::new(false),
    }))
}

/// Polls an empty queue so often. Returns how many of the polls have looked at memory and at everything.
fn poll_in_vain(adapter: &'static Adapter) -> (u32, u32) {
    let (before, mut looks) = (adapter.rounds.load(Ordering::Relaxed), 0);
    for _ in 0..POLLS {
        Loop::progress_of_poller(adapter, true, false, || {
            looks += 1;
            false
        });
    }
    (looks, adapter.rounds.load(Ordering::Relaxed) - before)
}

#[test]
fn a_poll_in_vain_looks_at_sockets_where_there_are_some_and_else_now_and_then() {
    let adapter = adapter();
    let (looks, rounds) = poll_in_vain(adapter);
    assert_eq!(looks, POLLS);
    assert!((POLLS / 65..=POLLS / 4 + 1).contains(&rounds), "{rounds} rounds");
    adapter.has_socket.store(true, Ordering::Relaxed);
    // The polls until the next round don't know of it.
    poll_in_vain(adapter);
    assert_eq!(poll_in_vain(adapter), (POLLS, POLLS));
    adapter.has_socket.store(false, Ordering::Relaxed);
    let (looks, rounds) = poll_in_vain(adapter);
    assert_eq!(looks, POLLS);
    assert!(rounds <= POLLS / 4 + 1, "{rounds} rounds");
}

#[test]
fn a_thread_finds_what_is_in_memory_itself_even_if_it_is_time_to_look_at_everything() {
    let adapter = adapter();
    let mut rounds_before_look = None;
    // The first poll of all has to look at everything.
    Loop::progress_of_poller(adapter, true, false, || {
        rounds_before_look = Some(adapter.rounds.load(Ordering::Relaxed));
        true
    });
    assert_eq!(rounds_before_look, Some(0));
}

#[test]
fn a_job_has_its_turn_though_each_poll_finds_something() {
    const JOBS: u32 = 1000;
    let adapter = adapter();
    let job = Arc::new(Turn::default());
    for done in 1..=JOBS {
        adapter.engine.enqueue(&job);
        Loop::progress_of_poller(adapter, true, false, || true);
        assert_eq!(job.turns.load(Ordering::Relaxed), done);
    }
}
