//! A world of simulated hosts, and its handles.

use crate::adapter::HostState;
use crate::capture::Capture;
use crate::chances::Allowed;
use crate::faults::Faults;
use crate::licences::Licences;
use crate::planned::{Due, Planned};
use crate::report;
use crate::state::State;
use crate::trace::Trace;
use crate::wait::Wait;
use ferroce_buffers::Event;
use ferroce_types::Instant;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;
use std::time::Duration;

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
        Self::with(State::new(seed, Allowed::All))
    }

    pub(crate) fn with(state: State) -> Self {
        Self(Arc::new(Shared { state: Mutex::new(state), turns: Condvar::new() }))
    }

    /// The host with this name, which has an adapter. The first call adds it, with the next address of 10.0.0.1, 10.0.0.2, ….
    #[must_use]
    pub fn host(&self, name: &str) -> Host {
        let mut state = self.lock();
        let known = state.hosts.iter().position(|host| host.name == name);
        let index = known.unwrap_or(state.hosts.len());
        let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 1)) + index as u32);
        if known.is_none() {
            state.hosts.push(HostState::new(name.into(), ip, index));
        }
        drop(state);
        Host { world: self.clone(), index, ip }
    }

    /// What the network does to packets from now on.
    pub fn faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// The link between two hosts, which may have faults of its own.
    #[must_use]
    pub fn link(&self, a: &Host, b: &Host) -> Link {
        Link { world: self.clone(), ends: (a.index, b.index) }
    }

    /// Cuts the network in two: no packet passes between the hosts of `some` and those of `others`, until it is healed.
    pub fn partition(&self, some: &[&Host], others: &[&Host]) {
        self.lock().partition(&numbers(some), &numbers(others));
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.lock().heal();
    }

    /// Has something befall hosts at a moment of virtual time. A moment that has passed means at once.
    ///
    /// A test that fails in [`explore`](crate::explore) is also tried without it.
    pub fn at(&self, time: Duration, disturbance: Disturbance<'_>) {
        let planned = match disturbance {
            Disturbance::Crash(host) => Planned::Crash(host.index),
            Disturbance::Restart(host) => Planned::Restart(host.index),
            Disturbance::Pause(host) => Planned::Pause(host.index),
            Disturbance::Resume(host) => Planned::Resume(host.index),
            Disturbance::Partition(some, others) => Planned::Partition(numbers(some), numbers(others)),
            Disturbance::Heal => Planned::Heal,
        };
        self.lock().plan(Instant(0).after(time), Due::Planned(planned));
    }

    /// A time within a range, by the seed: for moments of a test's own.
    #[must_use]
    pub fn draw(&self, range: Range<Duration>) -> Duration {
        self.lock().chances.time(&range)
    }

    /// What programs have left: queue pairs that exist, memory that is registered or exposed, completions that weren't polled, and
    /// programs that haven't ended. For the end of a test, when all should be gone.
    ///
    /// # Errors
    /// What is left, in sentences.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let left = report::left(&self.lock());
        if left.is_empty() { Ok(()) } else { Err(left) }
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
        let mut state = self.lock();
        state.note_faults();
        state.trace.clone()
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driven) = &state.driven {
            let time = Instant(0).after((driven.clock.0)());
            state.now = state.now.max(time);
        }
        Locked(Some(state))
    }

    pub(crate) fn notify(&self) {
        self.0.turns.notify_all();
    }

    pub(crate) fn wait_for_turn<'s>(&self, mut state: Locked<'s>) -> Locked<'s> {
        let turn =
            state.0.take().map(|state| self.0.turns.wait(state).unwrap_or_else(PoisonError::into_inner));
        Locked(turn)
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Ends the world: its programs unwind.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ended.get_or_insert_with(|| "the test is over".into());
        let _ = state.capture.as_mut().map(Capture::flush);
        drop(state);
        self.notify();
    }
}

/// The state, for one thread. Tasks that are to go on are woken when it is unlocked: a waker may run code that uses the world.
pub(crate) struct Locked<'w>(Option<MutexGuard<'w, State>>);

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("it is locked until the guard is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("it is locked until the guard is dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.0.take() else { return };
        let woken = state.driven.as_mut().map(|driven| std::mem::take(&mut driven.woken));
        drop(state);
        woken.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Shared {
    /// The state, unless a thread uses it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

fn numbers(hosts: &[&Host]) -> Vec<usize> {
    hosts.iter().map(|host| host.index).collect()
}

/// What befalls hosts and the network at a [moment](World::at).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Disturbance<'h> {
    /// [`Host::crash`].
    Crash(&'h Host),
    /// [`Host::restart`].
    Restart(&'h Host),
    /// [`Host::pause`].
    Pause(&'h Host),
    /// [`Host::resume`].
    Resume(&'h Host),
    /// [`World::partition`].
    Partition(&'h [&'h Host], &'h [&'h Host]),
    /// [`World::heal`].
    Heal,
}

/// The link between two hosts, in both directions.
#[derive(Clone, Debug)]
pub struct Link {
    world: World,
    ends: (usize, usize),
}

impl Link {
    /// What this link does to packets from now on. `None`: what the [rest of the network](World::faults) does.
    pub fn faults(&self, faults: impl Into<Option<Faults>>) {
        self.world.lock().set_link_faults(self.ends.0, self.ends.1, faults.into());
    }

    /// Loses all packets.
    pub fn down(&self) {
        self.world.lock().set_link_down(self.ends.0, self.ends.1, true);
    }

    /// Loses packets only by chance again.
    pub fn up(&self) {
        self.world.lock().set_link_down(self.ends.0, self.ends.1, false);
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
    /// Whether they are the same host of the same world.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.world.0, &other.world.0) && self.index == other.index
    }

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

    /// What the host's adapter does from now on, though most adapters don't.
    pub fn licences(&self, licences: Licences) {
        self.world.lock().hosts[self.index].licences = licences;
    }

    /// The largest completion queue of its adapter, if that has a [limit](Licences::most_cq_entries) of its own.
    #[must_use]
    pub fn most_cq_entries(&self) -> Option<u32> {
        self.world.lock().hosts[self.index].licences.most_cq_entries
    }

    /// Stops the host's programs where they wait. Its adapter goes on: it acknowledges messages for which receives are posted, and lets
    /// peers access exposed memory.
    pub fn pause(&self) {
        self.world.lock().pause(self.index, true);
    }

    /// Lets the programs of a paused host go on.
    pub fn resume(&self) {
        self.world.lock().pause(self.index, false);
    }
}
