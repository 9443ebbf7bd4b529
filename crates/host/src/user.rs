//! Whether a process is one of the same user.
//!
//! The kernel names a peer's user by a number of this process's user namespace. A user who has no number there is named
//! by the overflow user id (65534 as a rule), and so are all the others who have none. Where this process's own number is
//! that one, and some users have no number, the number proves nothing.

use super::names::Name;
use ferroce_os::sys::{self, EngineFd};
use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;

/// Users of a namespace in which each has a number: the initial one, or one that maps them all.
const ALL_USERS: u64 = 0xffff_ffff;
/// `DEFAULT_OVERFLOWUID` of the kernel, where /proc doesn't contain it.
pub(super) const NO_NUMBER: u32 = 65534;

/// The user of this process, whose processes share a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    uid: u32,
    /// Others may have this number as well.
    shared: bool,
}

impl User {
    pub(super) fn current() -> Self {
        let this = Self::of_process();
        if this.shared {
            tracing::info!(
                this.uid,
                "this user namespace gives other users the same number: only processes of this user namespace that \
                 the kernel lets this process inspect count as the same user's"
            );
        }
        this
    }

    fn of_process() -> Self {
        let uid = sys::user_id();
        Self { uid, shared: uid == overflow_uid() && !everybody_has_a_number() }
    }

    pub(super) const fn uid(self) -> u32 {
        self.uid
    }

    /// Others have this user's number as well.
    pub(super) const fn is_ambiguous(self) -> bool {
        self.shared
    }

    /// Whether the process at the other end of a connection is one of this user.
    ///
    /// # Errors
    /// EPERM when it isn't, or when that can't be determined.
    pub(super) fn check_peer(self, connection: RawFd) -> io::Result<()> {
        let peer = sys::peer_credentials(connection)?;
        if peer.uid == self.uid && (!self.shared || may_inspect(connection)?) {
            return Ok(());
        }
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }

    /// A connection to the holder of a name, if it is a process of this user.
    pub(super) fn dial(self, name: &Name) -> io::Result<EngineFd> {
        let socket = name.connect()?;
        let proof = self.check_peer(socket.raw());
        socket.proven(proof)
    }

    /// Whether a datagram's sender is this user, by the number that the kernel attached: false for an ambiguous one.
    pub(super) fn has_sent(self, sender: Option<u32>) -> bool {
        !self.shared && sender == Some(self.uid)
    }
}

/// Whether the process at the other end of a connection is one of this process's user.
#[must_use]
pub fn is_of_this_user(connection: RawFd) -> bool {
    User::of_process().check_peer(connection).is_ok()
}

/// Whether a number is one user's here, and not that of all who have none of their own.
pub(super) fn is_told_by(uid: u32) -> bool {
    uid != overflow_uid() || everybody_has_a_number()
}

/// Whether the process at the other end of a connection is root's, as this process's user namespace has root: it may do to this
/// process what it likes.
pub(super) fn is_root(connection: RawFd) -> bool {
    sys::peer_credentials(connection).is_ok_and(|peer| peer.uid == 0)
}

/// The kernel lets this process read the link of another's user namespace if all user ids of both are the same, not as
/// numbers of a namespace but as the kernel knows them, and both are of one user namespace (PTRACE_MODE_READ, ptrace(2)).
/// The process descriptor (Linux 6.5) names the process before and after, so that no other one has got its number
/// meanwhile; without one, the result is false.
fn may_inspect(connection: RawFd) -> io::Result<bool> {
    let process = sys::peer_pidfd(connection)?;
    let before = sys::process_of(process.raw())?;
    let link = CString::new(format!("/proc/{before}/ns/user"))?;
    Ok(sys::read_link(&link).is_ok() && sys::process_of(process.raw())? == before)
}

fn overflow_uid() -> u32 {
    let text = sys::read_file(c"/proc/sys/kernel/overflowuid", 64).unwrap_or_default();
    std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(NO_NUMBER)
}

fn everybody_has_a_number() -> bool {
    sys::read_file(c"/proc/thread-self/uid_map", 64 << 10).is_ok_and(|map| mapped_users(&map) >= ALL_USERS)
}

/// Users that a `uid_map` (user_namespaces(7)) gives numbers to.
fn mapped_users(map: &[u8]) -> u64 {
    let lines = std::str::from_utf8(map).unwrap_or_default().lines();
    lines.filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_of_this_user_by_its_number_and_a_shared_number_proves_nothing_of_a_datagram() {
        let uid = sys::user_id();
        let [own, _peer] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        for (user, is_its) in [(uid, true), (uid ^ 1, false)] {
            for shared in [false, true] {
                let user = User { uid: user, shared };
                assert!(!user.has_sent(None) && !user.has_sent(Some(user.uid ^ 1)));
                assert_eq!(user.has_sent(Some(user.uid)), !shared);
                assert!(shared || user.check_peer(own.raw()).is_ok() == is_its);
                // Without a number of its own a process has to be one that may be inspected, besides.
                assert!(is_its || user.check_peer(own.raw()).is_err());
            }
        }
    }

    #[test]
    fn only_a_whole_map_gives_everybody_a_number() {
        assert_eq!(mapped_users(b"         0          0 4294967295\n"), ALL_USERS);
        assert_eq!(mapped_users(b"0 0 1000\n1000 5000 4294966295\n"), ALL_USERS);
        for partial in [&b""[..], b"0 100000 65536\n", b"1000 1000 1\n", b"0 0 nonsense\n", b"\xff\n"] {
            assert!(mapped_users(partial) < ALL_USERS, "{}", partial.escape_ascii());
        }
    }
}
