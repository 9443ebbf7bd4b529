//! Errors of verbs calls, with their errnos.

use std::{fmt, io};

/// Why a call was refused. [`Error::errno`] is what the C ABI returns.
#[derive(Debug)]
pub enum Error {
    /// An argument is wrong: EINVAL.
    Invalid(String),
    /// A queue is full or a limit is reached: ENOMEM.
    NoMemory(String),
    /// The object is still used by others: EBUSY.
    Busy(String),
    /// The adapter doesn't do this: EOPNOTSUPP.
    NotSupported(String),
    /// Memory that isn't mapped, or not with these rights: EFAULT.
    Fault(String),
    /// There is no such object: ENOENT.
    NotFound(String),
    /// A right is missing: EPERM.
    Permission(String),
    /// The object belongs to a process from before a fork, or its device is gone: EIO.
    Dead(String),
    /// The process couldn't join the host's other Ferroce processes: EADDRINUSE when another program has UDP port 4791.
    Host {
        /// The errno for the C ABI.
        errno: i32,
        /// What has failed.
        why: String,
    },
    /// All other errors, with an errno of their own.
    Refused {
        /// The errno for the C ABI.
        errno: i32,
        /// Why.
        why: String,
    },
    /// The operating system refused.
    Os {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why)
            | Self::NoMemory(why)
            | Self::Busy(why)
            | Self::NotSupported(why)
            | Self::Fault(why)
            | Self::NotFound(why)
            | Self::Permission(why)
            | Self::Dead(why)
            | Self::Refused { why, .. } => f.write_str(why),
            Self::Host { why, .. } => write!(f, "joining the host's other processes: {why}"),
            Self::Os { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Os { source, .. } => Some(source),
            _ => None,
        }
    }
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
