//! Lines for connections that fail: an event has a number only.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use ferroce_connect::RejectReason;
use ferroce_entry::call::explained;

use crate::abi::rdma_cm_id;
use crate::address;

/// Part of the name of the library that `ferroce run --sockets` preloads.
const SOCKETS: &[u8] = b"ferroce_rsocket_preload";

/// The peer has rejected a connection. A program that rejects has its own reasons, which its peer knows.
///
/// # Safety
/// `id` is an id of the program.
pub(crate) unsafe fn rejected(id: *mut rdma_cm_id, reason: RejectReason) {
    // SAFETY: the caller's promise.
    let Some(peer) = (unsafe { destination(id) }) else { return };
    match reason {
        RejectReason::CONSUMER => {}
        RejectReason::INVALID_SERVICE_ID => explained(&format!(
            "rdma_connect: no process listens at {peer}. Start the server first, and check address, port and port space \
             (RDMA_CM_EVENT_REJECTED, status 8)."
        )),
        RejectReason(number) => explained(&format!(
            "rdma_connect: {peer} rejects the connection. `ferroce explain {number}` describes the status \
             (RDMA_CM_EVENT_REJECTED, status {number})."
        )),
    }
}

/// The peer hasn't answered for a while, and its host rejects the packets.
pub(crate) fn port_closed(peer: SocketAddr, rest: Duration) {
    if is_wanted() {
        explained(&format!(
            "rdma_connect: {} rejects packets to UDP port 4791: no process uses Ferroce there; retrying for {} s. Start the \
             server there under `ferroce run`.",
            peer.ip(),
            rest.as_secs()
        ));
    }
}

/// The peer hasn't answered.
///
/// # Safety
/// As of [`rejected`].
pub(crate) unsafe fn unreachable(id: *mut rdma_cm_id) {
    // SAFETY: the caller's promise.
    let Some(peer) = (unsafe { destination(id) }) else { return };
    let ip = peer.ip();
    explained(&format!(
        "rdma_connect: {peer} doesn't answer. Check that a process uses Ferroce or an adapter there, and that UDP port 4791 is open: \
         `ferroce doctor {ip}` (RDMA_CM_EVENT_UNREACHABLE)."
    ));
}

/// The address can't be resolved.
///
/// # Safety
/// As of [`rejected`].
pub(crate) unsafe fn unresolved(id: *mut rdma_cm_id, status: i32) {
    // SAFETY: the caller's promise.
    let Some(peer) = (unsafe { destination(id) }) else { return };
    let ip = peer.ip();
    let cause = match -status {
        libc::ETIMEDOUT => format!("no neighbour answers for {ip}"),
        libc::ENETUNREACH | libc::EHOSTUNREACH => format!("no route leads to {ip}"),
        libc::ENODEV => format!("the interface that leads to {ip} isn't a device"),
        errno => format!("{ip} can't be resolved: {}", std::io::Error::from_raw_os_error(errno)),
    };
    explained(&format!(
        "rdma_resolve_addr: {cause}. Check the address and that the host is up: `ferroce doctor {ip}` \
         (RDMA_CM_EVENT_ADDR_ERROR, status {status})."
    ));
}

/// Whether lines are printed: not under `ferroce run --sockets`, where a call of the program returns the error as TCP's does.
fn is_wanted() -> bool {
    let preloaded = ferroce_os::setting("LD_PRELOAD").unwrap_or_default();
    !preloaded.as_bytes().windows(SOCKETS.len()).any(|part| part == SOCKETS)
}

/// The peer of the id's connection, if lines are printed.
///
/// # Safety
/// As of [`rejected`].
unsafe fn destination(id: *mut rdma_cm_id) -> Option<SocketAddr> {
    if id.is_null() || !is_wanted() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { address::read((&raw const (*id).route.addr.dst_storage).cast(), "the destination").ok() }
}
