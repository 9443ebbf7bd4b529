//! Notifications about interfaces and addresses, for the background thread's epoll.
//!
//! A monitor returns the interfaces that may have changed, without the changes: the caller reads the current state with
//! [`Netdev::read`](super::Netdev::read), so that lost or reordered notifications can't leave a wrong state. It also returns the
//! interfaces that have been down meanwhile, which the current state doesn't show.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::RawFd;

use super::interface::parse_link;
use super::netlink::{Netlink, messages, u32_at};

/// One news datagram holds one object; links are the longest.
const BUFFER: usize = 32 << 10;
/// Datagrams taken per call, so that a storm of changes can't keep the caller.
const MOST_PER_DRAIN: usize = 256;

/// A subscription to changes of links and addresses in this network namespace.
#[derive(Debug)]
pub struct Monitor {
    socket: Netlink,
    buffer: Vec<u8>,
}

/// What to look at again.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Changes {
    /// Indices of interfaces that changed, came or went, themselves or in their addresses.
    pub interfaces: BTreeSet<u32>,
    /// Those of them that were down at some moment, though they may be up again.
    pub down: BTreeSet<u32>,
    /// News was lost: anything may have changed.
    pub lost: bool,
}

impl Changes {
    /// Nothing to look at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.interfaces.is_empty() && !self.lost
    }

    /// Adds what came later.
    pub fn merge(&mut self, later: Self) {
        self.interfaces.extend(later.interfaces);
        self.down.extend(later.down);
        self.lost |= later.lost;
    }

    /// Whether this interface has to be read again.
    #[must_use]
    pub fn concerns(&self, ifindex: u32) -> bool {
        self.lost || self.interfaces.contains(&ifindex)
    }

    /// Whether this interface is known to have been down for a while.
    #[must_use]
    pub fn was_down(&self, ifindex: u32) -> bool {
        self.down.contains(&ifindex)
    }
}

impl Monitor {
    /// Subscribes. Subscribe first and read the interfaces after, so that nothing falls in between.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    pub fn open() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        Ok(Self { socket: Netlink::open(groups as u32)?, buffer: vec![0; BUFFER] })
    }

    /// Readable when there is news (level-triggered). -1 in a child of the process that made it.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// Takes the news there is, without waiting. After a large amount some may be left; the fd stays readable.
    ///
    /// # Errors
    /// Those of recv(2) other than EAGAIN and ENOBUFS.
    pub fn drain(&mut self) -> io::Result<Changes> {
        let mut changes = Changes::default();
        for _ in 0..MOST_PER_DRAIN {
            let length = match self.socket.receive(&mut self.buffer, libc::MSG_DONTWAIT) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    changes.lost = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for message in messages(&self.buffer[..length]) {
                if let libc::RTM_NEWLINK | libc::RTM_DELLINK | libc::RTM_NEWADDR | libc::RTM_DELADDR =
                    message.kind
                {
                    // ifinfomsg and ifaddrmsg both have the index at offset 4.
                    changes.interfaces.extend(u32_at(message.body, 4));
                    if parse_link(&message).is_some_and(|link| !link.is_up()) {
                        changes.down.extend(u32_at(message.body, 4));
                    }
                }
            }
        }
        Ok(changes)
    }
}
