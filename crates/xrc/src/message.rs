//! The messages between two processes about a target of one and the SRQs of the other.

use crate::DomainFile;
use ferroce_host::frame;
use ferroce_proto::Executed;
use ferroce_types::{Access, RemoteError};
use ferroce_wire::{Headers, NakCode, Syndrome};

/// The kind of a request that begins the execution of a target's requests.
pub const KIND: u8 = 4;
/// Bytes of device name, with zeros behind.
pub(crate) const NAME: usize = 64;
const HELLO: usize = 8 + 16 + 4 + 16 + NAME;
/// What every later message begins with: kind, status, two bytes that are zero, and a number: of a run, or of requests.
const FRONT: usize = 8;
const EXECUTE: u8 = 1;
const FETCH: u8 = 2;
const DROPPED: u8 = 3;
const ACKNOWLEDGED: u8 = 4;

impl DomainFile {
    /// Writes the file's device number and inode, and the RDMA device's name.
    pub(crate) fn put(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.dev.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.ino.to_ne_bytes());
        for (to, from) in bytes[16..].iter_mut().zip(self.device.bytes()) {
            *to = from;
        }
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (dev, rest) = bytes.split_first_chunk()?;
        let (ino, rest) = rest.split_first_chunk()?;
        let name = rest.split(|b| *b == 0).next()?;
        Some(Self {
            device: std::str::from_utf8(name).ok()?.to_owned(),
            dev: u64::from_ne_bytes(*dev),
            ino: u64::from_ne_bytes(*ino),
        })
    }
}

/// The first message: a target asks for the execution of its requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// One of the SRQs there.
    pub srqn: u32,
    /// The target.
    pub qpn: u32,
    /// The initiator.
    pub dest_qpn: u32,
    /// Bytes of payload in a packet.
    pub path_mtu: u32,
    /// What the initiator may do.
    pub access: Access,
    /// The domain of the target and the SRQ.
    pub file: DomainFile,
}

impl Hello {
    /// Writes it.
    pub fn to_bytes(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&frame::header(KIND));
        for (to, number) in
            bytes[8..24].chunks_exact_mut(4).zip([self.srqn, self.qpn, self.dest_qpn, self.path_mtu])
        {
            to.copy_from_slice(&number.to_ne_bytes());
        }
        let Access { remote_write, remote_read, remote_atomic, .. } = self.access;
        bytes[24] = u8::from(remote_write) | u8::from(remote_read) << 1 | u8::from(remote_atomic) << 2;
        self.file.put(&mut bytes[28..]);
        bytes
    }

    /// Reads it; `None`: it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO] = bytes.try_into().ok()?;
        let short = |at: usize| bytes[at..].first_chunk().map(|b| u32::from_ne_bytes(*b));
        let has = |bit: u8| bytes[24] & 1 << bit != 0;
        Some(Self {
            srqn: short(8)?,
            qpn: short(12)? & 0xff_ffff,
            dest_qpn: short(16)? & 0xff_ffff,
            path_mtu: short(20)?,
            access: Access {
                remote_write: has(0),
                remote_read: has(1),
                remote_atomic: has(2),
                ..Access::default()
            },
            file: DomainFile::parse(&bytes[28..])?,
        })
    }
}

/// What a READ response is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRange {
    /// The SRQ that a request named.
    pub srqn: u32,
    /// The key of the memory.
    pub rkey: u32,
    /// Where the bytes begin, …
    pub va: u64,
    /// … and how many they are.
    pub len: u32,
}

/// What a target's process asks for.
#[derive(Debug)]
pub enum TargetRequest<'a> {
    /// The run that it belongs to, and the packet.
    Execute(u32, Headers, &'a [u8]),
    /// Bytes of memory.
    Fetch(ReadRange),
    /// The initiator has the answers to so many more requests, in their order, or will get none.
    Acknowledged(u32),
}

fn front(kind: u8, status: u8, number: u32) -> [u8; FRONT] {
    let [n0, n1, n2, n3] = number.to_ne_bytes();
    [kind, status, 0, 0, n0, n1, n2, n3]
}

/// A request with `payload` bytes behind it, which are still zeros, and where they begin.
pub(crate) fn execute(headers: &Headers, payload: usize, run: u32) -> Option<(Vec<u8>, usize)> {
    let at = FRONT + headers.len();
    let mut bytes = vec![0; at + payload];
    bytes[..FRONT].copy_from_slice(&front(EXECUTE, 0, run));
    headers.emit(&mut bytes[FRONT..at]).ok()?;
    Some((bytes, at))
}

pub(crate) fn acknowledged(count: u32) -> [u8; FRONT] {
    front(ACKNOWLEDGED, 0, count)
}

pub(crate) fn fetch(range: &ReadRange) -> [u8; FRONT + 24] {
    let mut bytes = [0; FRONT + 24];
    bytes[0] = FETCH;
    bytes[8..12].copy_from_slice(&range.srqn.to_ne_bytes());
    bytes[12..16].copy_from_slice(&range.rkey.to_ne_bytes());
    bytes[16..24].copy_from_slice(&range.va.to_ne_bytes());
    bytes[24..28].copy_from_slice(&range.len.to_ne_bytes());
    bytes
}

