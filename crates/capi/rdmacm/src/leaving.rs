//! The end of the process: its connections send their last messages to peers on other hosts, and packets that it has read for other processes
//! of the host are passed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ferroce_nic as nic;
use ferroce_os::sync::sleep;
use ferroce_os::sys;

use crate::later;

/// The longest that the end of a process waits for its last messages. On a busy machine it takes a while until a thread that holds packets
/// runs, and packets that are lost then aren't repeated.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the process reads nothing from the network. It usually ends at once; on a busy machine, when it has its turn.
const AWAY: Duration = Duration::from_secs(2);
/// Of the thread's stack.
const STACK: usize = 256 << 10;

/// Called by the loader when the process ends by `exit` (`.fini_array`, see `link/mod.rs`), after the program's own handlers.
///
/// Threads may be in the library, and this one may hold locks, if a signal's handler ends the process. So a thread of ours does it, and
/// this one waits for a while only.
#[unsafe(export_name = "ferroce_c_leaving")]
extern "C" fn leaving() {
    if !nic::has_network() {
        return;
    }
    let done = Arc::new(AtomicU32::new(0));
    let told = done.clone();
    let started = sys::start_thread("ferroce-bye", STACK, move || {
        if let Ok(_inside) = ferroce_os::fork::enter_library() {
            later::set_leaving(true);
            ferroce_connect::end_all();
            nic::leave_network();
        }
        told.store(1, Ordering::Release);
        ferroce_os::sync::wake(&raw const *told, i32::MAX);
        sys::pause(AWAY);
        // Something keeps the process from ending.
        if let Ok(_inside) = ferroce_os::fork::enter_library() {
            nic::come_back_to_network();
            later::set_leaving(false);
        }
    });
    if started.is_ok() && done.load(Ordering::Acquire) == 0 {
        sleep(&done, 0, Some(PATIENCE));
    }
}
