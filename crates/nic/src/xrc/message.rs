//! What two processes say to each other about a target of one and the SRQs of the other.

use super::DomainFile;
use crate::rendezvous::handover;
use ferroce_proto::{Access, Executed, RemoteError};
use ferroce_wire::{Headers, NakCode, Syndrome};

/// Bytes of device name, with zeros behind.
pub(super) const NAME: usize = 64;
const HELLO: usize = 8 + 16 + 4 + 16 + NAME;
/// What every later message begins with: kind and status.
const FRONT: usize = 8;
const EXECUTE: u8 = 1;
const FETCH: u8 = 2;

impl DomainFile {
    /// Writes inode and device's name.
    pub(super) fn put(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.dev.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.ino.to_ne_bytes());
        for (to, from) in bytes[16..].iter_mut().zip(self.device.bytes()) {
            *to = from;
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
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
pub(crate) struct Hello {
    /// One of the SRQs there.
    pub(crate) srqn: u32,
    pub(crate) qpn: u32,
    pub(crate) dest_qpn: u32,
    pub(crate) path_mtu: u32,
    pub(crate) access: Access,
    pub(crate) file: DomainFile,
}

impl Hello {
    pub(super) fn to_bytes(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&handover::frame(handover::KIND_XRC));
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

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
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
pub(crate) struct Range {
    pub(crate) srqn: u32,
    pub(crate) rkey: u32,
    pub(crate) va: u64,
    pub(crate) len: u32,
}

/// What a target's process asks for.
#[derive(Debug)]
pub(super) enum Request<'a> {
    Execute(Headers, &'a [u8]),
    Fetch(Range),
}

/// A request with `payload` bytes behind it, which are still zeros, and where they begin.
pub(super) fn execute(headers: &Headers, payload: usize) -> Option<(Vec<u8>, usize)> {
    let at = FRONT + headers.len();
    let mut bytes = vec![0; at + payload];
    bytes[0] = EXECUTE;
    headers.emit(&mut bytes[FRONT..at]).ok()?;
    Some((bytes, at))
}

pub(super) fn fetch(range: &Range) -> [u8; FRONT + 24] {
    let mut bytes = [0; FRONT + 24];
    bytes[0] = FETCH;
    bytes[8..12].copy_from_slice(&range.srqn.to_ne_bytes());
    bytes[12..16].copy_from_slice(&range.rkey.to_ne_bytes());
    bytes[16..24].copy_from_slice(&range.va.to_ne_bytes());
    bytes[24..28].copy_from_slice(&range.len.to_ne_bytes());
    bytes
}

pub(super) fn parse_request(bytes: &[u8]) -> Option<Request<'_>> {
    let (front, rest) = bytes.split_first_chunk::<FRONT>()?;
    match front[0] {
        EXECUTE => {
            let (headers, len) = Headers::parse(rest).ok()?;
            headers.xrc_srqn?;
            Some(Request::Execute(headers, &rest[len..]))
        }
        FETCH => {
            let short = |at: usize| Some(u32::from_ne_bytes(*rest.get(at..)?.first_chunk()?));
            let va = u64::from_ne_bytes(*rest.get(8..)?.first_chunk()?);
            Some(Request::Fetch(Range { srqn: short(0)?, rkey: short(4)?, va, len: short(16)? }))
        }
        _ => None,
    }
}

/// What the SRQ's process answers.
#[derive(Debug)]
pub(super) enum Answer<'a> {
    Executed(Executed),
    Fetched(Result<&'a [u8], RemoteError>),
}

/// What an answer says besides "done" is an AETH syndrome.
pub(super) fn executed(executed: Executed) -> [u8; FRONT + 8] {
    let mut bytes = [0; FRONT + 8];
    bytes[0] = EXECUTE;
    let (syndrome, original) = match executed {
        Executed::Done { original } => (Syndrome::ACK_UNLIMITED, original),
        Executed::NotReady => (Syndrome::RnrNak { timer: 0 }, 0),
        Executed::Refused(code) => (Syndrome::Nak(code), 0),
    };
    bytes[1] = syndrome.to_u8();
    bytes[8..].copy_from_slice(&original.to_ne_bytes());
    bytes
}

pub(super) fn fetched(result: Result<Vec<u8>, RemoteError>) -> Vec<u8> {
    let syndrome = match &result {
        Ok(_) => Syndrome::ACK_UNLIMITED,
        Err(RemoteError::Access) => Syndrome::Nak(NakCode::RemoteAccessError),
        Err(_) => Syndrome::Nak(NakCode::RemoteOperationalError),
    };
    let mut bytes = vec![FETCH, syndrome.to_u8(), 0, 0, 0, 0, 0, 0];
    bytes.extend(result.unwrap_or_default());
    bytes
}

pub(super) fn parse_answer(bytes: &[u8]) -> Option<Answer<'_>> {
    let (front, rest) = bytes.split_first_chunk::<FRONT>()?;
    let syndrome = Syndrome::from_u8(front[1]);
    match (front[0], syndrome) {
        (EXECUTE, Syndrome::Ack { .. }) => {
            let original = u64::from_ne_bytes(*rest.first_chunk()?);
            Some(Answer::Executed(Executed::Done { original }))
        }
        (EXECUTE, Syndrome::RnrNak { .. }) => Some(Answer::Executed(Executed::NotReady)),
        (EXECUTE, Syndrome::Nak(code)) => Some(Answer::Executed(Executed::Refused(code))),
        (FETCH, Syndrome::Ack { .. }) => Some(Answer::Fetched(Ok(rest))),
        (FETCH, Syndrome::Nak(NakCode::RemoteAccessError)) => Some(Answer::Fetched(Err(RemoteError::Access))),
        (FETCH, _) => Some(Answer::Fetched(Err(RemoteError::Operational))),
        _ => None,
    }
}
