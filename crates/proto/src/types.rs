//! Work requests, completions, states and parameters: the vocabulary between the transport and its caller.

use crate::{RateLimit, TagFlags};
use ferroce_wire::{Opcode, Operation};
use smallvec::SmallVec;

/// A scatter/gather element: `length` bytes at `addr` of the memory region with local key `lkey`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// Address in the region's address space.
    pub addr: u64,
    /// Bytes. (The C ABI's "0 means 2 GiB" is resolved by the caller.)
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

/// The elements of one work request.
pub type SgeList = SmallVec<[Sge; 2]>;

/// A list of one element, as most are.
#[must_use]
#[inline]
pub fn one_sge(sge: Sge) -> SgeList {
    SgeList::from_buf_and_len([sge; 2], 1)
}

/// What a send work request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are those of ibv_post_send(3)
pub enum SendOp {
    Send,
    SendWithImmediate {
        immediate: [u8; 4],
    },
    SendWithInvalidate {
        rkey: u32,
    },
    Write {
        va: u64,
        rkey: u32,
    },
    WriteWithImmediate {
        va: u64,
        rkey: u32,
        immediate: [u8; 4],
    },
    Read {
        va: u64,
        rkey: u32,
    },
    CompareSwap {
        va: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        va: u64,
        rkey: u32,
        add: u64,
    },
    /// Writes 8 aligned bytes at once (annex A19).
    AtomicWrite {
        va: u64,
        rkey: u32,
    },
    /// Has what was written before placed where `placement` says (annex A19): `len` bytes at `va`, or the whole region.
    Flush {
        va: u64,
        rkey: u32,
        len: u32,
        placement: Placement,
        whole_region: bool,
    },
    /// Invalidates an rkey of this host; nothing goes out.
    LocalInvalidate {
        rkey: u32,
    },
    /// Binds a memory window of this host; nothing goes out.
    BindMw(BindMw),
}

impl SendOp {
    /// Carried out here, without a packet.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate { .. } | Self::BindMw(_))
    }
}

/// What binding a memory window asks for (IBTA 10.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BindMw {
    /// The environment's number of the window.
    pub window: u64,
    /// The window's key from then on.
    pub rkey: u32,
    /// Local key of the region.
    pub lkey: u32,
    /// First byte, in the region's address space.
    pub va: u64,
    /// Bytes; 0 unbinds.
    pub length: u64,
    /// Rights of the peer.
    pub access: Access,
    /// Addresses in RETHs count from the window's first byte.
    pub zero_based: bool,
}

/// Where a flush has data placed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Placement {
    /// All of the responder's system sees it.
    pub global: bool,
    /// It outlives a loss of power.
    pub persistent: bool,
}

impl Placement {
    /// The bits of a FETH.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.global as u8 | (self.persistent as u8) << 1
    }

    /// From the bits of a FETH; `None` for none at all and unknown ones.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            1..=3 => Some(Self { global: bits & 1 != 0, persistent: bits & 2 != 0 }),
            _ => None,
        }
    }

    /// Nothing is asked that isn't allowed.
    #[must_use]
    pub const fn is_within(self, allowed: Self) -> bool {
        self.bits() & !allowed.bits() == 0
    }
}

/// Where a send work request's payload is (for READ and atomics: where the result goes).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Data {
    /// In registered memory.
    Sges(SgeList),
    /// Copied when the request was posted (IBV_SEND_INLINE).
    Inline(SmallVec<[u8; 32]>),
}

impl Data {
    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.as_ref().len()
    }

    /// No byte at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same data, where they lie.
    #[must_use]
    #[inline]
    pub fn as_ref(&self) -> DataRef<'_> {
        match self {
            Data::Sges(sges) => DataRef::Sges(sges),
            Data::Inline(bytes) => DataRef::Inline(bytes),
        }
    }
}

/// The data of a send work request that is being posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataRef<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// These bytes, which the request keeps (IBV_SEND_INLINE).
    Inline(&'a [u8]),
}

