//! Messages between two processes over a connection to a slot's holder: what they all begin with, and descriptors that go
//! with them. Frozen, like the names.

use super::names::VERSION;
use ferroce_os::sys::{self, EngineFd, Outgoing, control};
use ferroce_types::GROUP_SIZE;
use std::io;
use std::os::fd::RawFd;

const MAGIC: [u8; 4] = *b"FRCE";
/// Bytes that a message begins with: magic, version, kind or status, two reserved bytes.
pub const HEADER: usize = 8;

/// Status of an answer: the request is granted.
pub const GRANTED: u8 = 0;
/// Status of an answer: the process doesn't have what was asked for.
pub const UNKNOWN: u8 = 1;
/// Status of an answer: the request makes no sense to the process's version, or isn't granted.
pub const REFUSED: u8 = 2;

/// Status of an answer: the process is about to have what was asked for.
pub const COMING: u8 = 3;

/// The kind of a request for leave to send memory. The next request over the connection may have some with it once this one is granted.
pub const KIND_MEMORY: u8 = 12;

/// The descriptors of a message: as many as it can have with it (SCM_MAX_FD), so that the kernel closes none of them.
type Rights = control::ControlBuffer<{ control::space(4 * 253) }>;

/// The header of a request of this kind, or of an answer with this status.
pub fn header(kind: u8) -> [u8; HEADER] {
    let [m0, m1, m2, m3] = MAGIC;
    [m0, m1, m2, m3, VERSION as u8, kind, 0, 0]
}

/// The kind or status of a message; `None` for one of another version.
pub fn kind_of(bytes: &[u8]) -> Option<u8> {
    let &[m0, m1, m2, m3, version, kind, ..] = bytes else { return None };
    ([m0, m1, m2, m3] == MAGIC && u32::from(version) == VERSION).then_some(kind)
}

/// Sends one message with descriptors.
///
/// # Errors
/// That of `sendmsg(2)`.
pub fn send(fd: RawFd, bytes: &mut [u8], fds: &[RawFd]) -> io::Result<()> {
    let mut rights = Rights::new();
    if !fds.is_empty() {
        let payload: Vec<u8> = fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect();
        rights.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, &payload);
    }
    sys::send_message(fd, &Outgoing::new([bytes]), &mut rights).map(drop)
}

/// Receives one message, and how long it is; the descriptors that came with it are owned from here on.
///
/// # Errors
/// That of `recvmsg(2)`; EMFILE when there is no room for the descriptors.
pub fn receive(fd: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<EngineFd>)> {
    sys::with_forks_held(|| receive_and_adopt(fd, bytes))
}

/// Closes what came with a message, without a wait for the last close of a file that isn't memory ([`sys::leave`]).
pub(super) fn discard(fds: Vec<EngineFd>) {
    for fd in fds {
        if is_memory(&fd) {
            drop(fd);
        } else {
            sys::leave(fd);
        }
    }
}

pub(super) fn is_memory(fd: &EngineFd) -> bool {
    sys::seals(fd.raw()).is_ok()
}

fn receive_and_adopt(fd: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<EngineFd>)> {
    let mut rights = Rights::new();
    let received = sys::receive_message(fd, bytes, &mut rights)?;
    let mut fds = Vec::with_capacity(GROUP_SIZE);
    for message in rights.received(received.control) {
        if (message.level, message.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // Each is adopted (or closed) before an error may end this.
            fds.extend(message.descriptors().map(EngineFd::adopt));
        }
    }
    let fds = fds.into_iter().collect::<io::Result<Vec<_>>>()?;
    if received.control_truncated {
        // The kernel installs as many as there is room for.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((received.length, fds))
}
