//! The background thread: progress when nobody polls, requests of the host's other processes, news of the network.

use super::taps::Taps;
use super::{Engine, registry};
use crate::clock;
use crate::device::fail_devices;
use crate::error::{Error, Result};
use crate::fork;
use crate::net::{Changes, Monitor, NetError, Netdev};
use crate::sync::{Mutex, class};
use crate::sys::{self, EngineFd};
use ferroce_proto::Instant;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// How often it looks whether a poller is still there.
const NAP: Duration = Duration::from_millis(1);
/// How long it may be at work before it looks after those who join, and after peers that have ended.
const SHIFT: Duration = Duration::from_millis(1);
/// The longest sleep.
const SLEEP: Duration = Duration::from_secs(1);
/// Panics after which the thread gives up.
const MAX_PANICS: u32 = 8;
/// How often the interfaces are read while news of them goes on coming.
const MAX_READINGS: u32 = 16;
const STACK: usize = 512 * 1024;

/// What wakes the thread besides sockets and timers.
#[derive(Debug)]
pub(super) struct Control {
    epoll: EngineFd,
    /// Always readable. The epoll watches it once each time it is told to, which is what wakes the thread: nothing is
    /// written to a number behind which the program could have opened something else.
    wake: EngineFd,
    monitor: Option<Mutex<class::NetworkMonitor, Monitor>>,
}

impl Control {
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new() -> Result<Self> {
        let epoll = sys::epoll_create().map_err(Error::os("epoll_create1"))?;
        let wake = sys::eventfd(1, libc::EFD_NONBLOCK).map_err(Error::os("eventfd"))?;
        let monitor = Monitor::open()
            .inspect_err(|error| tracing::info!(%error, "changes of the network won't be noticed"))
            .ok()
            .map(Mutex::new);
        let control = Self { epoll, wake, monitor };
        control.arm_wake(libc::EPOLL_CTL_ADD, 0)?;
        if let Some(monitor) = &control.monitor {
            control.watch(monitor.lock().fd().as_raw_fd())?;
        }
        Ok(control)
    }

    /// # Errors
    /// The system refused.
    pub(super) fn watch(&self, fd: RawFd) -> Result<()> {
        sys::epoll_control(self.epoll.raw(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 0)
            .map_err(Error::os("epoll_ctl"))
    }

    fn arm_wake(&self, op: i32, events: i32) -> Result<()> {
        let events = (events | libc::EPOLLONESHOT) as u32;
        sys::epoll_control(self.epoll.raw(), op, self.wake.raw(), events, 0).map_err(Error::os("epoll_ctl"))
    }

    /// Ends the thread's sleep.
    pub(super) fn wake(&self) {
        // Fails only where descriptors have been lost, which the thread finds out by itself.
        let _ = self.arm_wake(libc::EPOLL_CTL_MOD, libc::EPOLLIN);
    }

    /// Takes what [`Control::wake`] has left; the rest stays readable.
    fn awake(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let _ = sys::epoll_wait(self.epoll.raw(), &mut events, Some(Duration::ZERO));
    }
}

/// Starts the background thread.
///
/// # Errors
/// No thread can be made.
pub(super) fn spawn(engine: &'static Engine) -> Result<()> {
    start_thread("ferroce", move || contain(engine)).map_err(Error::os("starting the background thread"))
}

/// Starts a thread of the adapter's ([`sys::start_thread`]).
///
/// # Errors
/// No thread can be made.
pub(crate) fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    sys::start_thread(name, STACK, run)
}

/// Runs the thread. A panic is an error of ours: the program is told and the thread goes on, a bounded number of times.
fn contain(engine: &'static Engine) {
    for _ in 0..MAX_PANICS {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(engine))).is_err() {
            tracing::error!("the background thread has panicked: this is a bug in Ferroce");
            fail_devices();
        }
    }
}

