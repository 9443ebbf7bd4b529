//! Errors of calls, and faults of requests.

use std::borrow::Cow;
use std::sync::Arc;
use std::{error, fmt, io};

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of error a call has returned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A queue has no room.
    Full,
    /// A message is too long.
    TooLong,
    /// An argument is wrong.
    Invalid,
    /// A device or an address doesn't exist.
    NotFound,
    /// The device can't do it.
    Unsupported,
    /// Memory is short.
    NoMemory,
    /// A right is missing.
    Denied,
    /// A limit of the device is reached.
    Busy,
    /// The object is in use.
    InUse,
    /// The peer refuses a connection.
    Rejected,
    /// A wait has reached its limit.
    TimedOut,
    /// There is no way to the peer's address.
    Unreachable,
    /// A request has failed: [`Error::fault`] has the reason.
    Failed,
    /// The queue pair has failed, or the other side is gone.
    Dead,
    /// The operating system refuses.
    Os,
}

impl Kind {
    /// The number that the C interface would return.
    const fn errno(self) -> i32 {
        match self {
            Self::Full | Self::NoMemory => 12,
            Self::TooLong => 90,
            Self::Invalid => 22,
            Self::NotFound => 2,
            Self::Unsupported => 95,
            Self::Denied => 13,
            Self::Busy | Self::InUse => 16,
            Self::Rejected => 111,
            Self::TimedOut => 110,
            Self::Unreachable => 113,
            Self::Failed | Self::Os => 5,
            Self::Dead => 107,
        }
    }

    const fn io(self) -> io::ErrorKind {
        match self {
            Self::Full => io::ErrorKind::WouldBlock,
            Self::TooLong | Self::Invalid => io::ErrorKind::InvalidInput,
            Self::NotFound => io::ErrorKind::NotFound,
            Self::Unsupported => io::ErrorKind::Unsupported,
            Self::NoMemory => io::ErrorKind::OutOfMemory,
            Self::Denied => io::ErrorKind::PermissionDenied,
            Self::Busy | Self::InUse => io::ErrorKind::ResourceBusy,
            Self::Rejected => io::ErrorKind::ConnectionRefused,
            Self::TimedOut => io::ErrorKind::TimedOut,
            Self::Unreachable => io::ErrorKind::HostUnreachable,
            Self::Dead => io::ErrorKind::NotConnected,
            Self::Failed | Self::Os => io::ErrorKind::Other,
        }
    }
}

/// Why a call was refused.
#[derive(Debug)]
pub struct Error(Box<Details>);

#[derive(Debug)]
struct Details {
    kind: Kind,
    verb: &'static str,
    why: Cow<'static, str>,
    fault: Option<Fault>,
}

impl Error {
    /// An error of a call.
    #[must_use]
    #[cold]
    pub fn new(kind: Kind, verb: &'static str, why: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Details { kind, verb, why: why.into(), fault: None }))
    }

    /// A wrong argument.
    #[must_use]
    pub fn invalid(verb: &'static str, why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Invalid, verb, why)
    }

    /// A right that is missing.
    #[must_use]
    pub fn denied(verb: &'static str, why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Denied, verb, why)
    }

    /// The kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The call that was refused.
    #[must_use]
    pub const fn verb(&self) -> &'static str {
        self.0.verb
    }

    /// The number that the C interface would return.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        self.0.kind.errno()
    }

    /// The fault of the request that has failed, if that is the error.
    #[must_use]
    pub const fn fault(&self) -> Option<&Fault> {
        self.0.fault.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.fault {
            Some(fault) => write!(f, "{}: {fault}", self.0.verb),
            None => write!(f, "{}: {}", self.0.verb, self.0.why),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.fault.as_ref().map(|fault| fault as _)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.0.kind.io(), error)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let details = Details { kind: Kind::Failed, verb: "request", why: "".into(), fault: Some(fault) };
        Self(Box::new(details))
    }
}

/// A refused call, with what it was to take.
pub struct Failed<B> {
    /// Why.
    pub error: Error,
    /// What comes back.
    pub back: B,
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Failed").field(&self.error).finish()
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.error.source()
    }
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}

impl<B> From<Failed<B>> for io::Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error.into()
    }
}

/// How a request has ended, other than with success (`enum ibv_wc_status`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Status {
    /// The message is longer than the memory for it.
    LocalLength,
    /// The queue pair can't do it.
    LocalOperation,
    /// A local key doesn't permit it.
    LocalProtection,
    /// The queue pair had failed before.
    Flushed,
    /// A memory window wasn't bound.
    WindowBinding,
    /// The peer's answer was wrong.
    BadResponse,
    /// The request isn't valid for the peer.
    RemoteRequest,
    /// The peer's key doesn't permit it.
    RemoteAccess,
    /// The peer couldn't carry it out.
    RemoteOperation,
    /// The peer hasn't answered.
    RetriesExceeded,
    /// The peer had no receive.
    ReceiverNotReady,
    /// Another status, by its number.
    Other(u32),
}

impl Status {
    /// From the number in a completion; `None` is success.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => return None,
            1 => Self::LocalLength,
            2 => Self::LocalOperation,
            4 => Self::LocalProtection,
            5 => Self::Flushed,
            6 => Self::WindowBinding,
            7 => Self::BadResponse,
            9 => Self::RemoteRequest,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 => Self::RetriesExceeded,
            13 => Self::ReceiverNotReady,
            other => Self::Other(other),
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LocalLength => "the message is longer than the memory for it",
            Self::LocalOperation => "the queue pair can't carry out this request",
            Self::LocalProtection => "a local key doesn't permit the access",
            Self::Flushed => "the queue pair had failed before",
            Self::WindowBinding => "the memory window wasn't bound",
            Self::BadResponse => "the peer's answer was wrong",
            Self::RemoteRequest => "the peer refuses the request",
            Self::RemoteAccess => "the peer's key doesn't permit the access",
            Self::RemoteOperation => "the peer couldn't carry out the request",
            Self::RetriesExceeded => "the peer hasn't answered",
            Self::ReceiverNotReady => "the peer had no receive posted",
            Self::Other(number) => return write!(f, "status {number}"),
        })
    }
}

/// Why a request has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault(Arc<WhyFailed>);

#[derive(PartialEq, Eq, Debug)]
struct WhyFailed {
    status: Status,
    vendor: u32,
    reason: Option<Arc<str>>,
    first: Option<Fault>,
}

impl Fault {
    /// A fault. `vendor` is the adapter's own number, `reason` an explanation, `first` the first failure of the queue pair if the
    /// request was flushed because of it.
    #[must_use]
    pub fn new(status: Status, vendor: u32, reason: Option<Arc<str>>, first: Option<Self>) -> Self {
        Self(Arc::new(WhyFailed { status, vendor, reason, first }))
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.status
    }

    /// The adapter's own number, as `vendor_err` contains it.
    #[must_use]
    pub fn vendor(&self) -> u32 {
        self.0.vendor
    }

    /// The reason, if it is known: its identifier (`FC034`; `ferroce explain` describes it) and a sentence.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.0.reason.as_deref()
    }

    /// Of a flushed request: the first failure of its queue pair.
    #[must_use]
    pub fn first(&self) -> Option<&Self> {
        self.0.first.as_ref()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason() {
            Some(reason) => f.write_str(reason)?,
            None => write!(f, "{}", self.status())?,
        }
        match self.first() {
            Some(first) => write!(f, " (first: {first})"),
            None => Ok(()),
        }
    }
}

impl error::Error for Fault {}
