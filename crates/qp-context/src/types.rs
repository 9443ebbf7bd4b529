//! Work requests, events and parameters: what a caller hands to the transport.

use crate::RateLimit;
use ferroce_types::{Access, BindMw, Placement, QpState, RecvWqe, Sge, SgeList, one_sge};
use ferroce_wire::{Headers, NakCode};
use smallvec::SmallVec;

/// Bytes of the longest message: 2^31 (IBTA 9.7).
pub const MAX_MESSAGE: u64 = 1 << 31;

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
    /// Has earlier writes reach `placement` (annex A19): those to `len` bytes at `va`, or to the whole region.
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
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate { .. } | Self::BindMw(_))
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
    /// Becomes a copy of `data`. A list of one element, as most are, is written where the last one lay.
    #[inline(always)]
    pub fn set(&mut self, data: DataRef<'_>) {
        match (self, data) {
            (Self::Sges(list), DataRef::Sges(&[sge])) => {
                list.clear();
                list.push(sge);
            }
            (place, data) => *place = data.to_data(),
        }
    }

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

impl<A> SendRequest<'_, A> {
    /// The element that the answer goes to, if it is a READ or an atomic that may take the short way.
    #[must_use]
    #[inline]
    pub fn fetches_to(&self) -> Option<&Sge> {
        match (self.op, self.data) {
            (
                SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. },
                DataRef::Sges([sge]),
            ) => Some(sge),
            _ => None,
        }
    }

    /// It is a SEND that may take the short way: of one element of memory or inline.
    #[must_use]
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        matches!(self.op, SendOp::Send | SendOp::SendWithImmediate { .. }) && !self.fence && self.is_single()
    }

    /// Its data are inline, or one element of memory.
    #[must_use]
    #[inline]
    pub fn is_single(&self) -> bool {
        matches!(self.data, DataRef::Sges([_]) | DataRef::Inline(_))
    }

    /// Whether it reads, and address and key at the peer, if it is an RDMA WRITE or READ that may take the short way.
    #[must_use]
    #[inline(always)]
    pub fn one_sided(&self) -> Option<(bool, u64, u32)> {
        match (self.op, self.data) {
            (SendOp::Write { va, rkey }, DataRef::Sges([_]) | DataRef::Inline(_)) => Some((false, va, rkey)),
            (SendOp::Read { va, rkey }, DataRef::Sges([_])) => Some((true, va, rkey)),
            _ => None,
        }
    }
}

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

/// Whose an SRQ is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SrqPlace {
    /// This process's: the environment executes what is asked for.
    Here,
    /// Another process's, to which requests are given ([`crate::Env::delegate`]).
    OtherProcess,
    /// The target's domain has no such SRQ.
    Nowhere,
}

/// What became of a request that another process has executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Executed {
    /// It is done; the original value if it was an atomic.
    Done {
        /// In host byte order.
        original: u64,
    },
    /// No receive is posted.
    NotReady,
    /// The other process refuses it.
    Refused(NakCode),
}

/// Why a request couldn't be given to another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DelegateError {
    /// There is no room just now: the packet is as good as lost.
    Full,
    /// That process can't be reached any more.
    Gone,
}

/// What a message to a tag-matching SRQ has got.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The tag's buffer, or a receive work request.
    pub receive: RecvWqe,
    /// It is a tag's.
    pub matched: bool,
    /// The program should report how many unexpected messages it has handled.
    pub sync_required: bool,
}

/// The header of a message that has matched, as its completion reports it (`struct ibv_wc_tm_info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TagInfo {
    /// The message's tag.
    pub tag: u64,
    /// The sender's own number.
    pub app_ctx: u32,
}

/// A packet that waits for those before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptPacket {
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: Box<[u8]>,
}
