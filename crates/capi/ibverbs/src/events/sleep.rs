//! How a thread sleeps until there is an event: in a poll, which a signal ends or doesn't as it would a kernel's read.
//!
//! The thread's signals are held back from the beginning of its wait to the end ([`HeldSignals`]), and let in by the poll alone. There the
//! thread has no lock, so a handler may call verbs, leave by siglongjmp(3), or end the thread.

use std::ffi::c_int;
use std::time::Duration;

use ferroce_nic as nic;
use ferroce_os::sys::{HeldSignals, NEVER_HELD, signal_set};
use libc::{nfds_t, pollfd, sigset_t, timespec};

use ferroce_entry::call;

// Declared as what it is: a cancellation point, from which a cancelled thread unwinds.
unsafe extern "C-unwind" {
    fn ppoll(fds: *mut pollfd, nfds: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
}

/// What a waiter sleeps on.
pub struct EventSleep {
    /// The descriptor of the events first.
    fds: [pollfd; 2],
    /// `None`: for ever.
    timeout: Option<timespec>,
    /// The descriptor's O_NONBLOCK, which is looked up before each sleep.
    pub nonblocking: bool,
    /// An event has come while the thread made progress: there is nothing to sleep for.
    pub(super) event_came: bool,
}

/// How long a waiter sleeps at once where RLIMIT_NOFILE is below 2, which poll(2) takes for the number of descriptors that it
/// may be handed (a sandbox lowers the limit so). Events are found in the queue, without the descriptor.
const NAP: timespec = timespec { tv_sec: 0, tv_nsec: 1_000_000 };

fn timespec_of(duration: Duration) -> timespec {
    timespec { tv_sec: duration.as_secs() as libc::time_t, tv_nsec: duration.subsec_nanos().into() }
}

/// Why a wait is over.
#[repr(C)]
pub enum Woken {
    /// An event is announced.
    ByEvent,
    /// The sockets, the time, or a signal that restarts.
    ByAnother,
    /// The call has to end with this errno.
    InVain,
}

impl EventSleep {
    /// Makes progress, then prepares the sleep of a thread that waits for events of the descriptor `fd`, unless it `has_event` meanwhile.
    pub(super) fn with_progress(fd: c_int, has_event: impl Fn() -> bool) -> Self {
        let mut sleep = Self::of([fd, -1], None);
        let may_wait = || {
            sleep.look_up_flags();
            !sleep.nonblocking
        };
        let plan = nic::prepare_wait(fd, may_wait, has_event);
        if let Some(ferroce_engine::WaitPlan { fds: [_, sources], timeout }) = plan {
            sleep.fds[1].fd = sources;
            sleep.timeout = Some(timespec_of(timeout));
        } else {
            sleep.event_came = true;
        }
        sleep
    }

    /// Of two descriptors (−1: none), without progress.
    pub fn on(fds: [c_int; 2], timeout: Option<timespec>) -> Self {
        let mut sleep = Self::of(fds, timeout);
        sleep.look_up_flags();
        sleep
    }

    fn of(fds: [c_int; 2], timeout: Option<timespec>) -> Self {
        Self {
            fds: fds.map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 }),
            timeout,
            nonblocking: false,
            event_came: false,
        }
    }

    fn look_up_flags(&mut self) {
        // SAFETY: no memory is passed.
        let flags = unsafe { libc::fcntl(self.fds[0].fd, libc::F_GETFL) };
        self.nonblocking = flags >= 0 && flags & libc::O_NONBLOCK != 0;
    }

    /// Sleeps no longer than this at once.
    pub(super) fn bound(&mut self, longest: Option<Duration>) {
        let Some(longest) = longest.map(timespec_of) else { return };
        let is_longer = |own: timespec| (own.tv_sec, own.tv_nsec) > (longest.tv_sec, longest.tv_nsec);
        if self.timeout.is_none_or(is_longer) {
            self.timeout = Some(longest);
        }
    }

    /// The second descriptor was readable when the wait was over.
    pub(super) fn has_sources_readable(&self) -> bool {
        self.fds[1].revents != 0
    }

    /// Never returns, unless the thread is cancelled. As a read of a kernel's file that another thread has closed.
    ///
    /// # Safety
    /// As [`EventSleep::wait`].
    pub unsafe extern "C-unwind" fn for_ever(held: HeldSignals) -> ! {
        let mask = held.mask();
        loop {
            // SAFETY: no entries, no timeout, and a mask; nothing on this frame needs a destructor.
            unsafe { ppoll(std::ptr::null_mut(), 0, std::ptr::null(), &raw const mask) };
        }
    }

    /// Waits until an event is announced, something else has happened, or the time is over. Signals that are `held` back are let in.
    ///
    /// # Safety
    /// Nothing on the frames above needs a destructor, up to those of the program: a cancelled thread unwinds from here.
    pub unsafe extern "C-unwind" fn wait(&mut self, held: HeldSignals) -> Woken {
        let timeout = self.timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mask = held.mask();
        // SAFETY: two valid entries, a timeout or NULL, and a mask; nothing on this frame needs a destructor.
        let mut n = unsafe { ppoll(self.fds.as_mut_ptr(), 2, timeout, &raw const mask) };
        if n < 0 && call::last_errno() == libc::EINVAL {
            let nap = self.timeout.filter(|t| t.tv_sec == 0 && t.tv_nsec < NAP.tv_nsec).unwrap_or(NAP);
            // SAFETY: no entries, a timeout, and a mask; nothing on this frame needs a destructor.
            n = unsafe { ppoll(std::ptr::null_mut(), 0, &raw const nap, &raw const mask) };
            if n == 0 {
                return Woken::ByAnother;
            }
        }
        if n < 0 {
            return after_failure(held);
        }
        if self.fds[0].fd < 0 || self.fds[0].revents & libc::POLLNVAL != 0 {
            call::set_errno(libc::EBADF);
            return Woken::InVain;
        }
        if self.fds[0].revents == 0 { Woken::ByAnother } else { Woken::ByEvent }
    }

    /// Lets the signals in that are pending, without a sleep. A poll that finds a descriptor ready leaves them pending: a thread whose
    /// sockets are always ready would never let them in.
    ///
    /// # Safety
    /// As [`EventSleep::wait`].
    pub unsafe extern "C-unwind" fn let_signals_in(held: HeldSignals) -> Woken {
        let (mask, at_once) = (held.mask(), timespec_of(Duration::ZERO));
        // SAFETY: no entries, a timeout, and a mask; nothing on this frame needs a destructor.
        let n = unsafe { ppoll(std::ptr::null_mut(), 0, &raw const at_once, &raw const mask) };
        if n < 0 { after_failure(held) } else { Woken::ByAnother }
    }
}

