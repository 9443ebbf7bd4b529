//! A world of simulated hosts, and its handles.

use crate::adapter::HostState;
use crate::capture::Capture;
use crate::faults::Faults;
use crate::state::State;
use crate::trace::Trace;
use crate::wait::Wait;
use ferroce_buffers::Event;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The environment variable that has [`explore`] run one seed.
const SEED: &str = "FERROCE_SEED";

pub(crate) struct Shared {
    state: Mutex<State>,
    turns: Condvar,
}

/// A network of simulated hosts in virtual time. Clones are handles of the same world.
#[derive(Clone)]
pub struct World(Arc<Shared>);

impl World {
    /// A world without hosts. All that is random in it depends on the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Shared { state: Mutex::new(State::new(seed)), turns: Condvar::new() }))
    }

    /// Adds a host with an adapter. It has the address 10.0.0.N.
    #[must_use]
    pub fn host(&self, name: &str) -> Host {
        let mut state = self.lock();
        let index = state.hosts.len();
        let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 1)) + index as u32);
        state.hosts.push(HostState::new(name.into(), ip));
        drop(state);
        Host { world: self.clone(), index, ip }
    }

    /// What the network does to packets from now on.
    pub fn faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Reports a hang when no request has completed for so long in virtual time. The default is a minute. Retries with long
    /// timeouts need more.
    pub fn patience(&self, time: Duration) {
        self.lock().patience = time;
    }

    /// The virtual time since the world began.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.lock().now.0)
    }

    /// Lets virtual time pass.
    pub fn sleep(&self, time: Duration) {
        let until = self.lock().now.after(time);
        self.block(Wait::Sleep(until));
    }

    /// Writes all packets that are sent from now on to a file (pcapng), also those that get lost. Times are virtual. The file is
    /// complete when the world ends, or hangs.
    ///
    /// # Errors
    /// Those of creating the file.
    ///
    /// # Panics
    /// Later, if a packet can't be written.
    pub fn capture(&self, path: &Path) -> io::Result<()> {
        let capture = Capture::create(path)?;
        self.lock().capture = Some(capture);
        Ok(())
    }

    /// What has happened so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.lock().trace.clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify(&self) {
        self.0.turns.notify_all();
    }

    pub(crate) fn wait_for_turn<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.0.turns.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    pub(crate) fn as_ptr(&self) -> *const Shared {
        Arc::as_ptr(&self.0)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("World").field("now", &state.now).field("hosts", &state.hosts.len()).finish()
    }
}

/// A simulated host with one adapter. Clones are handles of the same host.
#[derive(Clone, Debug)]
pub struct Host {
    pub(crate) world: World,
    pub(crate) index: usize,
    pub(crate) ip: Ipv4Addr,
}

impl Host {
    /// The world that it is in.
    #[must_use]
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        self.world.lock().hosts[self.index].name.clone()
    }

    /// Its address.
    #[must_use]
    pub const fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    /// Cuts the host's cable: all packets from and to it are lost.
    pub fn unplug(&self) {
        self.set_plugged(false, Event::PortDown);
    }

    /// Plugs the cable in again.
    pub fn plug(&self) {
        self.set_plugged(true, Event::PortActive);
    }

    fn set_plugged(&self, plugged: bool, event: Event) {
        let mut state = self.world.lock();
        let host = &mut state.hosts[self.index];
        if host.plugged != plugged {
            host.plugged = plugged;
            host.tables.events.push_back(event);
        }
    }
}

/// Runs a test in a world for each seed, and reports the first seed that fails. With the environment variable `FERROCE_SEED`
/// it runs that seed alone.
///
/// # Panics
/// The test panics.
pub fn explore(seeds: Range<u64>, test: impl Fn(World)) {
    let wanted = std::env::var(SEED)
        .ok()
        .map(|seed| seed.parse::<u64>().unwrap_or_else(|_| panic!("{SEED}={seed}: expected a number")));
    let seeds = wanted.map_or(seeds, |seed| seed..seed + 1);
    for seed in seeds {
        let world = World::new(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(world))) {
            eprintln!("the test fails with seed {seed}; {SEED}={seed} runs it alone");
            resume_unwind(panic);
        }
    }
}
