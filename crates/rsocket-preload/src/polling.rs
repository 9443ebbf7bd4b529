//! Waiting for sockets: poll, select and epoll.
//!
//! An epoll set of the program stays one. When an rsocket is added to it, an instance of repoll is made beside it, which has the
//! set and its rsockets.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{mem, ptr, slice};

use libc::{c_short, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::forking;
use crate::numbers::{inside, rsocket};
use crate::real::{real, set_errno};
use crate::rsocket::{self as r, Repoll};
use crate::transfer::check;

/// What says that a socket can be received from.
const READABLE: c_short = libc::POLLIN | libc::POLLRDNORM;

/// Whether the program waits to receive by a socket that is to be replaced: the word for that, which is urgent, lets it receive.
fn awaits_word(fd: &pollfd) -> bool {
    fd.events & READABLE != 0 && forking::awaits_word(fd.fd)
}

/// # Safety
/// `fds` points to `count` descriptors, or `count` is 0.
unsafe fn has_rsocket(fds: *const pollfd, count: nfds_t) -> bool {
    // SAFETY: the caller's promise.
    count > 0
        && unsafe { slice::from_raw_parts(fds, count as usize) }
            .iter()
            .any(|fd| rsocket(fd.fd).is_some() || awaits_word(fd))
}

/// # Safety
/// As above.
unsafe fn poll_rsockets(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let fds = unsafe { slice::from_raw_parts_mut(fds, count as usize) };
    let mut asked: Vec<pollfd> =
        fds.iter().map(|fd| pollfd { fd: rsocket(fd.fd).unwrap_or(fd.fd), ..*fd }).collect();
    let awaiting: Vec<usize> = (0..fds.len()).filter(|at| awaits_word(&fds[*at])).collect();
    for at in &awaiting {
        asked[*at].events |= libc::POLLPRI;
    }
    // SAFETY: descriptors, as many as said.
    let ready = inside(|| unsafe { r::rpoll(asked.as_mut_ptr(), count, timeout) });
    if ready >= 0 {
        for at in awaiting {
            if asked[at].revents & libc::POLLPRI != 0 {
                asked[at].revents &= !libc::POLLPRI;
                asked[at].revents |= fds[at].events & READABLE;
            }
        }
        for (fd, asked) in fds.iter_mut().zip(asked) {
            fd.revents = asked.revents;
        }
    }
    ready
}

#[unsafe(export_name = "ferroce_s_poll")]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        if has_rsocket(fds, count) {
            return poll_rsockets(fds, count, timeout);
        }
    }
    real!(c"poll", fn(*mut pollfd, nfds_t, c_int) -> c_int, (fds, count, timeout))
}

#[unsafe(export_name = "ferroce_s___poll_chk")]
unsafe extern "C-unwind" fn poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int {
    check(count as usize * size_of::<pollfd>(), room);
    // SAFETY: the program's own arguments.
    unsafe { poll(fds, count, timeout) }
}

/// Runs `call` with another set of blocked signals, if there is one. A signal that comes in between isn't seen by the call.
///
/// # Safety
/// `signals` is NULL or valid.
unsafe fn with_signals(signals: *const sigset_t, call: impl FnOnce() -> c_int) -> c_int {
    if signals.is_null() {
        return call();
    }
    // SAFETY: zeros are a set; the caller's promise.
    unsafe {
        let mut before: sigset_t = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, signals, &mut before);
        let result = call();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        result
    }
}

/// Milliseconds, rounded up; −1 for NULL.
fn milliseconds(time: Option<&timespec>) -> c_int {
    let Some(time) = time else { return -1 };
    let whole = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    c_int::try_from(whole).unwrap_or(c_int::MAX)
}

#[unsafe(export_name = "ferroce_s_ppoll")]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        if has_rsocket(fds, count) {
            let timeout = milliseconds(timeout.as_ref());
            return with_signals(signals, || poll_rsockets(fds, count, timeout));
        }
    }
    real!(
        c"ppoll",
        fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int,
        (fds, count, timeout, signals)
    )
}

#[unsafe(export_name = "ferroce_s___ppoll_chk")]
unsafe extern "C-unwind" fn ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
    room: usize,
) -> c_int {
    check(count as usize * size_of::<pollfd>(), room);
    // SAFETY: the program's own arguments.
    unsafe { ppoll(fds, count, timeout, signals) }
}

/// A call of select whose sets have rsockets, with the rsockets' own numbers.
struct Select {
    /// The program's number, and the rsocket's or the same.
    numbers: Vec<(c_int, c_int)>,
    /// The program's set or NULL, and ours of it.
    sets: [(*mut fd_set, fd_set); 3],
    /// Numbers that the word for their replacement lets the program receive by: it is exceptional.
    awaiting: Vec<c_int>,
}

