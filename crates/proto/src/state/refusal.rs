//! Why a request is refused, and the NAK for it.

use crate::{Asked, Cause, PlaceError, Refusing};
use ferroce_types::RemoteError;
use ferroce_wire::NakCode;

/// Why a request isn't executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// No receive is posted: RNR NAK, and nothing has changed.
    NotReady,
    /// Wrong sequence of opcodes, wrong length, unsupported: NAK invalid request.
    Invalid,
    /// The QP doesn't permit the operation: NAK invalid request, as what follows.
    QpRights,
    /// More READs and atomics than `max_dest_rd_atomic`.
    Depth,
    /// An atomic on an address that isn't a multiple of 8.
    Misaligned,
    /// A packet whose length doesn't fit its place in the message.
    PacketLength,
    /// The receive is smaller than the message: NAK invalid request, LOC_LEN_ERR here.
    TooLong,
    /// Key, range or rights: NAK remote access error.
    Access,
    /// The key that a SEND withdraws can't be withdrawn: NAK remote access error.
    Invalidation,
    /// The memory behind the key is gone: NAK remote operational error.
    Operational,
    /// The receive's own memory is wrong: NAK remote operational error, LOC_PROT_ERR here.
    BadReceive,
    /// The XRCETH names no SRQ of the target's XRC domain: NAK invalid request.
    NoSrq,
    /// Another process executes it: nothing is answered yet.
    Delegated,
}

impl From<PlaceError> for Refusal {
    fn from(PlaceError: PlaceError) -> Self {
        Refusal::BadReceive
    }
}

impl From<RemoteError> for Refusal {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Access => Refusal::Access,
            RemoteError::Operational => Refusal::Operational,
        }
    }
}

impl Refusal {
    pub(crate) const fn nak(self) -> NakCode {
        match self {
            Refusal::NotReady
            | Refusal::Invalid
            | Refusal::QpRights
            | Refusal::Depth
            | Refusal::Misaligned
            | Refusal::PacketLength
            | Refusal::TooLong
            | Refusal::NoSrq
            | Refusal::Delegated => NakCode::InvalidRequest,
            Refusal::Access | Refusal::Invalidation => NakCode::RemoteAccessError,
            Refusal::Operational | Refusal::BadReceive => NakCode::RemoteOperationalError,
        }
    }

    /// The cause to report.
    pub(crate) const fn cause(self, asked: Asked) -> Cause {
        let why = match self {
            Refusal::QpRights => Refusing::QpRights,
            Refusal::Depth => Refusing::Depth,
            Refusal::Misaligned => Refusing::Misaligned,
            Refusal::PacketLength => Refusing::PacketLength,
            Refusal::TooLong => Refusing::TooLong,
            Refusal::Access => Refusing::Access(asked.access()),
            Refusal::Operational => Refusing::Gone(asked.access()),
            Refusal::Invalidation => Refusing::Invalidation,
            Refusal::BadReceive => Refusing::Receive,
            Refusal::NoSrq => Refusing::NoSrq,
            Refusal::Invalid | Refusal::NotReady | Refusal::Delegated => Refusing::Malformed,
        };
        Cause::Refuses { why, asked }
    }
}
