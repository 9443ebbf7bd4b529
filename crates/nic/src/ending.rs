//! What a process waits for when it exits: threads that are in the middle of something that others need.

use crate::adapter::current;
use ferroce_os::sys;
use std::time::Duration;

/// How often, and with what pause in between, a process that exits looks: for a fifth of a second at most.
const LOOKS: u32 = 1000;
const PAUSE: Duration = Duration::from_micros(200);

/// Waits until it is `done`, but not for long.
pub(crate) fn wait(done: impl Fn() -> bool) {
    for _ in 0..LOOKS {
        if done() {
            return;
        }
        sys::pause(PAUSE);
    }
}

/// Reads nothing more from the network, and waits until what was read has been handed to the processes that it is for. To be called
/// when the program has ended: sockets are shared, and a packet that this process has in its hands would be lost with it.
pub fn leave_network() {
    if let Some(adapter) = current() {
        wait(|| adapter.addresses.leave_all());
    }
}
