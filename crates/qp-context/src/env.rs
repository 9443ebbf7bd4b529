//! What the transport needs of the world around one queue pair.

use crate::{DelegateError, Failure, KeptPacket, QpEvent, SendWr, SrqPlace, TagInfo, Taken, Telling};
use ferroce_types::{
    AtomicOp, BindMw, Completion, Instant, Placement, RecvWqe, RemoteAccess, RemoteError, Sge, WcStatus,
};
use ferroce_wire::{Headers, Tmh};

/// The payload of an incoming packet, however the fabric holds it.
pub trait Payload {
    /// Bytes, without padding.
    fn len(&self) -> usize;
    /// No byte at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies all of it.
    ///
    /// # Errors
    /// When `to` isn't as long as it is.
    fn copy(&self, to: &mut [u8]) -> Result<(), PlaceError>;
    /// Copies its first bytes.
    ///
    /// # Errors
    /// When `to` is longer than it is.
    fn copy_first(&self, to: &mut [u8]) -> Result<(), PlaceError>;
    /// A copy has found that the bytes aren't there any more: the packet counts as lost.
    fn is_lost(&self) -> bool {
        false
    }
}

impl Payload for &[u8] {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn copy(&self, to: &mut [u8]) -> Result<(), PlaceError> {
        let whole = to.len() == self.len();
        whole.then(|| to.copy_from_slice(self)).ok_or(PlaceError)
    }

    fn copy_first(&self, to: &mut [u8]) -> Result<(), PlaceError> {
        let first = self.get(..to.len()).ok_or(PlaceError)?;
        to.copy_from_slice(first);
        Ok(())
    }
}

/// Where the payload of an outgoing packet is.
#[derive(Clone, Copy, Debug)]
pub enum PayloadSource<'a> {
    /// The packet has none.
    None,
    /// These bytes.
    Bytes(&'a [u8]),
    /// `len` bytes from `offset` of the message that `sges` describe (local keys).
    Local {
        /// The whole message's elements.
        sges: &'a [Sge],
        /// Bytes of the message before this packet.
        offset: u64,
        /// Bytes of this packet.
        len: u32,
    },
    /// `len` bytes at `va` of the region with this remote key: a READ response.
    Remote {
        /// Remote key of the request.
        rkey: u32,
        /// First byte of this packet.
        va: u64,
        /// Bytes of this packet.
        len: u32,
    },
}

/// Why a packet wasn't taken by [`Env::transmit`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TransmitError {
    /// Not now; the caller calls `QpProtocol::transmit` again when there is room. Nothing has changed, and nothing
    /// else is offered in this call but, from `QpProtocol::transmit`, requests after a blocked answer.
    Blocked,
    /// As [`TransmitError::Blocked`]: this side's memory isn't there now. Requests that wait for it use up no retry.
    AwaitsMemory,
    /// Not before this time ([`crate::Pace`]), which `QpProtocol::next_timeout` returns; the packet is offered again then. For
    /// requests of UC and UD only.
    Later(Instant),
    /// A local key, its rights, its range or the memory behind it is wrong: LOC_PROT_ERR.
    Local,
    /// The same of a remote key in [`PayloadSource::Remote`]: the READ is answered with a NAK.
    Remote(RemoteError),
}

/// A packet with a wrong key, counted by the port (the counters of IBTA's PortInfo).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Violation {
    /// Another P_Key than the QP's partition.
    PKey,
    /// Another Q_Key than the UD QP's.
    QKey,
}

/// What became of a message of one packet that takes a receive.
#[derive(Debug)]
pub enum ReceivedWhole {
    /// It lies in the receive with this number.
    Placed(u64),
    /// There is no receive.
    NoReceive,
    /// It doesn't fit into this receive, which is gone from its queue, or can't be placed there.
    Refused(RecvWqe),
}

/// Why [`Env::next_recv_for`] takes no receive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NoReceive {
    /// None is posted.
    Empty,
    /// The next one is too small.
    TooSmall,
}

/// Whose the elements are that a payload is placed into: it decides on the protection domain that their keys are of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Buffer {
    /// A receive's: the domain is that of the queue that the receive came out of.
    Receive,
    /// A send request's, which takes what it asked for: the domain is the QP's.
    Request,
}