impl DataRef<'_> {
    /// Bytes in all.
    #[must_use]
    #[inline(always)]
    pub fn len(&self) -> u64 {
        match self {
            Self::Sges([sge]) => u64::from(sge.length),
            Self::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// No byte at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy to keep.
    #[must_use]
    #[inline(always)]
    pub fn to_data(self) -> Data {
        match self {
            Self::Sges(&[sge]) => Data::Sges(one_sge(sge)),
            Self::Sges(sges) => Data::Sges(sges.into()),
            Self::Inline(bytes) => Data::Inline(bytes.into()),
        }
    }
}

/// Where a UD work request goes. `A` is the caller's address handle.
#[derive(Clone, Debug)]
pub struct UdTarget<A> {
    /// Address handle, given back to [`crate::Env::transmit`].
    pub address: A,
    /// Destination QPN.
    pub qpn: u32,
    /// Q_Key of the request. The top bit set means "use the QP's own" (IBTA 10.2.5).
    pub qkey: u32,
}

/// A send work request that is being posted. Its fields are those of [`SendWr`].
#[derive(Debug)]
#[allow(missing_docs)]
pub struct SendRequest<'a, A> {
    pub wr_id: u64,
    pub op: SendOp,
    pub data: DataRef<'a>,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
    pub ud: Option<&'a UdTarget<A>>,
    pub remote_srqn: u32,
}

impl<A> Clone for SendRequest<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for SendRequest<'_, A> {}

impl<A> SendWr<A> {
    /// The request, to be posted.
    #[must_use]
    pub fn request(&self) -> SendRequest<'_, A> {
        let &Self { wr_id, op, ref data, signaled, solicited, fence, ref ud, remote_srqn } = self;
        let (data, ud) = (data.as_ref(), ud.as_ref());
        SendRequest { wr_id, op, data, signaled, solicited, fence, ud, remote_srqn }
    }
}

/// A send work request in a send queue.
#[derive(Clone, Debug)]
pub struct SendWr<A> {
    /// The program's number, given back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// With which bytes.
    pub data: Data,
    /// A success is reported too. (Errors always are.)
    pub signaled: bool,
    /// The receiver's completion raises a solicited event.
    pub solicited: bool,
    /// Starts only when all earlier READs and atomics of the queue have finished (IBTA 10.8.3.3).
    pub fence: bool,
    /// UD only.
    pub ud: Option<UdTarget<A>>,
    /// XRC only: the number of the peer's SRQ.
    pub remote_srqn: u32,
}

/// A receive work request taken from an RQ or SRQ.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RecvWqe {
    /// The program's number.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: SgeList,
}

impl RecvWqe {
    /// Bytes that fit.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|s| u64::from(s.length)).sum()
    }
}

/// Completion status; discriminants are those of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // ibv_poll_cq(3)
pub enum WcStatus {
    #[default]
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    InvEecnErr = 17,
    InvEecStateErr = 18,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
    TmErr = 22,
    TmRndvIncomplete = 23,
}

/// Completion opcode; discriminants are those of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // ibv_poll_cq(3)
pub enum WcOpcode {
    #[default]
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Tso = 7,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
    TmAdd = 130,
    TmDel = 131,
    TmSync = 132,
    TmRecv = 133,
    TmNoTag = 134,
}

/// A work completion.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Completion {
    /// The work request's number.
    pub wr_id: u64,
    /// How it went.
    pub status: WcStatus,
    /// What it was. (Undefined to programs when `status` isn't success; always set here.)
    pub opcode: WcOpcode,
    /// Bytes received (receives; with the 40 bytes of GRH on UD), read (READ) or 8 (atomics).
    pub byte_len: u32,
    /// Immediate data of a receive.
    pub immediate: Option<[u8; 4]>,
    /// The rkey that a SEND with invalidate invalidated here.
    pub invalidated_rkey: Option<u32>,
    /// Source QPN (UD), else the connected QP's.
    pub src_qp: u32,
    /// A GRH precedes the payload (UD).
    pub grh: bool,
    /// The sender asked for a solicited event (receives).
    pub solicited: bool,
    /// Of a tag-matching SRQ.
    pub tags: TagFlags,
    /// The number of the reason for an error ([`crate::Env::failed`]); 0 for none.
    pub reason: u16,
}

