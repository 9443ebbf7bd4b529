//! Programs: threads that take turns. One runs at a time, until it waits; time moves on when all wait.

use crate::capture::Capture;
use crate::report;
use crate::state::State;
use crate::trace::What;
use crate::wait::{ProgramState, Wait};
use crate::world::{Host, World};
use ferroce_proto::Instant;
use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

/// How the programs of an ended world unwind: without a message of their own.
struct Abandoned;

thread_local! {
    /// The world and the program of this thread.
    static PROGRAM: RefCell<Option<(Weak<crate::world::Shared>, usize)>> = const { RefCell::new(None) };
}

impl State {
    fn holds(&self, wait: &Wait) -> bool {
        match wait {
            Wait::Start => true,
            Wait::Cq { host, cq, .. } => {
                self.hosts[*host].cqs.get(cq).is_none_or(|cq| !cq.entries.is_empty())
            }
            Wait::Event { host, .. } => !self.hosts[*host].tables.events.is_empty(),
            Wait::Sleep(at) => *at <= self.now,
            Wait::End(program) => self.programs[*program].ended,
            Wait::Mail(mail) => mail.has_news(),
        }
    }

    /// The time limit of a wait has passed.
    fn is_over(&self, wait: &Wait) -> bool {
        matches!(wait, Wait::Cq { until: Some(until), .. } | Wait::Event { until: Some(until), .. } if *until <= self.now)
    }

    fn limit(wait: &Wait) -> Option<Instant> {
        match wait {
            Wait::Cq { until, .. } | Wait::Event { until, .. } => *until,
            Wait::Sleep(at) => Some(*at),
            _ => None,
        }
    }

    /// Gives the turn to a program that can go on. Time moves on until there is one.
    pub(crate) fn schedule(&mut self) {
        while self.ended.is_none() {
            let can_go_on = |program: &&usize| {
                let wait = self.programs[**program].wait.as_ref();
                wait.is_some_and(|wait| self.holds(wait) || self.is_over(wait))
            };
            let all: Vec<usize> = (0..self.programs.len()).collect();
            let ready: Vec<usize> = all.iter().filter(can_go_on).copied().collect();
            if !ready.is_empty() {
                let next = ready[self.random.below(ready.len() as u64) as usize];
                if next != self.turn {
                    self.turn = next;
                    self.note(What::Runs { program: self.programs[next].name.clone() });
                }
                return;
            }
            if !self.move_on() {
                self.ended = Some(report::hang(self).into());
                // What isn't written is missing in the capture; the report matters more.
                let _ = self.capture.as_mut().map(Capture::flush);
            }
        }
    }

    /// Lets the next thing happen. False if nothing will, or nothing has come of all that for long.
    fn move_on(&mut self) -> bool {
        let limits = self.programs.iter().filter_map(|program| program.wait.as_ref().and_then(Self::limit));
        let limit = limits.min();
        let event = self.next_event();
        let Some(next) = [limit, event].into_iter().flatten().min() else { return false };
        if next.since(self.progress) > self.patience && !self.has_long_wait() {
            return false;
        }
        self.now = self.now.max(next);
        if event.is_some_and(|event| event <= self.now) {
            self.run_event();
        }
        true
    }

    fn has_long_wait(&self) -> bool {
        let is_long = |wait: &Wait| {
            matches!(wait, Wait::Sleep(_) | Wait::Cq { long: true, .. } | Wait::Event { long: true, .. })
        };
        self.programs.iter().any(|program| program.wait.as_ref().is_some_and(is_long))
    }
}

impl Host {
    /// Starts a program on this host: a thread that runs in turn with the other programs of the world.
    #[must_use = "dropping the program waits for its end"]
    pub fn spawn<T: Send + 'static>(&self, program: impl FnOnce() -> T + Send + 'static) -> Program<T> {
        self.world.start(self.name(), program)
    }
}

impl World {
    /// The program of this thread. Threads that aren't programs are the test.
    fn program(&self) -> usize {
        PROGRAM.with_borrow(|program| match program {
            Some((world, program)) if world.as_ptr() == self.as_ptr() => *program,
            _ => 0,
        })
    }

    /// Waits, and lets other programs run and time pass meanwhile. False if the time limit has passed.
    ///
    /// # Panics
    /// Nothing will ever happen again; or another thread waits for the same program.
    pub(crate) fn block(&self, wait: Wait) -> bool {
        let me = self.program();
        let mut state = self.lock();
        if state.ended.is_none() {
            let waits = state.programs[me].wait.is_some();
            assert!(
                !waits,
                "two threads of a test use one simulated world: start programs with `Host::spawn`"
            );
            state.programs[me].wait = Some(wait);
            state.schedule();
            self.notify();
            while state.turn != me && state.ended.is_none() {
                state = self.wait_for_turn(state);
            }
        }
        if let Some(why) = state.ended.clone() {
            drop(state);
            self.notify();
            // Only the test reports. The threads of programs end with it.
            if me == 0 {
                panic!("{why}");
            }
            resume_unwind(Box::new(Abandoned));
        }
        let wait = state.programs[me].wait.take();
        let holds = wait.as_ref().is_some_and(|wait| state.holds(wait));
        if !matches!(wait, Some(Wait::Cq { .. })) {
            state.progress = state.now;
        }
        holds
    }

    /// Starts a program. It runs when the program that has started it waits.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        name: String,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Program<T> {
        let number = {
            let mut state = self.lock();
            state.programs.push(ProgramState { wait: Some(Wait::Start), ..ProgramState::new(name.clone()) });
            state.programs.len() - 1
        };
        let world = self.clone();
        let thread = thread::Builder::new().name(name).spawn(move || {
            PROGRAM.set(Some((Arc::downgrade(world.shared()), number)));
            let result = catch_unwind(AssertUnwindSafe(|| {
                world.first_turn(number);
                f()
            }));
            let mut state = world.lock();
            let program = &mut state.programs[number];
            (program.ended, program.wait) = (true, None);
            state.progress = state.now;
            state.schedule();
            drop(state);
            world.notify();
            result
        });
        Program { world: self.clone(), number, thread: Some(thread.expect("a thread for a program")) }
    }

    fn first_turn(&self, me: usize) {
        let mut state = self.lock();
        while state.turn != me && state.ended.is_none() {
            state = self.wait_for_turn(state);
        }
        state.programs[me].wait = None;
        if state.ended.is_some() {
            drop(state);
            resume_unwind(Box::new(Abandoned));
        }
    }
}

/// A program of a simulated host, started by [`Host::spawn`](crate::Host::spawn). Dropping it waits for its end.
pub struct Program<T> {
    world: World,
    number: usize,
    thread: Option<JoinHandle<Result<T, Box<dyn Any + Send>>>>,
}

impl<T> Program<T> {
    /// Waits until the program ends, and returns its result.
    ///
    /// # Panics
    /// The program has panicked, or will never end.
    pub fn join(mut self) -> T {
        self.world.block(Wait::End(self.number));
        let thread = self.thread.take().expect("only `join` takes the thread");
        match thread.join() {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) | Err(panic) => resume_unwind(panic),
        }
    }
}

impl<T> Drop for Program<T> {
    fn drop(&mut self) {
        if self.thread.is_none() {
            return;
        }
        if thread::panicking() {
            self.world.lock().ended.get_or_insert_with(|| "the test has failed".into());
            self.world.notify();
        } else {
            self.world.block(Wait::End(self.number));
        }
    }
}

impl<T> std::fmt::Debug for Program<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Program").field(&self.number).finish()
    }
}