/// Memory that a packet's payload goes to, or that an atomic changes.
#[derive(Clone, Copy, Debug)]
pub enum NeededMemory<'a> {
    /// None, or that isn't known: the packet isn't the next one, or is refused.
    Nothing,
    /// The next receive.
    NextReceive,
    /// Memory of a receive or of a request, from this byte of its elements on.
    Local(Buffer, &'a [Sge], u64),
    /// Memory that the peer reaches, from here to the end of its message.
    Remote {
        /// Key.
        rkey: u32,
        /// Address.
        va: u64,
        /// Bytes.
        len: u64,
        /// What the peer does.
        access: RemoteAccess,
    },
}

/// What [`Env::look`] has found.
#[derive(Debug)]
pub struct LookedAt {
    /// The memory is there, as far as is known.
    pub is_there: bool,
    /// The receive that was looked at, if it is of a shared receive queue. It has been taken: another QP would take it before the packet is executed.
    pub receive: Option<RecvWqe>,
}

impl LookedAt {
    /// All memory counts as there.
    pub const THERE: Self = Self { is_there: true, receive: None };
}

/// A payload wasn't written to its destination, because a local key, its rights, its range or the memory is wrong: LOC_PROT_ERR.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PlaceError;

/// The oldest unacknowledged packet, and when requests were last sent again from the oldest one on. It changes when an answer
/// acknowledges packets, or has them sent again, and after a timeout.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Unanswered {
    /// The oldest PSN.
    pub una: u64,
    /// Where and when the requester went back last.
    pub went_back: Option<(u64, Instant)>,
}

/// What send requests that end are given to.
pub trait SendEnds {
    /// A UD address handle.
    type Address: Clone;

    /// A send request ended, whether it is signaled or not.
    fn retire(&mut self, _wr: &SendWr<Self::Address>, _status: WcStatus) {}
    /// The completion of the request that was retired last: it is signaled, or has failed.
    fn complete_send(&mut self, completion: Completion);
}

/// The surroundings of one QP: its memory, receive queue, completion queues and fabric.
///
/// Every method is called with the QP borrowed; none of them may call back into it.
pub trait Env: SendEnds {
    /// A packet's payload.
    type Payload<'p>: Payload;

    /// Takes one packet. `bth.pad` is zero and is filled in by the fabric that needs it. `to` is the address of a UD
    /// request, `None` for a connected QP (whose address the environment knows).
    ///
    /// # Errors
    /// See [`TransmitError`]; the packet has not left then.
    fn transmit(
        &mut self,
        headers: &Headers,
        source: PayloadSource<'_>,
        to: Option<&Self::Address>,
    ) -> Result<(), TransmitError>;

    /// Carries out bytes from `offset` on of an RDMA WRITE or READ against the memory of QP `peer` without that QP, at
    /// most `max` of them, and returns how many; `None` when it can't (now) or may not: packets then do it from the
    /// beginning, and find out why. `buffer` is whose the elements here are. Asked only while nothing else of this QP is
    /// under way, and not before the peer has answered a packet: only then do both agree on PSNs.
    ///
    /// # Errors
    /// [`TransmitError::AwaitsMemory`]: nothing is sent before.
    fn execute_directly(
        &mut self,
        _peer: u32,
        _wr: &SendWr<Self::Address>,
        _buffer: Buffer,
        _offset: u64,
        _max: u32,
    ) -> Result<Option<u32>, TransmitError> {
        Ok(None)
    }

    /// Whether a one-sided request had better wait until everything before it is answered, and then be asked for by
    /// [`Env::execute_directly`]: the peer takes long to look at packets now, or bytes are there sooner without them. Asked only
    /// while nothing but one-sided requests is to be answered.
    fn prefers_to_execute(&self, _wr: &SendWr<Self::Address>) -> bool {
        false
    }

    /// Whether an answer to the oldest unacknowledged packet, or to one after it, may still come from QP `peer`, which is known to live: the
    /// peer hasn't processed the request, or hasn't sent the answer, or this process hasn't read the answer. The ACK timer is then started
    /// again, and no retry is used.
    fn answer_may_come(&mut self, _peer: u32, _oldest: Unanswered) -> bool {
        false
    }

