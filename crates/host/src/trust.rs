//! Other users whose processes may share memory with this one's, which the program's user has named.
//!
//! Two processes of different users share memory when each trusts the other's user. Nothing else of what processes of one user do for
//! each other is done for users who are trusted: no sockets, no lists of what a process does.
//!
//! Users who have no number in this process's user namespace are one to it. As long as they aren't trusted as one, this process
//! isn't a guest of theirs either.

use super::user::{self, NO_NUMBER};
use ferroce_os::sys;
use std::ffi::CString;
use std::os::fd::RawFd;
use std::str::FromStr;

/// The word for all users who have no number.
const UNMAPPED: &str = "unmapped";

/// Users and groups by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    users: Vec<u32>,
    groups: Vec<u32>,
    /// All who have none.
    unmapped: bool,
}

impl Trust {
    pub(super) fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && !self.unmapped
    }

    /// Whether a number stands for one user, or all users with the number are trusted.
    pub(super) fn knows(&self, uid: u32) -> bool {
        self.unmapped || user::is_told_by(uid)
    }

    /// Whether the process at the other end of a connection is one of a user who is named, or whose group is.
    pub(super) fn includes(&self, connection: RawFd) -> bool {
        if self.is_empty() {
            return false;
        }
        let Ok(peer) = sys::peer_credentials(connection) else { return false };
        if !user::is_told_by(peer.uid) {
            return self.unmapped;
        }
        self.users.contains(&peer.uid)
            || self.groups.contains(&peer.gid)
            || (!self.groups.is_empty()
                && sys::peer_groups(connection)
                    .is_ok_and(|groups| groups.iter().any(|group| self.groups.contains(group))))
    }
}

/// Names or numbers between commas. A name is a user's or, if no user has it, a group's; with a colon before it, a group's. `unmapped` is
/// all users who have no number in this process's user namespace.
impl FromStr for Trust {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let mut trust = Self::default();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            if word == UNMAPPED {
                trust.unmapped = true;
                continue;
            }
            let (name, only_group) = word.strip_prefix(':').map_or((word, false), |name| (name, true));
            let c_name = CString::new(name).map_err(|error| error.to_string())?;
            let number = name.parse::<u32>().ok();
            let user = if only_group { None } else { number.or_else(|| sys::user_named(&c_name)) };
            let (among, found) = match user {
                Some(_) => (&mut trust.users, user),
                None => (&mut trust.groups, number.or_else(|| sys::group_named(&c_name))),
            };
            match found {
                Some(NO_NUMBER) => {
                    return Err(format!(
                        "{word:?} is number {NO_NUMBER}, which stands for all who have none: {UNMAPPED} trusts them"
                    ));
                }
                Some(found) => among.push(found),
                None => return Err(format!("{word:?} is neither a user nor a group of this machine")),
            }
        }
        Ok(trust)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_users_or_groups_by_name_or_number() {
        let trust = |users: &[u32], groups: &[u32]| {
            Ok(Trust { users: users.into(), groups: groups.into(), unmapped: false })
        };
        assert_eq!("".parse::<Trust>(), trust(&[], &[]));
        assert_eq!("root, 1001,:5".parse::<Trust>(), trust(&[0, 1001], &[5]));
        // On each Linux there is a group of this name, and no user.
        assert_eq!(":root,tty".parse::<Trust>(), trust(&[], &[0, 5]));
        assert_eq!("unmapped".parse::<Trust>(), Ok(Trust { unmapped: true, ..Trust::default() }));
        for wrong in ["no-such-name-here", "root,:no-such-name-here", "65534", ":65534", "-1"] {
            assert!(wrong.parse::<Trust>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_peer_is_trusted_for_its_user_or_a_group_of_its() {
        let [own, _peer] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let peer = sys::peer_credentials(own.raw()).unwrap();
        let includes = |users: &[u32], groups: &[u32]| {
            Trust { users: users.into(), groups: groups.into(), unmapped: false }.includes(own.raw())
        };
        assert!(includes(&[peer.uid], &[]) && includes(&[7, peer.uid], &[8]));
        assert!(includes(&[], &[peer.gid]) && includes(&[7], &[8, peer.gid]));
        assert!(!includes(&[], &[]) && !includes(&[peer.uid ^ 1], &[peer.gid ^ 0x4000_0000]));
        assert!(!Trust { unmapped: true, ..Trust::default() }.is_empty());
        assert!(Trust { unmapped: true, ..Trust::default() }.knows(NO_NUMBER));
    }
}
