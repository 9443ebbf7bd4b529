//! Why requests fail and messages are refused, as data: whoever surrounds the QP tells the program, and gives the reason a
//! number ([`crate::Env::failed`]).

use crate::{Env, Payload, PayloadSource, Qp, QpParams, SendWr};
use core::time::Duration;
use ferroce_types::{Instant, QpState, RecvWqe, RemoteAccess, WcStatus};
use ferroce_wire::{Headers, Operation};

/// Packets from before the first PSN until that is told.
const STRANGERS_TOLD: u8 = 3;
/// How long a request waits for a receive of the peer before that is reported.
const NOT_READY_TOLD: Duration = Duration::from_secs(3);

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
        /// The number that the peer has given the reason; 0: it says none.
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
        asked: Asked,
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
    /// A datagram with another Q_Key is dropped; told once.
    QKey {
        /// The datagram's.
        theirs: u32,
        /// The QPN of who has sent it.
        from: u32,
    },
    /// A datagram is dropped, because the receive has no room for GRH and payload; told once.
    NoRoomForGrh {
        /// Bytes of GRH and payload.
        needs: u64,
    },
    /// A request was posted after the QP had failed; told once.
    PostedAfter {
        /// The number of the reason for which it has failed.
        reason: u16,
    },
    /// A completion queue has overrun.
    Overrun,
}

/// A peer's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
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

impl Asked {
    /// What a packet asks for.
    pub(crate) fn of(headers: &Headers, payload: usize) -> Self {
        let operation = headers.bth.opcode.operation;
        let of_atomic = headers.atomic.map(|atomic| (atomic.va, atomic.rkey, 8));
        let of_reth = headers.reth.map(|reth| (reth.va, reth.rkey, u64::from(reth.dma_len)));
        let nothing = (0, headers.invalidate_rkey.unwrap_or(0), payload as u64);
        let (va, rkey, len) = of_reth.or(of_atomic).unwrap_or(nothing);
        Self { operation, va, rkey, len, packet: payload as u64 }
    }

    /// What it does to memory.
    pub(crate) const fn access(&self) -> RemoteAccess {
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

/// How the peer learns the number of the reason for a NAK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Telling {
    /// Not at all.
    Never,
    /// The NAK carries it as its payload: never on a wire, where an acknowledgement with a payload is malformed.
    WithNak,
    /// A packet of its own carries it right before the NAK. Nothing else comes of that packet.
    BeforeNak,
}

/// Bytes of the payload of a packet that comes before a NAK: the number, and zeros. A NAK itself carries two bytes, or none.
const BEFORE_NAK: usize = 4;

/// The payload of an acknowledgement with the number of a reason that its fabric lets it carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Now(u16),
    Ahead(u16),
}

fn told(payload: &impl Payload) -> Told {
    let mut bytes = [0; 2];
    let number = match payload.len() {
        0 | 1 => 0,
        _ => payload.copy_first(&mut bytes).map_or(0, |()| u16::from_le_bytes(bytes)),
    };
    if payload.len() == BEFORE_NAK { Told::Ahead(number) } else { Told::Now(number) }
}

impl<A: Clone> Qp<A> {
    /// The number that the peer has told of the reason for the NAK with this PSN; 0: none. `None`: the packet is no NAK, but has
    /// the number for the one that follows.
    #[cold]
    pub(crate) fn told(&mut self, psn: u64, payload: &impl Payload) -> Option<u16> {
        match told(payload) {
            Told::Ahead(number) => {
                self.req.told_ahead = Some((psn, number));
                None
            }
            Told::Now(0) => {
                Some(self.req.told_ahead.filter(|&(of, _)| of == psn).map_or(0, |(_, number)| number))
            }
            Told::Now(number) => Some(number),
        }
    }