    /// Whether packets with data leave marked as ECN-capable. If they don't, no router can have marked one, and any congestion
    /// notification is forged.
    fn is_ecn_capable(&self) -> bool;

    /// Upper bound, in bytes, on what this QP may have in flight now: its share of what the peer's socket can hold. Asked
    /// of RC and XRC on fabrics that lose packets, once per `QpProtocol::transmit`; it also bounds READ responses on their way
    /// here. One packet may always go, whatever the window.
    fn window(&self) -> u32;

    /// An XRC target: what the transport asks for from here on concerns the SRQ with this number and its protection domain
    /// (annex A14).
    fn select_srq(&mut self, srqn: u32) -> SrqPlace;

    /// Delegates a request of a run to the process that has the selected SRQ, which executes requests in their order
    /// (`QpProtocol::execute_for`). The results go to `QpProtocol::executed` in the same order.
    ///
    /// # Errors
    /// See [`DelegateError`]; the request wasn't delegated then.
    fn delegate(
        &mut self,
        _headers: &Headers,
        _payload: &Self::Payload<'_>,
        _run: u32,
    ) -> Result<(), DelegateError> {
        Err(DelegateError::Gone)
    }

    /// Keeps a packet until those before it have come, by its number. False: it is dropped, because the peer isn't known to understand the
    /// report of what is kept, or because too much is kept already. At most 2047 packets of a QP are kept at once
    /// ([`crate::KeptPackets`]).
    fn keep(&mut self, _number: u64, _headers: &Headers, _payload: &Self::Payload<'_>) -> bool {
        false
    }

    /// Gives the kept packet with this number back. `None`: it isn't the peer's whose packet is handled, and nothing that is kept is.
    fn take_kept(&mut self, _number: u64) -> Option<KeptPacket> {
        None
    }

    /// Drops all packets that are kept.
    fn forget_kept(&mut self) {}

    /// Looks whether the first `len` bytes of the memory that a packet needs are there. If they aren't, the caller doesn't execute the packet now.
    fn look(&mut self, _needed: &NeededMemory<'_>, _len: usize) -> LookedAt {
        LookedAt::THERE
    }

    /// Packets that were kept come again when the memory is there that [`Env::look`] has missed, before all that has come meanwhile.
    fn await_memory_of_kept(&mut self, _packets: Vec<KeptPacket>) {}

    /// The payload of a packet that was kept.
    fn payload_of(bytes: &[u8]) -> Self::Payload<'_>;

    /// Takes the next receive work request from the RQ or SRQ. It is gone from there: the transport completes it, or
    /// (UC) keeps it for the next message.
    fn next_recv(&mut self) -> Option<RecvWqe>;

    /// Takes the next receive work request for a message of one packet (RC), and places the payload there.
    fn receive_whole(&mut self, payload: &Self::Payload<'_>) -> ReceivedWhole {
        let Some(receive) = self.next_recv() else { return ReceivedWhole::NoReceive };
        let fits = payload.len() as u64 <= receive.capacity();
        let mut place = || self.place(Buffer::Receive, &receive.sges, 0, payload, 0);
        if fits && (payload.is_empty() || place().is_ok()) {
            ReceivedWhole::Placed(receive.wr_id)
        } else {
            ReceivedWhole::Refused(receive)
        }
    }

    /// As [`Env::next_recv`], but a receive with room for less than `len` bytes stays where it is.
    ///
    /// # Errors
    /// Why none was taken.
    fn next_recv_for(&mut self, len: u64) -> Result<RecvWqe, NoReceive>;
    /// Completes every receive work request left in the QP's own RQ with a flush error (does nothing with an SRQ).
    fn flush_recv_queue(&mut self);

    /// Takes what a message with this header goes to: of a tag-matching SRQ the buffer of the first tag that matches, or
    /// a receive work request.
    fn next_tagged(&mut self, _header: &Tmh) -> Option<Taken> {
        None
    }

