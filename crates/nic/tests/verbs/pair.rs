//! Two connected QPs of one process.

use crate::side::{Side, open};
use ferroce_nic::Context;
use ferroce_wire::Service;
use std::sync::Arc;

pub fn over_sockets() {
    // SAFETY: called first in the test's process; no other thread reads the environment yet.
    unsafe { std::env::set_var("FERROCE_FABRIC", "udp") };
}

pub fn pair(service: Service, bytes: usize) -> (Side, Side) {
    connected(&open(), service, bytes)
}

/// As `pair`, of a device that is open already.
pub fn connected(context: &Arc<Context>, service: Service, bytes: usize) -> (Side, Side) {
    let (a, b) = (Side::new(context, service, bytes), Side::new(context, service, bytes));
    a.connect(b.qp.qpn());
    b.connect(a.qp.qpn());
    (a, b)
}
