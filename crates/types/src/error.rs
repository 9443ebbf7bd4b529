//! What can go wrong in a verbs call, and the errno that says so.

use std::io;

/// Why a call was refused. [`Error::errno`] is what the C ABI returns.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument is wrong: EINVAL.
    #[error("{0}")]
    Invalid(String),
    /// A queue is full or a limit is reached: ENOMEM.
    #[error("{0}")]
    NoMemory(String),
    /// The object is still used by others: EBUSY.
    #[error("{0}")]
    Busy(String),
    /// The adapter doesn't do this: EOPNOTSUPP.
    #[error("{0}")]
    NotSupported(String),
    /// Memory that isn't mapped, or not with these rights: EFAULT.
    #[error("{0}")]
    Fault(String),
    /// There is no such object: ENOENT.
    #[error("{0}")]
    NotFound(String),
    /// A right is missing: EPERM.
    #[error("{0}")]
    Permission(String),
    /// The object belongs to a process from before a fork, or its device is gone: EIO.
    #[error("{0}")]
    Dead(String),
    /// The process couldn't join the host's others: EADDRINUSE when UDP port 4791 is somebody else's.
    #[error("joining the host's other processes: {why}")]
    Host {
        /// What says so to the C ABI.
        errno: i32,
        /// What has failed.
        why: String,
    },
    /// What no other variant has the errno for.
    #[error("{why}")]
    Refused {
        /// What says so to the C ABI.
        errno: i32,
        /// Why.
        why: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
}

/// A result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno that the verbs man pages give for this.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Invalid(_) => libc::EINVAL,
            Self::NoMemory(_) => libc::ENOMEM,
            Self::Busy(_) => libc::EBUSY,
            Self::NotSupported(_) => libc::EOPNOTSUPP,
            Self::Fault(_) => libc::EFAULT,
            Self::NotFound(_) => libc::ENOENT,
            Self::Permission(_) => libc::EPERM,
            Self::Dead(_) => libc::EIO,
            Self::Host { errno, .. } | Self::Refused { errno, .. } => *errno,
            Self::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    /// An operating system error with what was tried.
    pub fn os(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Os { what, source }
    }
}

/// `Err(Error::Invalid(format!(…)))`.
#[macro_export]
macro_rules! invalid {
    ($($arg:tt)*) => { Err($crate::Error::Invalid(format!($($arg)*))) };
}