fn number_of(front: &[u8; FRONT]) -> u32 {
    let [.., n0, n1, n2, n3] = *front;
    u32::from_ne_bytes([n0, n1, n2, n3])
}

/// Reads a message of a target's process; `None`: it is none.
pub fn parse_request(bytes: &[u8]) -> Option<TargetRequest<'_>> {
    let (front, rest) = bytes.split_first_chunk::<FRONT>()?;
    match front[0] {
        EXECUTE => {
            let (headers, len) = Headers::parse(rest).ok()?;
            headers.xrc_srqn?;
            Some(TargetRequest::Execute(number_of(front), headers, &rest[len..]))
        }
        FETCH => {
            let short = |at: usize| Some(u32::from_ne_bytes(*rest.get(at..)?.first_chunk()?));
            let va = u64::from_ne_bytes(*rest.get(8..)?.first_chunk()?);
            Some(TargetRequest::Fetch(ReadRange { srqn: short(0)?, rkey: short(4)?, va, len: short(16)? }))
        }
        ACKNOWLEDGED => Some(TargetRequest::Acknowledged(number_of(front))),
        _ => None,
    }
}

/// What the SRQ's process answers.
#[derive(Debug)]
pub enum SrqReply<'a> {
    /// What became of so many requests.
    Executed(Executed, u32),
    /// So many requests of a run that has ended weren't looked at.
    Dropped(u32),
    /// The bytes that were asked for.
    Fetched(Result<&'a [u8], RemoteError>),
}

/// What becomes of requests, in the order in which they have come: as few answers as possible.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// Without values of atomics.
    done: u32,
    dropped: u32,
}

impl Outcomes {
    /// Adds one more request; `None`: it wasn't looked at. Calls `send` with the answers that can leave now.
    pub fn add(&mut self, executed: Option<Executed>, send: impl FnMut(&mut [u8])) {
        match executed {
            Some(Executed::Done { original: 0 }) if self.dropped == 0 => self.done += 1,
            None if self.done == 0 => self.dropped += 1,
            _ => self.tell(executed, send),
        }
    }

    fn tell(&mut self, executed: Option<Executed>, mut send: impl FnMut(&mut [u8])) {
        self.flush(&mut send);
        match executed {
            None => self.dropped = 1,
            Some(executed) => send(&mut answer(executed, 1)),
        }
    }

    /// Answers what hasn't been answered.
    pub fn flush(&mut self, mut send: impl FnMut(&mut [u8])) {
        match std::mem::take(self) {
            Self { done: 0, dropped: 0 } => {}
            Self { done, dropped: 0 } => send(&mut answer(Executed::Done { original: 0 }, done)),
            Self { dropped, .. } => send(&mut front(DROPPED, 0, dropped)),
        }
    }
}

/// The answer to requests: its status is an AETH syndrome, an ACK if they were executed.
fn answer(executed: Executed, count: u32) -> [u8; FRONT + 8] {
    let (syndrome, original) = match executed {
        Executed::Done { original } => (Syndrome::ACK_UNLIMITED, original),
        Executed::NotReady => (Syndrome::RnrNak { timer: 0 }, 0),
        Executed::Refused(code) => (Syndrome::Nak(code), 0),
    };
    let mut bytes = [0; FRONT + 8];
    bytes[..FRONT].copy_from_slice(&front(EXECUTE, syndrome.to_u8(), count));
    bytes[FRONT..].copy_from_slice(&original.to_ne_bytes());
    bytes
}

/// The answer with the bytes that were asked for.
pub fn fetched(result: Result<Vec<u8>, RemoteError>) -> Vec<u8> {
    let syndrome = match &result {
        Ok(_) => Syndrome::ACK_UNLIMITED,
        Err(RemoteError::Access) => Syndrome::Nak(NakCode::RemoteAccessError),
        Err(_) => Syndrome::Nak(NakCode::RemoteOperationalError),
    };
    let mut bytes = front(FETCH, syndrome.to_u8(), 0).to_vec();
    bytes.extend(result.unwrap_or_default());
    bytes
}

/// Reads an answer of the SRQ's process; `None`: it is none.
pub fn parse_answer(bytes: &[u8]) -> Option<SrqReply<'_>> {
    let (front, rest) = bytes.split_first_chunk::<FRONT>()?;
    let syndrome = Syndrome::from_u8(front[1]);
    let count = number_of(front);
    match (front[0], syndrome) {
        (EXECUTE, Syndrome::Ack { .. }) => {
            let original = u64::from_ne_bytes(*rest.first_chunk()?);
            Some(SrqReply::Executed(Executed::Done { original }, count))
        }
        (EXECUTE, Syndrome::RnrNak { .. }) => Some(SrqReply::Executed(Executed::NotReady, 1)),
        (EXECUTE, Syndrome::Nak(code)) => Some(SrqReply::Executed(Executed::Refused(code), 1)),
        (DROPPED, _) => Some(SrqReply::Dropped(count)),
        (FETCH, Syndrome::Ack { .. }) => Some(SrqReply::Fetched(Ok(rest))),
        (FETCH, Syndrome::Nak(NakCode::RemoteAccessError)) => {
            Some(SrqReply::Fetched(Err(RemoteError::Access)))
        }
        (FETCH, _) => Some(SrqReply::Fetched(Err(RemoteError::Operational))),
        _ => None,
    }
}
