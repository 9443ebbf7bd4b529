//! What a process does when it exits, for others.

use crate::adapter::current;
use ferroce_os::sys;

/// Reads nothing more from the network, and waits until what was read has been handed to the processes that it is for. To be called
/// when the program has ended: sockets are shared, and a packet that this process has in its hands would be lost with it.
pub fn leave_network() {
    if let Some(adapter) = current() {
        sys::wait_at_exit(|| adapter.addresses.leave_all());
    }
}
