//! Asynchronous events, by which an object or a device notifies the program.

/// What an asynchronous event is about (ibv_get_async_event(3)). The `usize` is the user handle of the object: the word that
/// its maker gave it, and gets back with its events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the names are the man page's
pub enum AsyncEvent {
    QpFatal(usize),
    QpRequestError(usize),
    QpAccessError(usize),
    CommunicationEstablished(usize),
    SqDrained(usize),
    QpLastWqeReached(usize),
    CqError(usize),
    SrqError(usize),
    SrqLimitReached(usize),
    WqFatal(usize),
    PortActive(u8),
    PortError(u8),
    LidChange(u8),
    GidChange(u8),
    DeviceFatal,
    SpeedChange,
}

impl AsyncEvent {
    /// The object's user handle; `None` for events of a port or device.
    #[must_use]
    pub fn object(&self) -> Option<usize> {
        match *self {
            Self::QpFatal(o)
            | Self::QpRequestError(o)
            | Self::QpAccessError(o)
            | Self::CommunicationEstablished(o)
            | Self::SqDrained(o)
            | Self::QpLastWqeReached(o)
            | Self::CqError(o)
            | Self::SrqError(o)
            | Self::SrqLimitReached(o)
            | Self::WqFatal(o) => Some(o),
            Self::PortActive(_)
            | Self::PortError(_)
            | Self::LidChange(_)
            | Self::GidChange(_)
            | Self::DeviceFatal
            | Self::SpeedChange => None,
        }
    }
}