fn run(engine: &'static Engine) {
    let Ok(_inside) = fork::enter() else { return };
    let mut napped = false;
    loop {
        let now = clock::now();
        engine.look_at_all_descriptors(now);
        let leased = engine.lease.is_fresh(now);
        if !leased {
            if std::mem::take(&mut napped) && (engine.read_sockets(false, now) | engine.read_rings()) {
                engine.lease.broken(now);
            }
            let until = now.after(SHIFT);
            while engine.progress(clock::now()) {
                if !engine.run_queue.is_empty() {
                    // Perhaps it waits for a peer that wants this processor.
                    sys::yield_processor();
                }
                let now = clock::now();
                if now >= until || engine.lease.is_fresh(now) {
                    break;
                }
            }
        }
        let (watched, mut timeout) = if leased { (1, NAP) } else { (2, engine.time_to_sleep(now)) };
        if engine.descriptors.are_lost() {
            // Nobody can end the sleep.
            timeout = timeout.min(NAP);
        }
        let mut pollfds = [engine.control.epoll.raw(), engine.sockets.raw()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        let polled = fork::outside(|| {
            sys::poll(&mut pollfds[..watched], timeout).inspect_err(|_| sys::pause(timeout.min(NAP)))
        });
        // A sandbox has lowered RLIMIT_NOFILE, which poll(2) takes for the number of descriptors that it may be handed. The
        // descriptors serve as before, and only looking at them says what there is.
        let unknown = polled.is_err();
        engine.sleep.end();
        if !leased {
            engine.wake_from_rings();
        }
        engine.attend_links();
        if polled.map_or(true, |n| n > 0) {
            if unknown || pollfds[0].revents != 0 {
                engine.look_after_control();
            }
            let readable = unknown || pollfds[1].revents != 0;
            if watched == 2 && readable && !engine.lease.is_fresh(clock::now()) {
                // Those of addresses without a listener too: what comes there would keep the epoll readable.
                engine.read_sockets(true, clock::now());
            }
        }
        napped = leased;
    }
}

impl Engine {
    /// Until the next timer; and whoever sets an earlier one from now on knows that the thread has to be woken.
    fn time_to_sleep(&self, now: Instant) -> Duration {
        let next = || self.timers.next().min(self.events.next()).min(self.taps.map_or(u64::MAX, Taps::next));
        let until = next().min(now.after(SLEEP).0);
        let due = || if self.run_queue.is_empty() && !self.sleep_on_rings() { next() } else { now.0 };
        Instant(self.sleep.begin(until, due)).since(now)
    }

    fn look_after_control(&'static self) {
        self.control.awake();
        let served = self.rendezvous.service(&mut |datagrams| {
            self.lease.forwarded(clock::now());
            self.arrived(datagrams, clock::now());
        });
        if let Err(error) = served {
            tracing::debug!(%error, "serving the host's other processes");
        }
        self.attend_elsewhere();
        if let Some(monitor) = &self.control.monitor {
            self.look_at_network(&mut monitor.lock());
        }
    }

    fn look_at_network(&self, monitor: &mut Monitor) {
        let mut changes = Changes::default();
        let mut now = BTreeMap::new();
        // Read until no news has come meanwhile: news of what has been taken into account would be taken for more.
        for _ in 0..MAX_READINGS {
            match monitor.drain() {
                Ok(more) if more.is_empty() => break,
                Ok(more) => changes.merge(more),
                Err(error) => return tracing::debug!(%error, "reading news of the network"),
            }
            for context in registry::contexts() {
                let ifindex = context.device().info().netdev.ifindex;
                if changes.concerns(ifindex) {
                    now.insert(ifindex, Netdev::read(ifindex));
                }
            }
        }
        for context in registry::contexts() {
            let ifindex = context.device().info().netdev.ifindex;
            match now.get(&ifindex) {
                Some(Ok(netdev)) => context.refresh(netdev, changes.was_down(ifindex)),
                Some(Err(error @ NetError::Gone { .. })) => context.gone(error),
                Some(Err(error)) => {
                    tracing::debug!(%error, ifindex, "an interface that has changed can't be read")
                }
                None => {}
            }
        }
    }
}
