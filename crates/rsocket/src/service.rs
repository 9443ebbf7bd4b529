//! The service thread: makes progress for sockets without a waiting thread.
//!
//! A listener must take requests while its program does something else, a socket that connects without blocking must go on, a
//! datagram socket must learn its peers' queue pairs, and a keep-alive must be sent without a call. There is one thread a
//! process, started with the first such socket.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use ferroce_rsocket_calls::signals::without_signals;
use ferroce_rsocket_calls::this_process::ProcessIdentity;
use ferroce_rsocket_calls::waiting::{Set, Waker};

/// What the thread attends.
pub(crate) trait Attendee: Send + Sync {
    /// Processes events, and returns when to attend next.
    fn attend(self: Arc<Self>) -> NextAttendance;
}

/// When a socket wants to be attended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextAttendance {
    on_event: bool,
    at: Option<Instant>,
}

impl NextAttendance {
    /// Not any more.
    pub(crate) const NEVER: Self = Self { on_event: false, at: None };
    /// When its descriptor is readable.
    pub(crate) const EVENT: Self = Self { on_event: true, at: None };

    /// At this time, and not at events.
    pub(crate) fn at(time: Instant) -> Self {
        Self { on_event: false, at: Some(time) }
    }

    /// When its descriptor is readable, and at this time.
    pub(crate) fn event_or(time: Instant) -> Self {
        Self { on_event: true, at: Some(time) }
    }
}

struct WatchEntry {
    attended: Weak<dyn Attendee>,
    next: NextAttendance,
    /// Which call of [`watch`] has made it.
    watch: u64,
}

struct BackgroundService {
    /// The process whose thread it is: a child of a fork has none.
    process: ProcessIdentity,
    set: Arc<Set>,
    waker: Arc<Waker>,
    entries: BTreeMap<RawFd, WatchEntry>,
    /// Calls of [`watch`].
    watches: u64,
}

static SERVICE: Mutex<Option<BackgroundService>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<BackgroundService>> {
    // Nothing under this lock panics half-way through a change.
    SERVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the socket attended from now on, when `fd` is readable.
pub(crate) fn watch<T: Attendee + 'static>(attended: &Arc<T>, fd: RawFd) {
    let attended: Weak<T> = Arc::downgrade(attended);
    if let Err(error) = try_watch(attended, fd) {
        let why = format!("the service thread can't be used: {error}");
        ferroce_rsocket_calls::log::refused("rsocket", &why);
    }
}

fn try_watch(attended: Weak<dyn Attendee>, fd: RawFd) -> io::Result<()> {
    let mut service = lock();
    if service.as_ref().is_none_or(|service| service.process != ProcessIdentity::own()) {
        *service = Some(BackgroundService::start()?);
    }
    let Some(service) = service.as_mut() else { return Ok(()) };
    // Whether it is to be attended at a time is found out at the first attendance, which is now.
    service.watches += 1;
    let next = NextAttendance::event_or(Instant::now());
    service.entries.insert(fd, WatchEntry { attended, next, watch: service.watches });
    service.waker.wake();
    match service.set.add(fd, fd as u64) {
        Err(error) if error.raw_os_error() != Some(libc::EEXIST) => Err(error),
        _ => Ok(()),
    }
}

/// Doesn't have it attended any more.
pub(crate) fn forget(fd: RawFd) {
    if let Some(service) = lock().as_mut().filter(|service| service.process == ProcessIdentity::own()) {
        service.set.remove(fd);
        service.entries.remove(&fd);
    }
}

impl BackgroundService {
    fn start() -> io::Result<Self> {
        let (set, waker) = (Arc::new(Set::new()?), Arc::new(Waker::new()?));
        set.add(waker.fd(), waker.fd() as u64)?;
        let (its_set, its_waker) = (set.clone(), waker.clone());
        // Signals are the program's.
        without_signals(|| {
            thread::Builder::new().name("rsocket".into()).spawn(move || run(&its_set, &its_waker))
        })?;
        Ok(Self { process: ProcessIdentity::own(), set, waker, entries: BTreeMap::new(), watches: 0 })
    }
}

/// The thread.
fn run(set: &Set, waker: &Waker) {
    let mut room = [libc::epoll_event { events: 0, u64: 0 }; 32];
    loop {
        let ready = match set.wait(&mut room, time_left()) {
            Ok(ready) => ready,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        waker.clear();
        let mut fds: Vec<RawFd> = ready.iter().map(|event| event.u64 as RawFd).collect();
        fds.extend(due(Instant::now()));
        fds.sort_unstable();
        fds.dedup();
        for fd in fds {
            attend(fd);
        }
    }
}

/// Milliseconds until the next time to attend a socket; −1: none.
fn time_left() -> c_int {
    let service = lock();
    let first =
        service.as_ref().and_then(|service| service.entries.values().filter_map(|entry| entry.next.at).min());
    first.map_or(-1, |first| {
        let left = first.saturating_duration_since(Instant::now()).min(Duration::from_secs(3600));
        left.as_micros().div_ceil(1000) as c_int
    })
}

fn due(now: Instant) -> Vec<RawFd> {
    let service = lock();
    let entries = service.iter().flat_map(|service| &service.entries);
    entries.filter(|(_, entry)| entry.next.at.is_some_and(|at| at <= now)).map(|(fd, _)| *fd).collect()
}

fn attend(fd: RawFd) {
    let (attended, watch) = {
        let mut service = lock();
        let Some(entry) = service.as_mut().and_then(|service| service.entries.get_mut(&fd)) else { return };
        (entry.attended.clone(), entry.watch)
    };
    // The last handle may be ours to drop: not under the lock.
    let next = attended.upgrade().map_or(NextAttendance::NEVER, Attendee::attend);
    let mut service = lock();
    let Some(service) = service.as_mut() else { return };
    // An entry that was watched again meanwhile keeps its own time.
    let Some(entry) = service.entries.get_mut(&fd).filter(|entry| entry.watch == watch) else { return };
    entry.next = next;
    if !next.on_event {
        service.set.remove(fd);
    }
    if !next.on_event && next.at.is_none() {
        service.entries.remove(&fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Asks to be attended again while it is attended, twice.
    struct Again {
        descriptor: Waker,
        told: Mutex<(u32, Sender<u32>)>,
    }

    impl Attendee for Again {
        fn attend(self: Arc<Self>) -> NextAttendance {
            let mut told = self.told.lock().unwrap();
            told.0 += 1;
            if told.0 < 3 {
                watch(&self, self.descriptor.fd());
            }
            told.1.send(told.0).unwrap();
            NextAttendance::NEVER
        }
    }

    #[test]
    fn who_asks_while_being_attended_is_attended_again() {
        let (sender, receiver) = channel();
        let socket = Arc::new(Again { descriptor: Waker::new().unwrap(), told: Mutex::new((0, sender)) });
        watch(&socket, socket.descriptor.fd());
        for count in 1..=3 {
            assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(count));
        }
    }
}
