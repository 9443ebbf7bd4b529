//! How two processes introduce themselves before they share memory: one message each way over the connection to a
//! slot's holder, with descriptors.
//!
//! The frame is that of all requests between processes of a host; a process that doesn't know this kind of request, or
//! another [`VERSION`] of it, refuses, and both go by UDP.

use super::directory::Directory;
use super::link::RING;
use ferroce_host::frame;
use ferroce_os::sys::EngineFd;
use std::io;
use std::os::fd::RawFd;

/// The kind of a request for shared memory.
pub(super) const KIND: u8 = 2;
/// Of the memory's layout and of what is in it. 3: an access word names the QP and the region that are being used.
const VERSION: u32 = 3;
const LEN: usize = 48;
/// Status of an answer: the process that answers has made a link as well, and that link is to be used.
const YIELD: u8 = 3;
/// In [`AT_FEATURES`]: the process understands [`YIELD`]. Builds before it left zero there, and looked at nothing there.
const YIELDS: u8 = 1;
const AT_FEATURES: usize = 40;

/// What a process says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Introduction {
    pub(super) process: u64,
    /// Where in its memory its cookie is, and the cookie.
    pub(super) cookie_at: u64,
    pub(super) cookie: u64,
    /// It gives up its link if it is told that there is another.
    pub(super) yields: bool,
}

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HelloAnswer {
    Accepted(Introduction),
    /// The link that the peer has made at the same time is to be used.
    Yield,
    Refused,
}

/// Frame (8 bytes), version, size of a ring, then [`Introduction`].
fn message(status: u8, own: &Directory) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(&frame::header(status));
    bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    bytes[12..16].copy_from_slice(&(RING as u32).to_ne_bytes());
    bytes[16..24].copy_from_slice(&own.process.to_ne_bytes());
    bytes[24..32].copy_from_slice(&own.cookie.at().to_ne_bytes());
    bytes[32..40].copy_from_slice(&own.cookie.value().to_ne_bytes());
    bytes[AT_FEATURES] = YIELDS;
    bytes
}

/// The first message; link memory and directory go with it.
pub(super) fn hello(own: &Directory) -> [u8; LEN] {
    message(KIND, own)
}

/// The answer that accepts; the directory goes with it.
pub(super) fn answer(own: &Directory) -> [u8; LEN] {
    message(frame::GRANTED, own)
}

impl Introduction {
    pub(super) fn parse_hello(bytes: &[u8]) -> Option<Self> {
        Self::parse(bytes, KIND)
    }

    pub(super) fn parse_answer(bytes: &[u8]) -> Option<HelloAnswer> {
        match frame::kind_of(bytes)? {
            frame::GRANTED => Self::parse(bytes, frame::GRANTED).map(HelloAnswer::Accepted),
            YIELD => Some(HelloAnswer::Yield),
            _ => Some(HelloAnswer::Refused),
        }
    }

    fn parse(bytes: &[u8], kind: u8) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let short = |at: usize| bytes[at..].first_chunk().map(|b| u32::from_ne_bytes(*b));
        let long = |at: usize| bytes[at..].first_chunk().map(|b| u64::from_ne_bytes(*b));
        let same = frame::kind_of(bytes)? == kind && short(8)? == VERSION && short(12)? == RING as u32;
        let yields = bytes[AT_FEATURES] & YIELDS != 0;
        same.then_some(Self { process: long(16)?, cookie_at: long(24)?, cookie: long(32)?, yields })
    }
}

pub(super) fn send(fd: RawFd, bytes: &[u8; LEN], fds: &[RawFd]) -> io::Result<()> {
    frame::send(fd, &mut bytes.clone(), fds)
}

/// One message, if it is there. Of a peer that is gone, too: the kernel first says that it has gone, once, if it has left
/// something unread.
pub(super) fn receive(fd: RawFd) -> io::Result<(Vec<u8>, Vec<EngineFd>)> {
    let mut bytes = vec![0; LEN + 1];
    let (len, fds) = match frame::receive(fd, &mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => frame::receive(fd, &mut bytes),
        received => received,
    }?;
    if len == 0 {
        return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
    }
    bytes.truncate(len);
    Ok((bytes, fds))
}

/// Says no.
pub(super) fn refuse(fd: RawFd) {
    say(fd, frame::REFUSED);
}

/// Says that the link that this process has made is to be used.
pub(super) fn ask_to_yield(fd: RawFd) {
    say(fd, YIELD);
}

fn say(fd: RawFd, status: u8) {
    // Who is gone needs no answer.
    let _ = frame::send(fd, &mut frame::header(status), &[]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_introduction_survives_the_round_trip() {
        let own = Directory::new().unwrap();
        let (cookie_at, cookie) = (own.cookie.at(), own.cookie.value());
        let expected = Introduction { process: own.process, cookie_at, cookie, yields: true };
        assert_eq!(Introduction::parse_hello(&hello(&own)), Some(expected));
        assert_eq!(Introduction::parse_answer(&answer(&own)), Some(HelloAnswer::Accepted(expected)));
        let refusal = frame::header(frame::REFUSED);
        assert_eq!(Introduction::parse_answer(&refusal), Some(HelloAnswer::Refused));
        assert_eq!(Introduction::parse_answer(&frame::header(YIELD)), Some(HelloAnswer::Yield));
    }

    #[test]
    fn a_build_that_knows_of_no_yielding_is_told_apart() {
        let mut older = hello(&Directory::new().unwrap());
        older[AT_FEATURES..].fill(0);
        assert!(!Introduction::parse_hello(&older).unwrap().yields);
    }

    #[test]
    fn what_a_peer_has_said_is_read_when_it_has_gone_with_something_unread() {
        use ferroce_os::sys::{send_byte, socket_pair};
        let [own, peer] = socket_pair(libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK).unwrap();
        let directory = Directory::new().unwrap();
        send(peer.raw(), &answer(&directory), &[]).unwrap();
        send_byte(own.raw());
        drop(peer);
        let (bytes, _) = receive(own.raw()).unwrap();
        assert!(matches!(Introduction::parse_answer(&bytes), Some(HelloAnswer::Accepted(_))));
        assert!(receive(own.raw()).is_err());
    }

    #[test]
    fn introductions_of_another_version_layout_or_length_are_none() {
        let own = Directory::new().unwrap();
        let (hello, answer) = (hello(&own), answer(&own));
        for len in (0..LEN).chain([LEN + 1]) {
            let mut longer = hello.to_vec();
            longer.resize(len, 0);
            assert_eq!(Introduction::parse_hello(&longer), None, "{len} bytes");
        }
        // Magic, version of the frame, kind, version, size of a ring.
        for at in (0..6).chain(8..16) {
            let (mut hello, mut answer) = (hello, answer);
            hello[at] ^= 1;
            answer[at] ^= 1;
            assert_eq!(Introduction::parse_hello(&hello), None, "byte {at}");
            let parsed = Introduction::parse_answer(&answer);
            assert!(matches!(parsed, None | Some(HelloAnswer::Refused)), "byte {at}");
        }
        assert_eq!(Introduction::parse_hello(&answer), None);
    }
}
