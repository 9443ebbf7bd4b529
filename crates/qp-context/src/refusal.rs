//! Why a request is refused, and the NAK for it.

use crate::{Cause, PlaceError, Refusing, RequestedAccess};
use ferroce_types::RemoteError;
use ferroce_wire::NakCode;

/// Why a request isn't executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakReason {
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

impl From<PlaceError> for NakReason {
    fn from(PlaceError: PlaceError) -> Self {
        NakReason::BadReceive
    }
}

impl From<RemoteError> for NakReason {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Access => NakReason::Access,
            RemoteError::Operational => NakReason::Operational,
        }
    }
}

impl NakReason {
    /// The reason that a NAK with this code stands for.
    #[must_use]
    pub const fn of(code: NakCode) -> Self {
        match code {
            NakCode::RemoteAccessError => NakReason::Access,
            NakCode::RemoteOperationalError => NakReason::Operational,
            _ => NakReason::Invalid,
        }
    }

    /// The code of the NAK.
    pub const fn nak(self) -> NakCode {
        match self {
            NakReason::NotReady
            | NakReason::Invalid
            | NakReason::QpRights
            | NakReason::Depth
            | NakReason::Misaligned
            | NakReason::PacketLength
            | NakReason::TooLong
            | NakReason::NoSrq
            | NakReason::Delegated => NakCode::InvalidRequest,
            NakReason::Access | NakReason::Invalidation => NakCode::RemoteAccessError,
            NakReason::Operational | NakReason::BadReceive => NakCode::RemoteOperationalError,
        }
    }

    /// The cause to report.
    pub const fn cause(self, asked: RequestedAccess) -> Cause {
        let why = match self {
            NakReason::QpRights => Refusing::QpRights,
            NakReason::Depth => Refusing::Depth,
            NakReason::Misaligned => Refusing::Misaligned,
            NakReason::PacketLength => Refusing::PacketLength,
            NakReason::TooLong => Refusing::TooLong,
            NakReason::Access => Refusing::Access(asked.access()),
            NakReason::Operational => Refusing::Gone(asked.access()),
            NakReason::Invalidation => Refusing::Invalidation,
            NakReason::BadReceive => Refusing::Receive,
            NakReason::NoSrq => Refusing::NoSrq,
            NakReason::Invalid | NakReason::NotReady | NakReason::Delegated => Refusing::Malformed,
        };
        Cause::Refuses { why, asked }
    }
}
