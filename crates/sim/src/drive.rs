//! Worlds whose time is another clock's: tokio's paused one, or that of another simulation.

use crate::chances::Allowed;
use crate::state::{Clock, Driven, State};
use crate::world::World;
use ferroce_types::Instant;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

impl World {
    /// A world whose time is that of `clock`, which returns the time since the world began. Its programs are tasks of the clock's
    /// runtime: they poll, and await [`World::changed`]. One task awaits [`World::drive`].
    ///
    /// # Panics
    /// Later, if a program waits by other means: in [`World::sleep`], in a wait for a completion, or in [`Host::spawn`](crate::Host::spawn).
    #[must_use]
    pub fn driven(seed: u64, clock: impl Fn() -> Duration + Send + 'static) -> Self {
        let clock = Clock(Box::new(clock));
        let driven = Driven { clock, driver: None, waiting: Vec::new(), woken: Vec::new(), completions: 0 };
        Self::with(State { driven: Some(driven), ..State::new(seed, Allowed::All) })
    }

    /// When the next packet arrives, or something else happens.
    #[must_use]
    pub fn next_event(&self) -> Option<Duration> {
        self.lock().next_event().map(|at| Duration::from_nanos(at.0))
    }

    /// Lets everything happen until a moment of virtual time, each at its time. Programs don't run meanwhile.
    pub fn advance(&self, until: Duration) {
        self.lock().advance(Instant(0).after(until));
    }

    /// Lets packets arrive and timers run out as the clock goes on. `sleep` is that of the clock's runtime. The future never ends.
    pub fn drive<S: Future<Output = ()>>(
        &self,
        sleep: impl Fn(Duration) -> S + Unpin,
    ) -> Drive<impl Fn(Duration) -> S + Unpin, S> {
        Drive { world: self.clone(), sleep, sleeping: None }
    }

    /// Ends with the next completion on any of the world's hosts. Made before a poll that finds nothing, it misses none.
    pub fn changed(&self) -> Changed {
        let completions = self.lock().driven.as_ref().map_or(0, |driven| driven.completions);
        Changed { world: self.clone(), completions }
    }
}

impl State {
    fn advance(&mut self, until: Instant) {
        let now = self.now.max(until);
        while let Some(next) = self.next_event().filter(|next| *next <= until) {
            // What happens next follows from its own time, also if the clock is ahead.
            self.now = next;
            self.run_event();
        }
        self.now = now;
        self.note_faults();
    }
}

/// The future of [`World::drive`].
#[must_use = "nothing happens unless it is awaited"]
pub struct Drive<F, S> {
    world: World,
    sleep: F,
    /// Until when, and the future of the sleep.
    sleeping: Option<(Instant, Pin<Box<S>>)>,
}

impl<F: Fn(Duration) -> S + Unpin, S: Future<Output = ()>> Future for Drive<F, S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            let mut state = this.world.lock();
            let now = state.now;
            state.advance(now);
            let next = state.next_event();
            let before =
                state.driven.as_mut().and_then(|driven| driven.driver.replace(context.waker().clone()));
            drop(state);
            drop(before);
            let Some(next) = next else {
                this.sleeping = None;
                return Poll::Pending;
            };
            if this.sleeping.as_ref().is_none_or(|(until, _)| *until != next) {
                this.sleeping = Some((next, Box::pin((this.sleep)(next.since(now)))));
            }
            let sleeping = this.sleeping.as_mut().map(|(_, sleep)| sleep.as_mut().poll(context));
            match sleeping {
                Some(Poll::Ready(())) => this.sleeping = None,
                _ => return Poll::Pending,
            }
        }
    }
}

impl<F, S> fmt::Debug for Drive<F, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Drive").field(&self.world).finish()
    }
}

/// The future of [`World::changed`].
#[derive(Debug)]
#[must_use = "it waits if it is awaited"]
pub struct Changed {
    world: World,
    completions: u64,
}

impl Future for Changed {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.world.lock();
        let driven =
            state.driven.as_mut().expect("a world whose time is another clock's: see `World::driven`");
        if driven.completions != self.completions {
            return Poll::Ready(());
        }
        driven.waiting.push(context.waker().clone());
        Poll::Pending
    }
}
