//! Programs: threads that take turns. One runs at a time, until it waits; time moves on when all wait.

use crate::capture::Capture;
use crate::current::{self, message};
use crate::report;
use crate::state::State;
use crate::trace::What;
use crate::wait::{Boot, ProgramState, Wait};
use crate::world::{Host, World};
use ferroce_types::Instant;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// How the programs of an ended world, or of a host that has crashed, unwind: without a message of their own.
struct Abandoned;

impl State {
    fn holds(&self, wait: &Wait) -> bool {
        match wait {
            Wait::Start => true,
            Wait::Event { host, .. } => !self.hosts[*host].tables.events.is_empty(),
            Wait::Look(_) => false,
            Wait::Gone(host) => self.is_gone(*host),
            Wait::Cq { host, cq, .. } => {
                self.hosts[*host].cqs.get(cq).is_none_or(|cq| !cq.entries.is_empty())
            }
            Wait::Sleep(at) => *at <= self.now,
            Wait::End(program) => self.programs[*program].ended,
            Wait::Mail(mail) => mail.has_news(),
        }
    }

    /// The time limit of a wait has passed.
    fn is_over(&self, wait: &Wait) -> bool {
        Self::limit(wait).is_some_and(|until| until <= self.now)
    }

    /// What a program waits for. `None`: it runs, or its host doesn't let it go on.
    fn waits_for(&self, program: &ProgramState) -> Option<Wait> {
        let paused = program.host.is_some_and(|host| self.hosts[host].paused);
        program.wait.clone().filter(|_| !paused)
    }

    fn limit(wait: &Wait) -> Option<Instant> {
        match wait {
            Wait::Cq { until, .. } | Wait::Event { until, .. } => *until,
            Wait::Sleep(at) | Wait::Look(at) => Some(*at),
            _ => None,
        }
    }

    /// Gives the turn to a program that can go on. Time moves on until there is one.
    pub(crate) fn schedule(&mut self) {
        while self.ended.is_none() {
            let can_go_on = |program: &usize| {
                let wait = self.waits_for(&self.programs[*program]);
                wait.is_some_and(|wait| self.holds(&wait) || self.is_over(&wait))
            };
            // First those that end with their host.
            let ready: Vec<usize> = match self.next_killed() {
                Some(killed) => vec![killed],
                None => (0..self.programs.len()).filter(can_go_on).collect(),
            };
            if !ready.is_empty() {
                let next = ready[self.chances.below(ready.len() as u64) as usize];
                if next != self.turn {
                    self.turn = next;
                    self.note(What::Runs { program: self.programs[next].name.clone() });
                }
                return;
            }
            if !self.move_on() {
                self.note_faults();
                let mut waits = String::new();
                report::describe(self, &mut waits);
                self.at_panic.get_or_insert(waits);
                self.ended = Some(report::hang(self).into());
                // What isn't written is missing in the capture; the report matters more.
                let _ = self.capture.as_mut().map(Capture::flush);
            }
        }
    }

    /// Lets the next thing happen. False if nothing will, or nothing has come of all that for long.
    fn move_on(&mut self) -> bool {
        let limit = self.programs.iter().filter_map(|program| Self::limit(&self.waits_for(program)?)).min();
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
        self.programs.iter().any(|program| self.waits_for(program).as_ref().is_some_and(is_long))
    }
}

impl Host {
    /// Starts a program on this host: a thread that runs in turn with the other programs of the world.
    #[must_use = "dropping the program waits for its end"]
    pub fn spawn<T: Send + 'static>(&self, program: impl FnOnce() -> T + Send + 'static) -> Program<T> {
        let mut state = self.world.lock();
        let up = state.hosts[self.index].up;
        let name = state.hosts[self.index].name.clone();
        assert!(up, "{name} has crashed: it runs programs after `Host::restart`");
        let own_time = state.driven.is_none();
        assert!(own_time, "a world whose time is another clock's has tasks, and no programs");
        state.programs.push(ProgramState {
            wait: Some(Wait::Start),
            ..ProgramState::new(name.clone(), Some(self.index))
        });
        let number = state.programs.len() - 1;
        drop(state);
        let thread = self.world.start(number, name, program, false);
        Program { world: self.world.clone(), number, thread: Some(thread) }
    }

    /// Starts a program on this host, now and after each [restart](Host::restart). If it panics, the test fails at its next
    /// wait.
    pub fn boot(&self, program: impl Fn() + Send + Sync + 'static) {
        let mut state = self.world.lock();
        assert!(
            state.driven.is_none(),
            "a driven world has no programs of its own: tasks of the runtime wait"
        );
        let host = &mut state.hosts[self.index];
        host.boots.push(Boot(Arc::new(program)));
        let (up, boot) = (host.up, host.boots.len() - 1);
        if up {
            state.start_boot(self.index, boot);
            self.world.start_all(&mut state);
        }
    }

    /// Crashes the host: its programs end where they wait, and its adapter forgets everything. Their memory is released, and what peers send is
    /// lost. Handles of its objects that other programs have are [dead](ferroce_buffers::Kind::Dead).
    ///
    /// A program that crashes its own host ends in this call.
    pub fn crash(&self) {
        let mut state = self.world.lock();
        state.crash(self.index);
        let gone = state.is_gone(self.index);
        drop(state);
        if !gone {
            self.world.block(Wait::Gone(self.index));
        }
    }

    /// Starts the host again after a crash: with the same address and an adapter without objects. Programs of [`Host::boot`] start again.
    pub fn restart(&self) {
        let mut state = self.world.lock();
        state.restart(self.index);
        self.world.start_all(&mut state);
    }
}

