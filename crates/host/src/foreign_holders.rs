//! Slots whose names processes of other users hold. Any user can bind an abstract name; one that takes them all keeps the others
//! from opening devices, and should be found.

use super::names::{Name, taken_slots};
use super::user::User;
use ferroce_os::sys;
use std::collections::BTreeMap;
use std::fmt;

/// Processes of other users that hold slots' names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignHolders {
    /// User id and process ID (0: not visible) of those that listen there, with how many slots.
    pub listening: BTreeMap<(u32, i32), usize>,
    /// By user id (`None`: the kernel doesn't list it), the sockets of slots at which no process listens: no process of Ferroce leaves
    /// them so for long. Of each socket the number in `/proc/PID/fd`, if the kernel lists it.
    pub silent: BTreeMap<Option<u32>, Vec<Option<u32>>>,
}

impl ForeignHolders {
    /// How many slots they hold.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.listening.values().sum::<usize>() + self.silent.values().map(Vec::len).sum::<usize>()
    }
}

impl fmt::Display for ForeignHolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for ((uid, pid), slots) in &self.listening {
            match pid {
                0 => write!(f, "{separator}{slots} by processes of user {uid}")?,
                _ => write!(f, "{separator}{slots} by process {pid} of user {uid}")?,
            }
            separator = ", ";
        }
        for (uid, sockets) in &self.silent {
            let of = uid.map(|uid| format!(" of user {uid}")).unwrap_or_default();
            write!(f, "{separator}{} by sockets{of} at which no process listens", sockets.len())?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Looks at the names of all taken slots. Empty where they can't be read.
#[must_use]
pub fn foreign_holders() -> ForeignHolders {
    let user = User::current();
    let mut found = ForeignHolders::default();
    for (slot, owner) in taken_slots().unwrap_or_default() {
        match Name::slot(slot).connect() {
            Ok(socket) if user.check_peer(socket.raw()).is_ok() => {}
            Ok(socket) => {
                if let Ok(peer) = sys::peer_credentials(socket.raw()) {
                    *found.listening.entry((peer.uid, peer.pid)).or_default() += 1;
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => {
                found.silent.entry(owner.uid).or_default().push(owner.inode);
            }
            // Its queue of connections is full: stopped, or very busy.
            Err(_) => {
                if let Some(uid) = owner.uid.filter(|&uid| uid != user.uid()) {
                    *found.listening.entry((uid, 0)).or_default() += 1;
                }
            }
        }
    }
    found
}