    /// Writes a payload, but for its first `skip` bytes, at `offset` of the message buffer that `sges` describe.
    ///
    /// # Errors
    /// See [`PlaceError`].
    fn place(
        &mut self,
        buffer: Buffer,
        sges: &[Sge],
        offset: u64,
        payload: &Self::Payload<'_>,
        skip: usize,
    ) -> Result<(), PlaceError>;
    /// Writes these bytes likewise into a send request's buffer (atomic results, in host byte order).
    ///
    /// # Errors
    /// `Err(())`: as [`PlaceError`].
    #[allow(clippy::result_unit_err)]
    fn place_bytes(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), ()>;
    /// Writes the 40 bytes of GRH of the packet at hand to the start of a UD receive. False: the packet has none, and the
    /// bytes are left as they are.
    ///
    /// # Errors
    /// As [`Env::place_bytes`].
    #[allow(clippy::result_unit_err)]
    fn place_grh(&mut self, sges: &[Sge]) -> Result<bool, ()>;

    /// May the peer do this to `len` bytes at `va`? (A length of 0 asks nothing: IBTA 9.4.3.)
    ///
    /// # Errors
    /// The NAK to send.
    fn check_remote(&mut self, rkey: u32, va: u64, len: u64, access: RemoteAccess)
    -> Result<(), RemoteError>;
    /// Checks again and writes a payload of an RDMA WRITE.
    ///
    /// # Errors
    /// The NAK to send.
    fn write_remote(&mut self, rkey: u32, va: u64, payload: &Self::Payload<'_>) -> Result<(), RemoteError>;
    /// Carries out an atomic on 8 aligned bytes and returns the original value (host byte order).
    ///
    /// # Errors
    /// The NAK to send.
    fn atomic_remote(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, RemoteError>;
    /// Makes what was written to `range` (address and length) of a region, or to all of it, visible or persistent, as `placement`
    /// requires.
    ///
    /// # Errors
    /// The NAK to send.
    fn flush_remote(
        &mut self,
        rkey: u32,
        range: Option<(u64, u64)>,
        placement: Placement,
    ) -> Result<(), RemoteError>;
    /// Invalidates a remote key (SEND with invalidate; local invalidate).
    ///
    /// # Errors
    /// The key can't be invalidated: NAK remote access error, or for a local request MW_BIND_ERR.
    fn invalidate(&mut self, rkey: u32) -> Result<(), RemoteError>;

    /// Binds a memory window, or unbinds it.
    ///
    /// # Errors
    /// `Err(())`: window, region, domain, rights or range don't allow it: MW_BIND_ERR.
    #[allow(clippy::result_unit_err)]
    fn bind_window(&mut self, bind: &BindMw) -> Result<(), ()>;

    /// The last of `bytes` of an RDMA WRITE of the peer was written.
    fn written(&mut self, _bytes: u32) {}
    /// The answer to an RDMA READ of the peer has left, of `bytes`. Another one belongs to the same work request of it
    /// unless this one ends it.
    fn was_read(&mut self, _bytes: u32, _ends: bool) {}
    /// A receive work request ended with the packet of this number. The environment publishes it when
    /// `QpProtocol::unacknowledged_from` is beyond `number`, or the QP is in ERR, and never before an earlier one.
    fn complete_recv(&mut self, completion: Completion, number: u64);
    /// The QP goes to ERR, and no acknowledgement of the packets from this number on is sent any more: the receives that ended with them
    /// and aren't published are flushed.
    fn flush_unacknowledged(&mut self, _from: u64) {}
    /// A message that had matched no tag wasn't received after all: it doesn't count as unexpected.
    fn forget_unexpected(&mut self) {}
    /// What [`Env::next_tagged`] gave has ended, or the data of a rendezvous have come.
    fn complete_tagged(&mut self, completion: Completion, number: u64, _info: TagInfo) {
        self.complete_recv(completion, number);
    }
    /// The QP is about to fail, or has dropped something: the environment may report the cause to the program. Returns the number
    /// of the reason, which all completions of the error contain and which reaches the peer as [`Env::telling`] defines; 0 for
    /// none.
    fn failed(&mut self, _failure: &Failure<'_, Self::Address>) -> u16 {
        0
    }
    /// How the peer gets the number of the reason for a NAK.
    fn telling(&self) -> Telling {
        Telling::Never
    }
    /// Something for the asynchronous event queue.
    fn event(&mut self, event: QpEvent);
    /// A packet was dropped because of its key: the port counts it.
    fn violation(&mut self, _violation: Violation) {}
}
