//! The checker (`ferroce run --check`): finds uses of verbs that work here and fail, hang or lose data on an adapter.
//!
//! In here: what is asked for, what becomes of a finding, what exists and where it was made, what is outstanding. Out of
//! here: the calls that it looks at (`checked` in `capi/work`, and the calls that create and destroy), and the texts (`ferroce_explain`).
//! Whether there is anything to do is decided when a device is opened or an object is made: without the checker the
//! functions that post and poll aren't those that it looks at.

mod memory;
mod objects;
mod place;
mod quiet;
mod report;
mod strict;
mod unasked;
mod watch;

pub use memory::Buffers;
pub use objects::own;
pub use objects::{close, gone, made, pinned, tell_left_at_exit};
pub use place::CallTrace;
pub use strict::hide_invalid;
pub use unasked::before_sleep;
pub use watch::{CheckedSend, CqWatch, QpWatch, SrqWatch};

use ferroce_entry::{call, log};
use ferroce_explain::{Check, Finding};
use ferroce_os::sys;
use ferroce_parts::settings;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Exit status of a process that a finding has ended.
const EXIT_STATUS: i32 = 99;
/// Of a thread's stack.
const STACK: usize = 64 << 10;
/// Findings with the same number that a process reports, at most.
const LIMIT: u8 = 10;
/// How long a wait has to last before it is reported, and how long a process that a finding ends waits for its output to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is to be checked; `None` for nothing.
fn asked() -> Option<&'static Check> {
    static ASKED: OnceLock<Option<Check>> = OnceLock::new();
    let read = || settings::value(settings::CHECK)?.to_str()?.parse().ok();
    ASKED.get_or_init(read).as_ref()
}

/// Is anything to be checked?
pub fn is_on() -> bool {
    asked().is_some()
}

/// Is what the program posts and polls to be counted: for the checker, or because the adapter is strict?
pub fn counts() -> bool {
    is_on() || settings::is_strict()
}

/// When a process with a finding that ends it does so.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExitPolicy {
    /// Now, in the middle of a call.
    AtOnce,
    /// It is ending already.
    Exiting,
}

/// Reports a finding.
pub fn found(finding: &Finding) {
    tell(finding, ExitPolicy::AtOnce);
}

#[cold]
fn tell(finding: &Finding, end: ExitPolicy) {
    static TOLD: [AtomicU8; 100] = [const { AtomicU8::new(0) }; 100];
    let Some(check) = asked().filter(|check| check.reports(finding.number)) else { return };
    let count = |told: u8| (told < LIMIT).then_some(told + 1);
    let told = &TOLD[usize::from(finding.number) % TOLD.len()];
    if told.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_err() {
        return;
    }
    let is_fatal = check.fatal && finding.is_certain();
    let ends_at_once = is_fatal && end == ExitPolicy::AtOnce;
    // Standard error, the report and standard output may be pipes whose reader doesn't read.
    let is_bounded = ends_at_once && ends_within(PATIENCE);
    // Files are written: a thread isn't cancelled meanwhile.
    call::value("a finding", (), || {
        log::found(&finding.to_string());
        report::append(finding);
    });
    if is_fatal {
        end_process(end, is_bounded);
    }
}

/// Has the process end when this time is over, whatever its pipes are like. False: no thread can be had for that.
fn ends_within(time: Duration) -> bool {
    // SAFETY: the program doesn't come to write to a pipe any more.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let end = move || {
        sys::pause(time);
        // SAFETY: ends the process, wherever its threads are.
        unsafe { libc::_exit(EXIT_STATUS) }
    };
    sys::start_thread("ferroce-bound", STACK, end).is_ok()
}

/// Ends the process for a finding; `is_bounded`: however long standard output takes.
fn end_process(end: ExitPolicy, is_bounded: bool) {
    unsafe extern "C" {
        static mut stdout: *mut libc::FILE;
        fn ftrylockfile(file: *mut libc::FILE) -> c_int;
    }
    // SAFETY: `stdout` is the C library's, which this thread only reads. With glibc, the destructors of a library may call
    // exit(3) to change the status: handlers that are left run all the same, and standard output is written out.
    unsafe {
        match end {
            ExitPolicy::AtOnce => {
                // Another thread may hold it for as long as it likes.
                if is_bounded && ftrylockfile(stdout) == 0 {
                    libc::fflush(stdout);
                }
                libc::_exit(EXIT_STATUS)
            }
            ExitPolicy::Exiting => libc::exit(EXIT_STATUS),
        }
    }
}

/// A region is deregistered while so many requests of a queue pair name it.
pub fn region_in_use(key: u32, qpn: u32, count: usize) {
    let known = format!("send requests of QP {qpn:#08x} with key {key:#x}: {count}");
    found(&Finding { number: 101, about: "ibv_dereg_mr".into(), known, place: CallTrace::here().place() });
}

/// A call has waited for a second until events are acknowledged: this is reported without the checker, too. `known` names the events,
/// `taken` is where the program got one of them.
#[cold]
pub fn waits(about: String, known: String, taken: Option<&CallTrace>) {
    let finding = Finding { number: 103, about, known, place: taken.and_then(CallTrace::place) };
    if is_on() { found(&finding) } else { log::explained(&finding.to_string()) }
}

/// Where the program is, if the checker asks for it.
pub fn place_now() -> Option<CallTrace> {
    is_on().then(CallTrace::here)
}

/// Does something last? Others go on meanwhile.
fn lasts(goes_on: impl Fn() -> bool) -> bool {
    let since = Instant::now();
    while goes_on() {
        if since.elapsed() >= PATIENCE {
            return true;
        }
        ferroce_os::fork::outside_library(|| std::thread::sleep(Duration::from_millis(2)));
    }
    false
}
