//! Waiting for sockets: poll, select and epoll are the kernel's, which finds at the number of an rsocket what it is ready for. That it is
//! shown there is asked for when the program first waits for it.
//!
//! Nothing is to be dropped while the kernel waits: a handler may not return, and the thread may be cancelled.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::{ptr, slice};

use libc::{c_short, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::forking;
use crate::numbers::rsocket;
use crate::real::{errno, real, set_errno};
use crate::rsocket as r;
use crate::transfer::check;

/// The events of a socket with something to receive.
const READABLE: c_short = libc::POLLIN | libc::POLLRDNORM;

/// If the number is an rsocket's, it shows what that is ready for, as of now.
fn shown(number: c_int) {
    if let Some(rs) = rsocket(number) {
        let before = errno();
        r::show(rs);
        set_errno(before);
    }
}

/// Whether the program waits to receive by a socket that is to be replaced: the word for that, which is urgent, lets it receive.
fn awaits_word(fd: &pollfd) -> bool {
    fd.events & READABLE != 0 && forking::awaits_word(fd.fd)
}

/// Runs `really` for what a program asks by poll(2).
///
/// # Safety
/// `fds` points to `count` descriptors, or is refused by `really`.
unsafe fn polled(fds: *mut pollfd, count: nfds_t, really: impl FnOnce(*mut pollfd) -> c_int) -> c_int {
    if fds.is_null() || count == 0 || count > MOST_POLLED {
        return really(fds);
    }
    // SAFETY: the caller's promise.
    let given = unsafe { slice::from_raw_parts_mut(fds, count as usize) };
    given.iter().for_each(|fd| shown(fd.fd));
    if !given.iter().any(awaits_word) {
        return really(fds);
    }
    let awaiting: Vec<usize> = (0..given.len()).filter(|at| awaits_word(&given[*at])).collect();
    let (awaiting, mut asked) = (ManuallyDrop::new(awaiting), ManuallyDrop::new(given.to_vec()));
    for at in awaiting.iter() {
        asked[*at].events |= libc::POLLPRI;
    }
    let ready = really(asked.as_mut_ptr());
    let (awaiting, mut asked) = (ManuallyDrop::into_inner(awaiting), ManuallyDrop::into_inner(asked));
    if ready >= 0 {
        for at in awaiting {
            if asked[at].revents & libc::POLLPRI != 0 {
                asked[at].revents &= !libc::POLLPRI;
                asked[at].revents |= given[at].events & READABLE;
            }
        }
        for (fd, asked) in given.iter_mut().zip(asked) {
            fd.revents = asked.revents;
        }
    }
    ready
}

/// The kernel refuses more.
const MOST_POLLED: nfds_t = i32::MAX as nfds_t;

#[unsafe(export_name = "ferroce_s_poll")]
unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let really = |fds: *mut _| real!(c"poll", fn(*mut pollfd, nfds_t, c_int) -> c_int, (fds, count, timeout));
    // SAFETY: the program's own arguments.
    unsafe { polled(fds, count, really) }
}

#[unsafe(export_name = "ferroce_s___poll_chk")]
unsafe extern "C-unwind" fn poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int {
    check(count as usize * size_of::<pollfd>(), room);
    // SAFETY: the program's own arguments.
    unsafe { poll(fds, count, timeout) }
}

#[unsafe(export_name = "ferroce_s_ppoll")]
unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    let really = |fds: *mut _| {
        real!(
            c"ppoll",
            fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int,
            (fds, count, timeout, signals)
        )
    };
    // SAFETY: the program's own arguments.
    unsafe { polled(fds, count, really) }
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

/// Runs `really` for what a program asks by select(2), with the third set.
///
/// # Safety
/// The sets are NULL or valid.
unsafe fn selected(count: c_int, sets: [*mut fd_set; 3], really: impl FnOnce(*mut fd_set) -> c_int) -> c_int {
    let [read, _, except] = sets;
    let is_in = |number: c_int, set: *mut fd_set| {
        // SAFETY: the caller's promise; the words below `count` are there, and select(2) has no other numbers.
        !set.is_null() && unsafe { libc::FD_ISSET(number, set) }
    };
    let numbers = (0..count.min(libc::FD_SETSIZE as c_int))
        .filter(|number| sets.iter().any(|set| is_in(*number, *set)));
    numbers.clone().for_each(shown);
    // Sets of another size are the program's own affair.
    let mut awaiting = numbers.filter(|number| {
        count <= libc::FD_SETSIZE as c_int && is_in(*number, read) && forking::awaits_word(*number)
    });
    if awaiting.clone().next().is_none() {
        return really(except);
    }
    let awaiting: ManuallyDrop<Vec<c_int>> = ManuallyDrop::new(awaiting.by_ref().collect());
    // SAFETY: zeros are a set; the caller's promise.
    let mut exceptional = unsafe { if except.is_null() { std::mem::zeroed() } else { ptr::read(except) } };
    for number in awaiting.iter() {
        // SAFETY: a set of ours; numbers below FD_SETSIZE.
        unsafe { libc::FD_SET(*number, &mut exceptional) };
    }
    let mut ready = really(&mut exceptional);
    let awaiting = ManuallyDrop::into_inner(awaiting);
    if ready < 0 {
        return ready;
    }
    for number in awaiting {
        // SAFETY: as above; the program's own set has the number.
        unsafe {
            if libc::FD_ISSET(number, &exceptional) {
                libc::FD_CLR(number, &mut exceptional);
                ready -= c_int::from(libc::FD_ISSET(number, read));
                libc::FD_SET(number, read);
            }
        }
    }
    if !except.is_null() {
        // SAFETY: the program's own set.
        unsafe { ptr::write(except, exceptional) };
    }
    ready
}

#[unsafe(export_name = "ferroce_s_select")]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let really = |except: *mut _| {
        real!(
            c"select",
            fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int,
            (count, read, write, except, timeout)
        )
    };
    // SAFETY: the program's own arguments.
    unsafe { selected(count, [read, write, except], really) }
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
    let really = |except: *mut _| {
        real!(
            c"pselect",
            fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int,
            (count, read, write, except, timeout, signals)
        )
    };
    // SAFETY: the program's own arguments.
    unsafe { selected(count, [read, write, except], really) }
}

#[unsafe(export_name = "ferroce_s_epoll_ctl")]
unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if operation == libc::EPOLL_CTL_ADD {
        forking::stays(fd);
    }
    shown(fd);
    real!(c"epoll_ctl", fn(c_int, c_int, c_int, *mut epoll_event) -> c_int, (set, operation, fd, event))
}