/// The poll has failed.
fn after_failure(held: HeldSignals) -> Woken {
    let error = call::last_errno();
    if error == libc::EINTR && signal_restarts(held) {
        return Woken::ByAnother;
    }
    call::set_errno(error);
    Woken::InVain
}

/// Ends a call that has held the signals back. The handlers of those that are pending run here, and leave the call's errno as it is.
pub extern "C-unwind" fn end_call(held: HeldSignals, result: c_int) -> c_int {
    let errno = call::last_errno();
    held.end();
    call::set_errno(errno);
    result
}

/// Would the read of a kernel's channel have gone on after the signal that has just ended a poll? It would with
/// SA_RESTART, which poll(2) doesn't honour. Which handler ran can't be known. Yes if every handler that can have run in
/// this thread restarts. A handler that ran once (SA_RESETHAND) leaves its flags behind. A handler that has removed itself
/// leaves flags with the default action on most systems, and whether it restarted isn't known: no, if there is no other
/// handler. Where there is none at all the signal was the C library's own (setuid(2) with threads), which restarts.
fn signal_restarts(held: HeldSignals) -> bool {
    let (mut handled, mut removed) = (false, false);
    // The C library keeps the signals in between to itself.
    for signal in (1..32).chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
        if NEVER_HELD & signal_set(&[signal]) != 0 || held.program_blocks(signal) {
            continue;
        }
        // SAFETY: sigaction consists of numbers and a nullable pointer; the call fills it in or fails.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut action) != 0 {
                continue;
            }
            action
        };
        let is_default = action.sa_sigaction == libc::SIG_DFL;
        let has_handler = !is_default && action.sa_sigaction != libc::SIG_IGN;
        if has_handler || action.sa_flags & libc::SA_RESETHAND != 0 {
            handled = true;
            if action.sa_flags & libc::SA_RESTART == 0 {
                return false;
            }
        }
        removed |= is_default && action.sa_flags != 0;
    }
    handled || !removed
}