    /// Sends a NAK, and the number of its reason if there is one; false: not now.
    #[cold]
    pub(crate) fn send_nak<E: Env<Address = A>>(&self, nak: &Headers, reason: u16, env: &mut E) -> bool {
        let mut bytes = [0; BEFORE_NAK];
        bytes[..2].copy_from_slice(&reason.to_le_bytes());
        let source = match env.telling() {
            Telling::WithNak if reason != 0 => PayloadSource::Bytes(&bytes[..2]),
            Telling::BeforeNak if reason != 0 => {
                if env.transmit(nak, PayloadSource::Bytes(&bytes), None).is_err() {
                    return false;
                }
                PayloadSource::None
            }
            _ => PayloadSource::None,
        };
        env.transmit(nak, source, None).is_ok()
    }

    /// The number of the reason for which the QP has failed; 0 if it hasn't, or because the program wants it.
    #[must_use]
    pub const fn reason(&self) -> u16 {
        self.reason
    }

    /// Tells why the QP is about to fail. The send requests that there are, but for the `ended` first, are flushed.
    #[cold]
    pub(crate) fn note_failure<E: Env<Address = A>>(&mut self, cause: Cause, ended: bool, env: &mut E) {
        let front = self.sq.front().filter(|_| ended);
        let failure = Failure {
            cause,
            params: &self.params,
            request: front.map(|wqe| &wqe.wr),
            len: front.map_or(0, |wqe| wqe.len),
            receive: self.resp.held.as_ref(),
            flushed: self.sq.len() - u32::from(front.is_some()),
        };
        self.reason = env.failed(&failure);
    }

    /// A completion queue has no room for what the QP has to tell: the caller takes it to ERR.
    pub fn note_overrun<E: Env<Address = A>>(&mut self, env: &mut E) {
        if !matches!(self.state, QpState::Reset | QpState::Err) {
            self.note_failure(Cause::Overrun, false, env);
        }
    }

    /// Tells of something that doesn't end the QP. Returns the number of the reason.
    #[cold]
    pub(crate) fn remark<E: Env<Address = A>>(&self, cause: Cause, env: &mut E) -> u16 {
        let params = &self.params;
        env.failed(&Failure { cause, params, request: None, len: 0, receive: None, flushed: 0 })
    }

    /// Requests are flushed that were posted after the QP had failed.
    #[cold]
    pub(crate) fn remark_posted_after<E: Env<Address = A>>(&mut self, env: &mut E) {
        if self.reason != 0 && !self.told_posted_after {
            self.told_posted_after = true;
            self.remark_front(Cause::PostedAfter { reason: self.reason }, self.sq.len(), env);
        }
    }

    /// Reports something about the oldest send request that doesn't end the QP.
    #[cold]
    fn remark_front<E: Env<Address = A>>(&self, cause: Cause, flushed: u32, env: &mut E) {
        let front = self.sq.front();
        env.failed(&Failure {
            cause,
            params: &self.params,
            request: front.map(|wqe| &wqe.wr),
            len: front.map_or(0, |wqe| wqe.len),
            receive: None,
            flushed,
        });
    }

    /// The peer has no receive for the oldest packet. A wait without limit is reported once.
    #[cold]
    pub(crate) fn note_not_ready<E: Env<Address = A>>(&mut self, now: Instant, told: u16, env: &mut E) {
        let waited = now.since(*self.req.not_ready_since.get_or_insert(now));
        if waited >= NOT_READY_TOLD && self.params.rnr_retry == 7 && !self.req.told_not_ready {
            self.req.told_not_ready = true;
            self.remark_front(Cause::StillNotReady { waited, told }, 0, env);
        }
    }

    /// A packet has come from before the first PSN, and none that was executed.
    #[cold]
    pub(crate) fn remark_stranger<E: Env<Address = A>>(&mut self, psn: u32, env: &mut E) {
        self.resp.strangers = self.resp.strangers.saturating_add(1);
        if self.resp.strangers == STRANGERS_TOLD {
            self.remark(Cause::BeforeFirst { psn, expected: self.resp.expected_psn() }, env);
        }
    }

    /// The reason that a completion with this status has.
    #[inline]
    pub(crate) fn reason_of(&self, status: WcStatus) -> u16 {
        if matches!(status, WcStatus::Success) { 0 } else { self.reason }
    }
}
