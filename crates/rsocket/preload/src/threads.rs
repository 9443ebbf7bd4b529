//! What begins and ends: threads of librdmacm, children of forks, the process.

use std::ffi::{c_int, c_void};
use std::fs;

use libc::{pid_t, pthread_attr_t, pthread_t};

use crate::forking;
use crate::inside::{belongs_to_librdmacm, inside, is_inside};
use crate::numbers;
use crate::real::real;
use crate::rsocket::{rclose, rsetsockopt};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// What a thread of librdmacm begins with.
struct Begun(Start, *mut c_void);

extern "C" fn begin(begun: *mut c_void) -> *mut c_void {
    // SAFETY: the box that `pthread_create` has given away.
    let Begun(start, argument) = *unsafe { Box::from_raw(begun.cast::<Begun>()) };
    belongs_to_librdmacm();
    start(argument)
}

/// A thread that librdmacm starts is librdmacm's, with all that it calls.
#[unsafe(export_name = "ferroce_s_pthread_create")]
unsafe extern "C-unwind" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let create = |start: Start, argument: *mut c_void| {
        real!(
            c"pthread_create",
            fn(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int,
            (thread, attributes, start, argument)
        )
    };
    if !is_inside() {
        return create(start, argument);
    }
    let begun = Box::into_raw(Box::new(Begun(start, argument)));
    let result = create(begin, begun.cast());
    if result != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(begun) });
    }
    result
}

/// The signal by which the C library wakes a thread that is cancelled, unless the thread holds cancellation off, as calls of librdmacm do.
const CANCELLING: c_int = 32;

/// The signals that a thread in a call of librdmacm holds back, sleeping or not: all but those of faults, those that the C library keeps for
/// itself, SIGKILL and SIGSTOP. Signal 1 is the lowest bit.
const HELD_IN_CALLS: u64 = {
    use libc::{SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP};
    let others = [SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS, SIGKILL, SIGSTOP, CANCELLING, 33];
    let (mut held, mut at) = (!0, 0);
    while at < others.len() {
        held &= !(1 << (others[at] - 1));
        at += 1;
    }
    held
};

/// Whether a thread may be in a call of librdmacm: the call holds its signals back. A thread that begins with a call when this has been read finds itself
/// that it is cancelled: it looks again when its signals are held back.
fn may_be_in_call(thread: pid_t) -> bool {
    let Ok(status) = inside(|| fs::read_to_string(format!("/proc/self/task/{thread}/status"))) else {
        return true;
    };
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|blocked| u64::from_str_radix(blocked.trim(), 16).ok());
    blocked.is_none_or(|blocked| blocked & HELD_IN_CALLS == HELD_IN_CALLS)
}

/// A cancelled thread leaves a call of librdmacm in which it waits. Outside of such calls the signal would end a sleep of the program's that isn't begun
/// anew.
#[unsafe(export_name = "ferroce_s_pthread_cancel")]
unsafe extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    // The thread's clock has its number: pthread_kill(3) refuses this signal.
    let mut clock = 0;
    // SAFETY: the program's own thread, and a place for the answer.
    let is_known = unsafe { libc::pthread_getcpuclockid(thread, &raw mut clock) } == 0;
    let result = real!(c"pthread_cancel", fn(pthread_t) -> c_int, (thread));
    // SAFETY: no memory is passed but room for an action of the kernel.
    unsafe {
        let mut action = [0usize; 8];
        let there = libc::syscall(libc::SYS_rt_sigaction, CANCELLING, 0usize, action.as_mut_ptr(), 8usize);
        let is_handled = there == 0 && action[0] > libc::SIG_IGN;
        let number = !(clock >> 3);
        let wakes = result == 0 && is_known && is_handled && thread != libc::pthread_self();
        if wakes && may_be_in_call(number) {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), number, CANCELLING);
        }
    }
    result
}

extern "C" fn in_child() {
    numbers::own();
    numbers::forget_all();
    forking::forget_others();
}

/// Runs when the library has been loaded.
#[unsafe(export_name = "ferroce_s_loaded")]
extern "C" fn loaded() {
    numbers::own();
    // SAFETY: functions of a library that stays loaded. If it fails, children use rsockets that aren't theirs.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// How long the end of the process waits for a peer that takes nothing, in seconds.
const LINGER: c_int = 5;

/// Runs at the end of the process. As the kernel does for sockets, it delivers what was sent, and ends the connection.
#[unsafe(export_name = "ferroce_s_ended")]
extern "C" fn ended() {
    if !numbers::is_owner() {
        return;
    }
    let open: Vec<(c_int, c_int)> = numbers::all().collect();
    for (number, _) in open {
        if let Some((rsocket, false)) = numbers::take(number) {
            let linger = libc::linger { l_onoff: 1, l_linger: LINGER };
            // SAFETY: an rsocket, and a value of this length.
            unsafe {
                rsetsockopt(
                    rsocket,
                    libc::SOL_SOCKET,
                    libc::SO_LINGER,
                    (&raw const linger).cast(),
                    size_of::<libc::linger>() as libc::socklen_t,
                );
                rclose(rsocket);
            }
        }
    }
}
