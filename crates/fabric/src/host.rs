//! What surrounds a queue pair of a simulated host: no memory, and packets that wait to leave.

use ferroce_proto::{
    Buffer, Env, KeptPacket, KeptPackets, NoReceive, Payload, PayloadSource, PlaceError, QpEvent, SendEnds,
    SrqPlace, Telling, TransmitError,
};
use ferroce_types::{
    AtomicOp, BindMw, Completion, Instant, Placement, RecvWqe, RemoteAccess, RemoteError, Sge, WcStatus,
};
use ferroce_wire::Headers;

/// A payload: that of a message is a length, and all of its bytes are 0.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SimPayload<'a> {
    Length(u32),
    Bytes(&'a [u8]),
}

impl Payload for SimPayload<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Length(len) => *len as usize,
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    fn copy(&self, to: &mut [u8]) -> Result<(), PlaceError> {
        match self {
            Self::Length(_) => to.fill(0),
            Self::Bytes(bytes) => to.copy_from_slice(bytes),
        }
        Ok(())
    }

    fn copy_first(&self, _: &mut [u8]) -> Result<(), PlaceError> {
        Err(PlaceError)
    }
}

/// What leaves as a payload.
#[derive(Clone, Debug)]
pub(crate) enum SimContent {
    Length(u32),
    Bytes(Box<[u8]>),
}

impl SimContent {
    pub(crate) fn payload(&self) -> SimPayload<'_> {
        match self {
            Self::Length(len) => SimPayload::Length(*len),
            Self::Bytes(bytes) => SimPayload::Bytes(bytes),
        }
    }
}

/// The surroundings of the queue pair whose turn it is.
#[derive(Default, Debug)]
pub(crate) struct QpSurroundings {
    /// Bytes that its share of the peer's socket has room for.
    pub(crate) window: u32,
    /// What it sends may be marked.
    pub(crate) is_ecn_capable: bool,
    /// Bytes for which the host's own queue has room.
    pub(crate) room: u64,
    /// It has asked for more.
    pub(crate) is_blocked: bool,
    /// Packets.
    pub(crate) out: Vec<(Headers, SimContent)>,
    /// It keeps packets beyond a gap, and reports them.
    pub(crate) keeps: bool,
    pub(crate) kept: KeptPackets,
    /// Bytes that the peer has written.
    pub(crate) written: u64,
    pub(crate) ended: Vec<WcStatus>,
}

impl SendEnds for QpSurroundings {
    type Address = ();

    fn complete_send(&mut self, completion: Completion) {
        self.ended.push(completion.status);
    }
}

impl Env for QpSurroundings {
    type Payload<'p> = SimPayload<'p>;

    fn transmit(
        &mut self,
        headers: &Headers,
        source: PayloadSource<'_>,
        _: Option<&()>,
    ) -> Result<(), TransmitError> {
        let content = match source {
            PayloadSource::None => SimContent::Length(0),
            PayloadSource::Bytes(bytes) => SimContent::Bytes(bytes.into()),
            PayloadSource::Local { len, .. } | PayloadSource::Remote { len, .. } => SimContent::Length(len),
        };
        // An answer always has room, as in the product.
        if let SimContent::Length(len @ 1..) = content {
            if self.room < u64::from(len) {
                self.is_blocked = true;
                return Err(TransmitError::Blocked);
            }
            self.room -= u64::from(len);
        }
        self.out.push((*headers, content));
        Ok(())
    }

    fn is_ecn_capable(&self) -> bool {
        self.is_ecn_capable
    }

    fn window(&self) -> u32 {
        self.window
    }

    fn keep(&mut self, number: u64, headers: &Headers, payload: &SimPayload<'_>) -> bool {
        self.keeps && self.kept.keep(number, headers, payload)
    }

    fn take_kept(&mut self, number: u64) -> Option<KeptPacket> {
        self.kept.take(number)
    }

    fn forget_kept(&mut self) {
        self.kept = KeptPackets::default();
    }

    fn payload_of(bytes: &[u8]) -> SimPayload<'_> {
        SimPayload::Bytes(bytes)
    }

    fn telling(&self) -> Telling {
        if self.keeps { Telling::BeforeNak } else { Telling::Never }
    }

    fn select_srq(&mut self, _: u32) -> SrqPlace {
        SrqPlace::Nowhere
    }

    fn next_recv(&mut self) -> Option<RecvWqe> {
        None
    }

    fn next_recv_for(&mut self, _: u64) -> Result<RecvWqe, NoReceive> {
        Err(NoReceive::Empty)
    }

    fn flush_recv_queue(&mut self) {}

    fn place(
        &mut self,
        _: Buffer,
        _: &[Sge],
        _: u64,
        _: &SimPayload<'_>,
        _: usize,
    ) -> Result<(), PlaceError> {
        Err(PlaceError)
    }

    fn place_bytes(&mut self, _: &[Sge], _: u64, _: &[u8]) -> Result<(), ()> {
        Err(())
    }

    fn place_grh(&mut self, _: &[Sge]) -> Result<bool, ()> {
        Err(())
    }

    fn check_remote(&mut self, _: u32, _: u64, _: u64, _: RemoteAccess) -> Result<(), RemoteError> {
        Ok(())
    }

    fn write_remote(&mut self, _: u32, va: u64, payload: &SimPayload<'_>) -> Result<(), RemoteError> {
        // The address of the first byte is 0, and nothing is executed twice.
        debug_assert_eq!(va, self.written);
        self.written += payload.len() as u64;
        Ok(())
    }

    fn atomic_remote(&mut self, _: u32, _: u64, _: AtomicOp) -> Result<u64, RemoteError> {
        Err(RemoteError::Access)
    }

    fn flush_remote(&mut self, _: u32, _: Option<(u64, u64)>, _: Placement) -> Result<(), RemoteError> {
        Err(RemoteError::Access)
    }

    fn invalidate(&mut self, _: u32) -> Result<(), RemoteError> {
        Err(RemoteError::Access)
    }

    fn bind_window(&mut self, _: &BindMw) -> Result<(), ()> {
        Err(())
    }

    fn complete_recv(&mut self, _: Completion, _: u64) {}

    fn event(&mut self, _: QpEvent) {}
}

/// A receiver of marked packets sends at most one congestion notification in this time (`CNP_INTERVAL` of the adapter).
const CNP_INTERVAL: u64 = 50_000;

/// The congestion notifications of one queue pair.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Notifications(Option<Instant>);

impl Notifications {
    /// A marked packet has come. Returns whether a notification is sent.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.0.is_none_or(|last| now.0 - last.0 >= CNP_INTERVAL);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}
