//! What a thread waits with: poll, epoll, eventfd, timerfd, a pause.

use super::{EngineFd, check, fd_of};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// `ppoll(2)` with the thread's own signal mask. An interruption counts as "nothing is ready".
///
/// # Errors
/// That of the call, but EINTR.
pub fn poll(fds: &mut [libc::pollfd], timeout: Duration) -> io::Result<usize> {
    let mut time = timespec(timeout);
    let no_mask = std::ptr::null::<libc::sigset_t>();
    let (pointer, count) = (fds.as_mut_ptr(), fds.len() as libc::c_ulong);
    // SAFETY: `fds` and `time` are writable; the mask may be null (its size then isn't looked at).
    match check(unsafe { libc::syscall(libc::SYS_ppoll, pointer, count, &mut time, no_mask, 8_usize) }) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        result => result,
    }
}

/// Waits until `fd` has one of `events`; whether it came to that in time.
#[must_use]
pub fn wait_for(fd: RawFd, events: i16, timeout: Duration) -> bool {
    let mut one = [libc::pollfd { fd, events, revents: 0 }];
    matches!(poll(&mut one, timeout), Ok(n) if n > 0)
}

/// Sleeps, or less when a signal comes.
pub fn pause(time: Duration) {
    // An empty set of descriptors can't fail in a way that matters: at worst the pause is shorter.
    let _ = poll(&mut [], time);
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: libc::c_long::from(time.subsec_nanos() as i32),
    }
}

/// `sched_yield(2)`.
pub fn yield_processor() {
    // SAFETY: takes no pointer and can't fail.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// `epoll_create1(2)`, close-on-exec.
///
/// # Errors
/// That of the call.
pub fn epoll_create() -> io::Result<EngineFd> {
    // SAFETY: takes no pointer.
    fd_of(|| unsafe { libc::syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) })
}

/// `epoll_ctl(2)`; `op` is EPOLL_CTL_ADD, _MOD or _DEL, `events` a set of EPOLL*.
///
/// # Errors
/// That of the call.
pub fn epoll_control(epoll: RawFd, op: i32, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: `event` is a valid epoll_event.
    check(unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, op, fd, &mut event) }).map(drop)
}

/// `epoll_pwait(2)` with the thread's own signal mask; `None` waits without an end.
///
/// # Errors
/// That of the call, EINTR too.
pub fn epoll_wait(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    // Rounded up: rounding down would turn the last millisecond before a timer into a busy loop.
    let ms = timeout.map_or(-1, |t| i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    let no_mask = std::ptr::null::<libc::sigset_t>();
    let (pointer, count) = (events.as_mut_ptr(), i32::try_from(events.len()).unwrap_or(i32::MAX));
    // SAFETY: `events` is writable for `count` elements; the mask may be null.
    check(unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, pointer, count, ms, no_mask, 8_usize) })
}

/// An eventfd, close-on-exec; `flags` of `eventfd2(2)`.
///
/// # Errors
/// That of the call.
pub fn eventfd(initial: u32, flags: i32) -> io::Result<EngineFd> {
    // SAFETY: takes no pointer.
    fd_of(|| unsafe { libc::syscall(libc::SYS_eventfd2, initial, flags | libc::EFD_CLOEXEC) })
}

/// A CLOCK_MONOTONIC timerfd, close-on-exec and non-blocking, that is readable once a period until [`super::read`].
///
/// # Errors
/// That of `timerfd_create(2)` or `timerfd_settime(2)`.
pub fn periodic_timer(period: Duration) -> io::Result<EngineFd> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: takes no pointer.
    let timer = fd_of(|| unsafe { libc::syscall(libc::SYS_timerfd_create, libc::CLOCK_MONOTONIC, flags) })?;
    let times = libc::itimerspec { it_interval: timespec(period), it_value: timespec(period) };
    let no_old = std::ptr::null_mut::<libc::itimerspec>();
    // SAFETY: `times` is readable; the old times may be null.
    check(unsafe { libc::syscall(libc::SYS_timerfd_settime, timer.raw(), 0, &raw const times, no_old) })?;
    Ok(timer)
}

#[cfg(test)]
mod tests {
    use super::super::write;
    use super::*;

    #[test]
    fn a_poll_without_events_ends_in_time() {
        let fd = eventfd(0, libc::EFD_NONBLOCK).unwrap();
        assert!(!wait_for(fd.raw(), libc::POLLIN, Duration::from_millis(1)));
        write(fd.raw(), &1_u64.to_ne_bytes()).unwrap();
        assert!(wait_for(fd.raw(), libc::POLLIN, Duration::from_secs(5)));
    }
}