impl World {
    /// The program of this thread. Threads that aren't programs are the test.
    fn program(&self) -> usize {
        current::program_of(self.shared()).unwrap_or(0)
    }

    /// Waits, and lets other programs run and time pass meanwhile. False if the time limit has passed.
    ///
    /// # Panics
    /// Nothing will ever happen again; or another thread waits for the same program.
    pub(crate) fn block(&self, wait: Wait) -> bool {
        let me = self.program();
        let mut state = self.lock();
        if thread::panicking() {
            // A destructor: it can neither wait nor fail.
            return false;
        }
        if state.programs[me].killed {
            drop(state);
            resume_unwind(Box::new(Abandoned));
        }
        let own_time = state.driven.is_none();
        assert!(own_time, "time is another clock's: poll, and await `World::changed`, instead of a wait");
        if state.ended.is_none() {
            let waits = state.programs[me].wait.is_some();
            assert!(
                !waits,
                "two threads of a test use one simulated world: start programs with `Host::spawn`"
            );
            state.programs[me].wait = Some(wait);
            state.schedule();
            self.start_all(&mut state);
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
        if state.programs[me].killed {
            drop(state);
            resume_unwind(Box::new(Abandoned));
        }
        let holds = wait.as_ref().is_some_and(|wait| state.holds(wait));
        if !matches!(wait, Some(Wait::Cq { .. } | Wait::Look(_))) {
            state.progress = state.now;
        }
        holds
    }

    /// Makes the threads of programs that hosts start by themselves.
    pub(crate) fn start_all(&self, state: &mut State) {
        for (number, Boot(body)) in std::mem::take(&mut state.unstarted) {
            drop(self.start(number, state.programs[number].name.clone(), move || body(), true));
        }
    }

    /// Makes the thread of a program. It runs when the other programs wait.
    fn start<T: Send + 'static>(
        &self,
        number: usize,
        name: String,
        f: impl FnOnce() -> T + Send + 'static,
        is_boot: bool,
    ) -> JoinHandle<Result<T, Box<dyn Any + Send>>> {
        let world = self.clone();
        let thread = thread::Builder::new().name(name).spawn(move || {
            current::set(world.shared(), number);
            let result = catch_unwind(AssertUnwindSafe(|| {
                world.first_turn(number);
                f()
            }));
            let mut state = world.lock();
            let program = &mut state.programs[number];
            (program.ended, program.wait) = (true, None);
            state.progress = state.now;
            if let Err(panic) = &result
                && is_boot
                && !panic.is::<Abandoned>()
            {
                let why = format!("{} has failed: {}", state.programs[number].name, message(&**panic));
                state.ended.get_or_insert_with(|| why.into());
            }
            state.schedule();
            world.start_all(&mut state);
            drop(state);
            world.notify();
            result
        });
        thread.expect("a thread for a program")
    }

    fn first_turn(&self, me: usize) {
        let mut state = self.lock();
        while state.turn != me && state.ended.is_none() {
            state = self.wait_for_turn(state);
        }
        state.programs[me].wait = None;
        if state.ended.is_some() || state.programs[me].killed {
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
    /// The program has panicked, its host has crashed, or it will never end.
    pub fn join(self) -> T {
        self.result().expect("the host of the program has crashed: see `Program::result`")
    }

    /// Waits until the program ends, and returns its result. `None`: its host has crashed.
    ///
    /// # Panics
    /// The program has panicked, or will never end.
    pub fn result(mut self) -> Option<T> {
        self.world.block(Wait::End(self.number));
        let thread = self.thread.take().expect("only `result` takes the thread");
        match thread.join() {
            Ok(Ok(result)) => Some(result),
            Ok(Err(panic)) if panic.is::<Abandoned>() => None,
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
            let me = self.world.program();
            let mut state = self.world.lock();
            // A program that ends with its host leaves those of other hosts alone.
            if !state.programs[me].killed {
                state.ended.get_or_insert_with(|| "the test has failed".into());
            }
            drop(state);
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
