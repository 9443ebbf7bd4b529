//! rpoll and rselect: waiting for rsockets and ordinary descriptors together.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use libc::{c_short, pollfd};

use crate::table::{Socket, find};
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal};
use ferroce_rsocket_calls::waiting::{WaitCondition, Waker, look_or_sleep, readable, sleep};

/// The descriptors of one call.
struct Polled<'a> {
    fds: &'a mut [pollfd],
    sockets: Vec<Option<Socket>>,
}

impl WaitCondition for Polled<'_> {
    fn look(&mut self, waker: Option<&Arc<Waker>>) -> Outcome<usize> {
        let mut ready = 0;
        let mut others = Vec::new();
        for (at, (fd, socket)) in self.fds.iter_mut().zip(&self.sockets).enumerate() {
            fd.revents = 0;
            match socket {
                Some(socket) => {
                    let events = socket.core().readiness(fd.events, waker);
                    fd.revents = events;
                    ready += usize::from(events != 0);
                }
                None if fd.fd >= 0 => others.push((at, *fd)),
                None => {}
            }
        }
        if !others.is_empty() {
            let mut polled: Vec<pollfd> = others.iter().map(|(_, fd)| *fd).collect();
            ready += poll_at_once(&mut polled)?;
            for ((at, _), polled) in others.iter().zip(&polled) {
                self.fds[*at].revents = polled.revents;
            }
        }
        Ok(ready)
    }

    fn sleep(&self, waker: &Waker, until: Option<Instant>) -> Outcome<bool> {
        let mut slept_for = vec![readable(waker.fd())];
        slept_for.extend(self.fds.iter().zip(&self.sockets).filter(|(fd, _)| fd.fd >= 0).map(
            |(fd, socket)| match socket {
                Some(socket) => readable(socket.core().set.fd()),
                None => *fd,
            },
        ));
        sleep(slept_for, until)
    }

    fn dont_wake(&self, waker: &Arc<Waker>) {
        for socket in self.sockets.iter().flatten() {
            socket.core().dont_wake(waker);
        }
    }
}

/// How many ordinary descriptors are ready now.
fn poll_at_once(fds: &mut [pollfd]) -> Outcome<usize> {
    // SAFETY: an array of this length.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) };
    usize::try_from(ready).map_err(|_| SocketRefusal::last("poll"))
}

/// As poll(2), also for rsockets.
pub(crate) fn poll(fds: &mut [pollfd], until: Option<Instant>) -> Outcome<c_int> {
    let sockets = fds.iter().map(|fd| find(fd.fd)).collect();
    let mut polled = Polled { fds, sockets };
    loop {
        if let Some(ready) = look_or_sleep(&mut polled, until)? {
            return Ok(ready);
        }
    }
}

/// The three sets of select(2).
pub(crate) struct Sets<'a> {
    pub(crate) read: Option<&'a mut libc::fd_set>,
    pub(crate) write: Option<&'a mut libc::fd_set>,
    pub(crate) except: Option<&'a mut libc::fd_set>,
}

/// The events of poll for each set of select, in the order of the sets.
const MEANING: [(c_short, c_short); 3] = [
    (libc::POLLIN, libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT, libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// As select(2), also for rsockets.
pub(crate) fn select(numbers: c_int, sets: Sets<'_>, until: Option<Instant>) -> Outcome<c_int> {
    let most = libc::FD_SETSIZE as RawFd;
    if numbers < 0 || numbers > most {
        return Err(SocketRefusal::new(libc::EINVAL, "no such number of descriptors"));
    }
    let mut sets = [sets.read, sets.write, sets.except];
    let mut fds: Vec<pollfd> = Vec::new();
    for number in 0..numbers {
        let mut events = 0;
        for (set, (asked, _)) in sets.iter().zip(MEANING) {
            // SAFETY: a set, and a number that is less than FD_SETSIZE.
            if set.as_ref().is_some_and(|set| unsafe { libc::FD_ISSET(number, &raw const **set) }) {
                events |= asked;
            }
        }
        if events != 0 {
            fds.push(pollfd { fd: number, events, revents: 0 });
        }
    }
    poll(&mut fds, until)?;
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(SocketRefusal::plain(libc::EBADF));
    }
    let mut ready = 0;
    for (set, (asked, told)) in sets.iter_mut().zip(MEANING) {
        let Some(set) = set else { continue };
        // SAFETY: a set.
        unsafe { libc::FD_ZERO(&raw mut **set) };
        for fd in fds.iter().filter(|fd| fd.events & asked != 0 && fd.revents & told != 0) {
            // SAFETY: as above.
            unsafe { libc::FD_SET(fd.fd, &raw mut **set) };
            ready += 1;
        }
    }
    Ok(ready)
}