impl Select {
    /// None if there is no rsocket in the sets.
    ///
    /// # Safety
    /// The sets are NULL or valid.
    unsafe fn new(count: c_int, sets: [*mut fd_set; 3]) -> Option<Self> {
        let count = count.clamp(0, libc::FD_SETSIZE as c_int);
        // SAFETY: the caller's promise; numbers below FD_SETSIZE.
        let is_set =
            |number| sets.iter().any(|set| !set.is_null() && unsafe { libc::FD_ISSET(number, *set) });
        let numbers: Vec<(c_int, c_int)> = (0..count)
            .filter(|number| is_set(*number))
            .map(|number| (number, rsocket(number).unwrap_or(number)))
            .collect();
        let fit = |(_, own): &(c_int, c_int)| *own < libc::FD_SETSIZE as c_int;
        // SAFETY: as above.
        let is_read = |number| !sets[0].is_null() && unsafe { libc::FD_ISSET(number, sets[0]) };
        let awaiting: Vec<c_int> = numbers
            .iter()
            .map(|(number, _)| *number)
            .filter(|number| is_read(*number) && forking::awaits_word(*number))
            .collect();
        let has_rsocket = numbers.iter().any(|(number, _)| rsocket(*number).is_some());
        if !numbers.iter().all(fit) || !has_rsocket && awaiting.is_empty() {
            return None;
        }
        let mut sets = sets.map(|set| {
            // SAFETY: zeros are a set; as above.
            let mut own: fd_set = unsafe { mem::zeroed() };
            for (number, rs) in &numbers {
                // SAFETY: as above.
                unsafe {
                    if !set.is_null() && libc::FD_ISSET(*number, set) {
                        libc::FD_SET(*rs, &mut own);
                    }
                }
            }
            (set, own)
        });
        for number in &awaiting {
            // SAFETY: as above.
            unsafe { libc::FD_SET(*number, &mut sets[2].1) };
        }
        Some(Self { numbers, sets, awaiting })
    }

    fn run(&mut self, timeout: *mut timeval) -> c_int {
        let most = self.numbers.iter().map(|(_, rs)| rs + 1).max().unwrap_or(0);
        let [read, write, except] = self.sets.each_mut().map(|set| &raw mut set.1);
        // SAFETY: sets of ours; the program's own timeout.
        let result = inside(|| unsafe { r::rselect(most, read, write, except, timeout) });
        if result < 0 {
            return result;
        }
        for number in &self.awaiting {
            // SAFETY: numbers below FD_SETSIZE.
            unsafe {
                if libc::FD_ISSET(*number, &self.sets[2].1) {
                    libc::FD_CLR(*number, &mut self.sets[2].1);
                    libc::FD_SET(*number, &mut self.sets[0].1);
                }
            }
        }
        let mut ready = 0;
        for (set, own) in self.sets.iter().filter(|(set, _)| !set.is_null()) {
            for (number, rs) in &self.numbers {
                // SAFETY: the program's own set; numbers below FD_SETSIZE.
                unsafe {
                    let was_asked = libc::FD_ISSET(*number, *set);
                    libc::FD_CLR(*number, *set);
                    if was_asked && libc::FD_ISSET(*rs, own) {
                        libc::FD_SET(*number, *set);
                        ready += 1;
                    }
                }
            }
        }
        ready
    }
}

#[unsafe(export_name = "ferroce_s_select")]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the program's own arguments.
    if let Some(mut select) = unsafe { Select::new(count, [read, write, except]) } {
        return select.run(timeout);
    }
    real!(
        c"select",
        fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int,
        (count, read, write, except, timeout)
    )
}

#[unsafe(export_name = "ferroce_s_pselect")]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own arguments.
    if let Some(mut select) = unsafe { Select::new(count, [read, write, except]) } {
        // SAFETY: as above.
        let time = unsafe { timeout.as_ref() };
        let mut time = time.map(|time| timeval { tv_sec: time.tv_sec, tv_usec: (time.tv_nsec + 999) / 1000 });
        let time = time.as_mut().map_or(ptr::null_mut(), |time| &raw mut *time);
        // SAFETY: as above.
        return unsafe { with_signals(signals, || select.run(time)) };
    }
    real!(
        c"pselect",
        fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int,
        (count, read, write, except, timeout, signals)
    )
}

/// Beside an epoll set that has rsockets.
struct Beside {
    repoll: Repoll,
    instance: c_int,
    /// The program's data of its rsockets, by the rsocket's number; that number is repoll's data.
    data: Mutex<HashMap<c_int, u64>>,
}

/// repoll's data of the set of ordinary descriptors.
const ORDINARY: u64 = u64::MAX;

static BESIDE: Mutex<Option<HashMap<c_int, Arc<Beside>>>> = Mutex::new(None);
/// Whether there is or was one.
static ANY: AtomicBool = AtomicBool::new(false);

fn beside(set: c_int) -> Option<Arc<Beside>> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    BESIDE.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&set).cloned()
}

