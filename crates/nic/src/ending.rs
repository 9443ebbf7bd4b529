//! What a process does for others when it exits.

use crate::adapter::current;

/// Whether there is anything to do. Waits for no lock.
#[must_use]
pub fn has_network() -> bool {
    current().is_some()
}

/// The program has ended: reads nothing more from the network, until [`come_back_to_network`], and waits until what was read has been
/// handed to the processes that it is for. Sockets are shared, and a packet that this process has in its hands would be lost with it.
pub fn leave_network() {
    if let Some(adapter) = current() {
        adapter.addresses.for_each_endpoint(ferroce_udp::Endpoint::leave);
    }
}

/// The process hasn't ended: it reads from the network again.
pub fn come_back_to_network() {
    if let Some(adapter) = current() {
        adapter.addresses.for_each_endpoint(ferroce_udp::Endpoint::come_back);
    }
}
