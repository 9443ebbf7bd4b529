//! Why requests fail and messages are refused, as data: the QP's environment reports it to the program, and gives the reason a
//! number ([`crate::Env::failed`]).

use crate::{QpParams, SendWr};
use core::time::Duration;
use ferroce_types::{RecvWqe, RemoteAccess, WcStatus};
use ferroce_wire::{Headers, Operation};

/// The first error of a QP, or something that it has dropped.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'a, A> {
    /// What is wrong.
    pub cause: Cause,
    /// The QP's attributes.
    pub params: &'a QpParams,
    /// The send request that fails.
    pub request: Option<&'a SendWr<A>>,
    /// Bytes of its message.
    pub len: u32,
    /// The receive that the refused message was to use.
    pub receive: Option<&'a RecvWqe>,
    /// Send requests that are flushed because of it.
    pub flushed: u32,
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The peer has refused the request.
    Refused {
        /// How the request ends.
        status: WcStatus,
        /// The number of the peer's reason; 0: the peer has sent none.
        told: u16,
    },
    /// Nothing has come back for so many local ACK timeouts.
    NoAnswer {
        /// Timeouts.
        tries: u8,
        /// The PSN that the peer expects, which was never sent.
        asked_for: Option<u32>,
        /// The peer has answered an earlier packet.
        answered: bool,
    },
    /// The peer misses a packet again and again, and no local ACK timer counts.
    SequenceErrors,
    /// The peer had no receive, so often.
    NotReady {
        /// RNR NAKs.
        tries: u8,
        /// The code of the peer's RNR NAK timer.
        timer: u8,
        /// As in [`Cause::Refused`].
        told: u16,
    },
    /// The peer has had no receive for so long, and `rnr_retry` is 7: the request waits. Reported once.
    StillNotReady {
        /// Time since the first RNR NAK.
        waited: Duration,
        /// As in [`Cause::Refused`].
        told: u16,
    },
    /// A local key of the request, its rights, its range or the memory is wrong.
    LocalMemory,
    /// A READ or atomic with `max_rd_atomic` 0.
    NoReadDepth,
    /// The result of an atomic has no room of 8 bytes.
    ShortResult,
    /// A READ response that isn't as long as what was asked for.
    BadResponse,
    /// A window wasn't bound, or a key not invalidated.
    Window,
    /// This side refuses a request of the peer.
    Refuses {
        /// Why.
        why: Refusing,
        /// Which request.
        asked: RequestedAccess,
    },
    /// XRC: the process that has the SRQ refuses a request of the peer.
    RefusedElsewhere,
    /// A message finds no receive, and is asked for again.
    NoReceive {
        /// No message has come before it.
        first: bool,
    },
    /// All packets of the peer have PSNs from before the first one expected.
    BeforeFirst {
        /// The last of them.
        psn: u32,
        /// The PSN expected.
        expected: u32,
    },
    /// A datagram with another Q_Key is dropped; reported once.
    QKey {
        /// The datagram's.
        theirs: u32,
        /// The sender's QPN.
        from: u32,
    },
    /// A datagram is dropped, because the receive has no room for GRH and payload; reported once.
    NoRoomForGrh {
        /// Bytes of GRH and payload.
        needs: u64,
    },
    /// A request was posted after the QP had failed; reported once.
    PostedAfter {
        /// The number of the reason for which it has failed.
        reason: u16,
    },
    /// A completion queue has overrun.
    Overrun,
}

/// A peer's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestedAccess {
    /// What the packet is.
    pub operation: Operation,
    /// First byte that is asked for.
    pub va: u64,
    /// Its key.
    pub rkey: u32,
    /// Bytes of the message.
    pub len: u64,
    /// Bytes of the packet.
    pub packet: u64,
}

/// Why a peer's request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusing {
    /// The QP doesn't permit the operation.
    QpRights,
    /// More READs and atomics at once than `max_dest_rd_atomic`.
    Depth,
    /// An atomic on an address that isn't a multiple of 8.
    Misaligned,
    /// The packet is longer than the path MTU, or not the whole one.
    PacketLength,
    /// A wrong order of opcodes, wrong lengths, something unknown.
    Malformed,
    /// The message is longer than the receive.
    TooLong,
    /// Key, protection domain, range or rights.
    Access(RemoteAccess),
    /// The memory behind the key is gone.
    Gone(RemoteAccess),
    /// The memory of the receive is wrong.
    Receive,
    /// The key that a SEND withdraws can't be withdrawn.
    Invalidation,
    /// XRC: the SRQ isn't there.
    NoSrq,
}

impl Cause {
    /// How a send request ends that fails for this.
    #[must_use]
    pub const fn status(&self) -> WcStatus {
        match self {
            Cause::Refused { status, .. } => *status,
            Cause::NoAnswer { .. } | Cause::SequenceErrors => WcStatus::RetryExcErr,
            Cause::NotReady { .. } => WcStatus::RnrRetryExcErr,
            Cause::LocalMemory => WcStatus::LocProtErr,
            Cause::NoReadDepth => WcStatus::LocQpOpErr,
            Cause::ShortResult => WcStatus::LocLenErr,
            Cause::BadResponse => WcStatus::BadRespErr,
            Cause::Window => WcStatus::MwBindErr,
            _ => WcStatus::WrFlushErr,
        }
    }
}

impl RequestedAccess {
    /// What a packet asks for.
    pub fn of(headers: &Headers, payload: usize) -> Self {
        let operation = headers.bth.opcode.operation;
        let of_atomic = headers.atomic.map(|atomic| (atomic.va, atomic.rkey, 8));
        let of_reth = headers.reth.map(|reth| (reth.va, reth.rkey, u64::from(reth.dma_len)));
        let nothing = (0, headers.invalidate_rkey.unwrap_or(0), payload as u64);
        let (va, rkey, len) = of_reth.or(of_atomic).unwrap_or(nothing);
        Self { operation, va, rkey, len, packet: payload as u64 }
    }

    /// What it does to memory.
    pub const fn access(&self) -> RemoteAccess {
        match self.operation {
            Operation::ReadRequest => RemoteAccess::Read,
            Operation::CompareSwap | Operation::FetchAdd => RemoteAccess::Atomic,
            Operation::AtomicWrite => RemoteAccess::Store,
            Operation::Flush => {
                RemoteAccess::Flush(ferroce_types::Placement { global: true, persistent: false })
            }
            _ => RemoteAccess::Write,
        }
    }
}

/// How the peer gets the number of the reason for a NAK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Telling {
    /// Not at all.
    Never,
    /// The NAK carries it as its payload: never on a wire, where an acknowledgement with a payload is malformed.
    WithNak,
    /// A packet of its own carries it right before the NAK. Nothing else comes of that packet.
    BeforeNak,
}