/// A descriptor that isn't an rsocket is closed: it may be an epoll set.
pub(crate) fn closed(fd: c_int) {
    if crate::numbers::is_inside() || beside(fd).is_none() || !crate::threads::is_owner() {
        return;
    }
    let ended =
        BESIDE.lock().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(|all| all.remove(&fd));
    if let Some(beside) = ended {
        // SAFETY: an instance that nobody knows any more.
        inside(|| unsafe { r::rclose(beside.instance) });
    }
}

fn make_beside(set: c_int) -> Option<Arc<Beside>> {
    if let Some(beside) = beside(set) {
        return Some(beside);
    }
    let repoll = r::repoll()?;
    // SAFETY: no memory is passed.
    let instance = inside(|| unsafe { (repoll.create)(libc::EPOLL_CLOEXEC) });
    if instance < 0 {
        return None;
    }
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: ORDINARY };
    // SAFETY: a valid event.
    if inside(|| unsafe { (repoll.ctl)(instance, libc::EPOLL_CTL_ADD, set, &mut event) }) != 0 {
        // SAFETY: an instance that nobody knows.
        inside(|| unsafe { r::rclose(instance) });
        return None;
    }
    let beside = Arc::new(Beside { repoll, instance, data: Mutex::default() });
    let mut all = BESIDE.lock().unwrap_or_else(PoisonError::into_inner);
    all.get_or_insert_default().insert(set, beside.clone());
    ANY.store(true, Ordering::Release);
    Some(beside)
}

#[unsafe(export_name = "ferroce_s_epoll_ctl")]
unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let Some(rs) = rsocket(fd) else {
        if operation == libc::EPOLL_CTL_ADD {
            forking::stays(fd);
        }
        return real!(
            c"epoll_ctl",
            fn(c_int, c_int, c_int, *mut epoll_event) -> c_int,
            (set, operation, fd, event)
        );
    };
    let Some(beside) = make_beside(set) else {
        set_errno(libc::EPERM);
        return -1;
    };
    // SAFETY: the program's own argument.
    let given = unsafe { event.as_ref() }.copied();
    let mut own = given.map(|event| epoll_event { events: event.events, u64: rs as u64 });
    let pointer = own.as_mut().map_or(ptr::null_mut(), |event| &raw mut *event);
    let mut data = beside.data.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: an event of ours, or NULL as the program has it.
    let result = inside(|| unsafe { (beside.repoll.ctl)(beside.instance, operation, rs, pointer) });
    if result == 0 {
        match given.filter(|_| operation != libc::EPOLL_CTL_DEL) {
            Some(event) => data.insert(rs, event.u64),
            None => data.remove(&rs),
        };
    }
    result
}

/// # Safety
/// `events` has room for `most`.
unsafe fn wait_really(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    real!(c"epoll_wait", fn(c_int, *mut epoll_event, c_int, c_int) -> c_int, (set, events, most, timeout))
}

/// # Safety
/// As above.
unsafe fn wait_beside(
    beside: &Beside,
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let Some(room) = usize::try_from(most).ok().filter(|room| *room > 0 && !events.is_null()) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let mut found = vec![epoll_event { events: 0, u64: 0 }; room + 1];
    // SAFETY: an array of this length.
    let ready = inside(|| unsafe {
        (beside.repoll.wait)(beside.instance, found.as_mut_ptr(), found.len() as c_int, timeout)
    });
    let Ok(ready) = usize::try_from(ready) else { return -1 };
    let mut told = 0;
    let mut ordinary = false;
    let data = beside.data.lock().unwrap_or_else(PoisonError::into_inner);
    for event in &found[..ready] {
        let number = event.u64;
        match number {
            ORDINARY => ordinary = true,
            rs if told < room => {
                if let Some(data) = data.get(&(rs as c_int)) {
                    // SAFETY: within the program's array.
                    unsafe { events.add(told).write(epoll_event { events: event.events, u64: *data }) };
                    told += 1;
                }
            }
            _ => {}
        }
    }
    drop(data);
    if ordinary && told < room {
        // SAFETY: the rest of the program's array.
        let more = unsafe { wait_really(set, events.add(told), (room - told) as c_int, 0) };
        told += usize::try_from(more).unwrap_or(0);
    }
    told as c_int
}

#[unsafe(export_name = "ferroce_s_epoll_wait")]
unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    match beside(set) {
        // SAFETY: the program's own arguments.
        Some(beside) => unsafe { wait_beside(&beside, set, events, most, timeout) },
        // SAFETY: as above.
        None => unsafe { wait_really(set, events, most, timeout) },
    }
}

#[unsafe(export_name = "ferroce_s_epoll_pwait")]
unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    signals: *const sigset_t,
) -> c_int {
    match beside(set) {
        // SAFETY: the program's own arguments.
        Some(beside) => unsafe { with_signals(signals, || wait_beside(&beside, set, events, most, timeout)) },
        None => real!(
            c"epoll_pwait",
            fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int,
            (set, events, most, timeout, signals)
        ),
    }
}