impl Completion {
    /// One that says no more than this: without bytes, peer and reason.
    #[must_use]
    pub fn new(wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Self {
        Self { wr_id, status, opcode, ..Self::default() }
    }
}

/// State of a queue pair; discriminants are those of `enum ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // ibv_modify_qp(3)
pub enum QpState {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}

impl QpState {
    /// As the specification writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        }
    }
}

impl core::fmt::Display for QpState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// Asynchronous event of one QP (ibv_get_async_event(3)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names are the man page's
pub enum QpEvent {
    Fatal,
    RequestError,
    AccessError,
    CommunicationEstablished,
    SqDrained,
    /// Only of QPs with an SRQ.
    LastWqeReached,
}

/// What the responder allows (IBV_ACCESS_REMOTE_* of the QP).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Access {
    pub remote_write: bool,
    pub remote_read: bool,
    pub remote_atomic: bool,
    pub flush: Placement,
}

impl Access {
    /// All rights.
    pub const ALL: Self = Self {
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        flush: Placement { global: true, persistent: true },
    };

    /// Whether a request is allowed that another process executes.
    pub(crate) const fn allows(self, opcode: Opcode) -> bool {
        match opcode.operation {
            Operation::AtomicWrite => self.remote_write,
            _ if opcode.is_write() => self.remote_write,
            _ if opcode.is_atomic() => self.remote_atomic,
            _ => true,
        }
    }
}

/// Everything that `ibv_modify_qp` sets and the transport uses. Plain numbers; the caller has validated them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpParams {
    /// Rights of the peer.
    pub access: Access,
    /// Partition key put into packets, and asked of them.
    pub pkey: u16,
    /// UD: Q_Key asked of packets.
    pub qkey: u32,
    /// Peer's QPN (RC, XRC, UC).
    pub dest_qpn: u32,
    /// Bytes of payload a packet may carry. On a lossless fabric that may be more than any path MTU.
    pub path_mtu: u32,
    /// Path MTU that the program has set. It differs from `path_mtu` on a lossless fabric only: what is longer would be
    /// several packets on a wire.
    pub wire_mtu: u32,
    /// First PSN expected.
    pub rq_psn: u32,
    /// First PSN sent.
    pub sq_psn: u32,
    /// READs and atomics the responder keeps at once.
    pub max_dest_rd_atomic: u8,
    /// READs and atomics the requester may have outstanding.
    pub max_rd_atomic: u8,
    /// RNR NAK timer code asked of the requester, 0 to 31 (IBTA table 45).
    pub min_rnr_timer: u8,
    /// Local ACK timeout: 4.096 µs × 2^timeout; 0 is never. Below [`crate::LEAST_ACK_TIMEOUT`] that one counts.
    pub timeout: u8,
    /// Retries after a timeout or a sequence NAK, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 0 to 6; 7 is for ever.
    pub rnr_retry: u8,
    /// The fabric loses nothing: no send window, no path MTU. Timers still run (a QP that doesn't exist answers nothing).
    pub lossless: bool,
    /// The QP receives from an SRQ (decides on LastWqeReached). An XRC QP that does is a target, else an initiator.
    pub srq: bool,
    /// That SRQ matches tags (RC).
    pub tags: bool,
    /// What requests and READ responses may take.
    pub rate: Option<RateLimit>,
}

impl Default for QpParams {
    fn default() -> Self {
        Self {
            access: Access::default(),
            pkey: 0xffff,
            qkey: 0,
            dest_qpn: 0,
            path_mtu: 1024,
            wire_mtu: u32::MAX,
            rq_psn: 0,
            sq_psn: 0,
            max_dest_rd_atomic: 0,
            max_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            lossless: false,
            srq: false,
            tags: false,
            rate: None,
        }
    }
}

/// Why a work request wasn't taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PostError {
    /// The send queue is full: ENOMEM.
    QueueFull,
    /// The QP's state doesn't take send requests (RESET, INIT, RTR): EINVAL.
    State(QpState),
    /// The operation doesn't exist on this service: EINVAL.
    Operation,
    /// The message is longer than the service carries: EINVAL.
    Length {
        /// Bytes of the message.
        len: u64,
        /// Bytes of the longest one.
        most: u64,
    },
}

/// What an atomic does to the 8 bytes, in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum AtomicOp {
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// An atomic write, which needs the right to write.
    Store {
        value: u64,
    },
}
