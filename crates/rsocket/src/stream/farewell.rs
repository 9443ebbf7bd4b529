//! The end of a stream: the peer is to get everything that was sent, and the end in order.
//!
//! A close waits for the peer for a short time. A stream whose peer is slower, or stopped, leaves its number and goes on in the
//! background, as a connection of TCP does in the kernel. The end of the process waits for such streams.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use super::StreamSocket;
use super::state::{StreamPhase, StreamState};
use crate::core::SocketState as _;
use crate::service;
use ferroce_rsocket_calls::this_process::ProcessIdentity;

/// How long a close waits for the peer where SO_LINGER isn't set.
const BLOCKING: Duration = Duration::from_secs(1);
/// The same for a non-blocking socket.
const NONBLOCKING: Duration = Duration::from_millis(50);
/// How long a stream goes on in the background.
const BACKGROUND: Duration = Duration::from_secs(60);
/// How long the end of the process waits for all such streams.
const AT_EXIT: Duration = Duration::from_secs(5);

/// The streams that go on in the background, by the descriptor that the service thread waits for, and the process that they belong to.
struct Leaving {
    process: ProcessIdentity,
    streams: BTreeMap<RawFd, Arc<StreamSocket>>,
}

static LEAVING: Mutex<Leaving> =
    Mutex::new(Leaving { process: ProcessIdentity::NONE, streams: BTreeMap::new() });
/// Notified when a stream has left.
static LEFT: Condvar = Condvar::new();

fn leaving() -> MutexGuard<'static, Leaving> {
    // Nothing under this lock panics half-way through a change.
    LEAVING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StreamSocket {
    /// Sends the end of the stream, waits until the peer has everything, and ends the connection. A connection that is closed with bytes
    /// unread is reset when everything was sent, as with TCP.
    pub(crate) fn close(self: &Arc<Self>) {
        self.core.hide();
        let linger = self.lock().ok().and_then(|state| state.options.linger);
        let patience = linger.unwrap_or(if self.core.is_nonblocking() { NONBLOCKING } else { BLOCKING });
        if !patience.is_zero() && self.shut_both() {
            let until = Instant::now() + patience;
            let over = self.core.wait(false, Some(until), |state| state.has_left().then_some(Ok(())));
            let leaves = |errno| errno == libc::EINTR || errno == libc::EAGAIN && linger.is_none();
            if over.is_err_and(|refusal| leaves(refusal.errno)) {
                return self.leave_in_background();
            }
        }
        self.end();
    }

    /// Sends the end of the stream, unless bytes are unread. False: the socket can't be used any more.
    fn shut_both(&self) -> bool {
        let Ok(mut state) = self.lock() else { return false };
        state.progress(&self.core.set);
        let state = &mut *state;
        if let StreamPhase::Open(connection) = &mut state.phase {
            state.leaves_unread = connection.readable() > 0;
            if !state.leaves_unread {
                connection.shut(true, true);
            }
        }
        true
    }

    fn end(&self) {
        service::forget(self.attended_fd());
        let ended = self.core.lock_to_end().end(&self.core.set);
        // Objects end without the lock.
        drop(ended);
    }

    fn leave_in_background(self: &Arc<Self>) {
        wait_at_exit();
        self.core.release_number();
        {
            let mut leaving = leaving();
            let process = ProcessIdentity::own();
            if std::mem::replace(&mut leaving.process, process) != process {
                // Streams of the parent, which a child of fork(2) can't use.
                std::mem::take(&mut leaving.streams).into_values().for_each(std::mem::forget);
            }
            leaving.streams.insert(self.attended_fd(), self.clone());
        }
        self.core.lock_to_end().farewell_until = Some(Instant::now() + BACKGROUND);
        self.watch();
    }

    /// The service thread attends a stream that leaves in the background.
    pub(super) fn go_on_leaving(self: &Arc<Self>, until: Instant) -> service::NextAttendance {
        if Instant::now() < until {
            let mut state = self.core.lock_to_end();
            self.core.progress_armed(&mut state);
            if !state.has_left() {
                return service::NextAttendance::event_or(until);
            }
        }
        self.end();
        leaving().streams.remove(&self.attended_fd());
        LEFT.notify_all();
        service::NextAttendance::NEVER
    }
}

impl StreamState {
    /// Whether the peer has everything, and knows the end or is to learn it by a reset.
    fn has_left(&self) -> bool {
        match &self.phase {
            StreamPhase::Open(connection) => {
                connection.ends.is_over() || self.leaves_unread && connection.has_sent_all()
            }
            _ => true,
        }
    }
}

/// Has the end of the process wait for streams in the background.
fn wait_at_exit() {
    unsafe extern "C" {
        fn __cxa_atexit(
            handler: extern "C" fn(*mut c_void),
            argument: *mut c_void,
            library: *mut c_void,
        ) -> c_int;
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a function of a library that stays loaded. If it fails, the process doesn't wait.
        let _ = unsafe { __cxa_atexit(ended, ptr::null_mut(), ptr::null_mut()) };
    });
}

extern "C" fn ended(_: *mut c_void) {
    let leaving = leaving();
    if leaving.process == ProcessIdentity::own() {
        let waits = |leaving: &mut Leaving| !leaving.streams.is_empty();
        drop(LEFT.wait_timeout_while(leaving, AT_EXIT, waits));
    }
}
