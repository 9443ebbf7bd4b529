//! Why a process couldn't join the others of its host.

use super::foreign_holders::ForeignHolders;
use ferroce_types::HostAddr;
use std::fmt;
use std::io;

/// The holder of UDP port 4791, as far as this process can see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holder {
    /// Owner of the socket, as the kernel lists it.
    pub uid: Option<u32>,
    /// The kernel's soft RoCE driver (`rdma_rxe`) is loaded: it takes the port for itself.
    pub kernel_rxe: bool,
    /// The number in `uid` is that of this process's user and of others: this user namespace has none of their own for
    /// them.
    pub indistinct: bool,
    /// It is this process's user.
    pub is_own: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kernel_rxe, self.uid) {
            (true, _) => f.write_str("probably the kernel's rdma_rxe, which is loaded (rmmod rdma_rxe frees the port, and another network namespace has its own)"),
            (false, Some(uid)) if self.indistinct => write!(
                f,
                "a process that isn't known to be of the same user: in this user namespace {uid} stands for all users \
                 without a number of their own, so only a process of the same namespace and user, on Linux 6.5 or \
                 newer, shares the port (a user that the namespace maps, as with `unshare -r`, has a number, and with \
                 FERROCE_TRUST=unmapped believes a holder of the port who has none)"
            ),
            (false, Some(uid)) if self.is_own => write!(
                f,
                "a process of this user ({uid}) that shares it with no other: a program that isn't Ferroce's, or one \
                 that is ending"
            ),
            (false, Some(uid)) => write!(f, "a process of user {uid}"),
            (false, None) => f.write_str("a process that can't be seen from here"),
        }
    }
}

/// Why joining, claiming a slot or opening an address failed.
#[derive(thiserror::Error, Debug)]
pub enum HostError {
    /// UDP port 4791 of the address has a holder that doesn't share it: another user's process, a program that
    /// isn't ours, or the kernel's rxe.
    #[error("UDP port 4791 of {address} is taken by {holder}")]
    AddressInUse {
        /// The local address.
        address: HostAddr,
        /// What could be found out.
        holder: Holder,
    },
    /// Processes of this user hold the address's sockets and none of them answered in time.
    #[error(
        "no process that holds UDP port 4791 of {address} answers: {}, or a program that isn't ours has it",
        if *.stopped { "all are stopped or frozen" } else { "all are too busy" }
    )]
    Unresponsive {
        /// The local address.
        address: HostAddr,
        /// All that were asked are stopped, or frozen.
        stopped: bool,
    },
    /// The address isn't one of this host's (any more).
    #[error("{address} is not an address of this host")]
    NoSuchAddress {
        /// The local address.
        address: HostAddr,
    },
    /// All 4,094 slots of the QPN space are taken.
    #[error(
        "all slots of this host's QPN space are taken{}",
        if .0.slots() == 0 { String::new() } else { format!(", and not by processes of this user: {} (`ferroce doctor` names them)", .0) }
    )]
    NoFreeSlot(ForeignHolders),
    /// The process's limit of open files (`ulimit -n`) leaves no room; an address takes 64 descriptors.
    #[error("too many open files: an address takes 64 descriptors")]
    TooManyFiles,
    /// A system call failed in a way that has no better name.
    #[error("{call}: {source}")]
    System {
        /// Which one.
        call: &'static str,
        /// Its error.
        source: io::Error,
    },
}

impl HostError {
    /// The errno that the C ABI returns for this.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::AddressInUse { .. } => libc::EADDRINUSE,
            Self::Unresponsive { .. } => libc::EBUSY,
            Self::NoSuchAddress { .. } => libc::EADDRNOTAVAIL,
            Self::NoFreeSlot(_) => libc::ENOSPC,
            Self::TooManyFiles => libc::EMFILE,
            Self::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    pub(super) fn system(call: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EMFILE) => Self::TooManyFiles,
            _ => Self::System { call, source },
        }
    }
}

impl From<HostError> for ferroce_types::Error {
    fn from(error: HostError) -> Self {
        Self::Host { errno: error.errno(), why: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verbs_call_that_cannot_join_says_why() {
        let address = HostAddr::new("10.0.0.1".parse().unwrap(), 0);
        let error = ferroce_types::Error::from(HostError::Unresponsive { address, stopped: true });
        assert_eq!(error.errno(), libc::EBUSY);
        let why = "joining the host's other processes: no process that holds UDP port 4791 of 10.0.0.1 answers: all are stopped or frozen, or a program that isn't ours has it";
        assert_eq!(error.to_string(), why);
    }
}
