//! Payloads between packets and the program's memory: which bytes of which elements, and how they are copied.

use crate::settings;
use ferroce_access::{Fault, copy};
use ferroce_hostlink::{RingBytes, ShmPayload};
use ferroce_mem::{Denied, KeyTable, KeyUser};
use ferroce_proto::{Payload, PayloadSource, PlaceError, RemoteAccess, Sge, TransmitError};

/// How much of a message is read ahead of the packets that carry it.
const READ_AHEAD: usize = 64 * 1024;

/// A packet's payload, wherever it lies.
#[derive(Clone, Copy)]
pub(crate) enum RxPayload<'a> {
    Bytes(&'a [u8]),
    /// As [`RxPayload::Bytes`], where more is asked of how they are placed ([`settings::is_careful`]).
    Careful(&'a [u8]),
    Shared(ShmPayload<'a>),
}

impl<'a> From<&'a [u8]> for RxPayload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<ShmPayload<'a>> for RxPayload<'a> {
    fn from(payload: ShmPayload<'a>) -> Self {
        Self::Shared(payload)
    }
}

impl Payload for RxPayload<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) | Self::Careful(bytes) => bytes.len(),
            Self::Shared(payload) => payload.len(),
        }
    }

    fn copy(&self, to: &mut [u8]) -> Result<(), PlaceError> {
        if to.len() != self.len() {
            return Err(PlaceError);
        }
        self.copy_to(0, to.as_mut_ptr() as u64, to.len()).map_err(|Fault| PlaceError)
    }

    fn copy_first(&self, to: &mut [u8]) -> Result<(), PlaceError> {
        if to.len() > self.len() {
            return Err(PlaceError);
        }
        self.copy_to(0, to.as_mut_ptr() as u64, to.len()).map_err(|Fault| PlaceError)
    }
}

impl<'a> RxPayload<'a> {
    /// A payload that has come in a packet from the network, or that is placed in the place of one.
    pub(crate) fn of_packet(bytes: &'a [u8]) -> Self {
        if settings::is_careful() { Self::Careful(bytes) } else { Self::Bytes(bytes) }
    }

    /// Copies `len` bytes from `offset` on to the program's memory at `addr`.
    pub(super) fn copy_to(&self, offset: usize, addr: u64, len: usize) -> Result<(), Fault> {
        match self {
            Self::Bytes(bytes) => copy::write(addr, &bytes[offset..offset + len]),
            Self::Careful(bytes) => ferroce_mem::place(addr, &bytes[offset..offset + len]),
            Self::Shared(payload) => payload.copy_to(offset, addr, len),
        }
    }

    /// Copies it to the program's memory at `addr`, its last byte long before the others: who waits for that byte and takes the
    /// others for there finds out.
    #[cold]
    pub(super) fn copy_last_byte_first(&self, addr: u64) -> Result<(), Fault> {
        if let Some(last) = self.len().checked_sub(1) {
            self.copy_to(last, addr + last as u64, 1)?;
            std::thread::yield_now();
            self.copy_to(0, addr, last)?;
        }
        Ok(())
    }
}

/// The bytes of a message around the packet that was sent last: one copy by the kernel serves many packets.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// The serial number of the QP, and the message's number there.
    message: (u64, u64),
    offset: u64,
    bytes: Vec<u8>,
}

impl ReadAhead {
    /// Forgets everything: the bytes may be stale once the QP's lock has been released.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Fills `dst` from `offset` of the message with this name, which `sges` describe.
    ///
    /// # Errors
    /// A key or the memory is wrong.
    fn read(
        &mut self,
        pd: u32,
        message: (u64, u64),
        sges: &[Sge],
        offset: u64,
        dst: &mut [u8],
    ) -> Result<(), ()> {
        let hit = |ahead: &Self| {
            let start = offset.checked_sub(ahead.offset).filter(|_| ahead.message == message)? as usize;
            (start + dst.len() <= ahead.bytes.len()).then_some(start)
        };
        if let Some(start) = hit(self) {
            dst.copy_from_slice(&self.bytes[start..start + dst.len()]);
            return Ok(());
        }
        let total: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
        let left = total.saturating_sub(offset);
        if left >= 2 * dst.len() as u64 && left as usize > dst.len() {
            let len = READ_AHEAD.min(left as usize);
            self.bytes.resize(len, 0);
            self.message = message;
            self.offset = offset;
            if gather(pd, sges, offset, &mut self.bytes).is_ok() {
                dst.copy_from_slice(&self.bytes[..dst.len()]);
                return Ok(());
            }
            self.bytes.clear();
        }
        gather(pd, sges, offset, dst)
    }
}

/// The parts of the elements that make up `len` bytes from `offset` of the message, with their place in it.
fn pieces(sges: &[Sge], offset: u64, len: usize) -> impl Iterator<Item = (Sge, usize)> + '_ {
    let end = offset + len as u64;
    let mut at = 0u64;
    sges.iter().filter_map(move |sge| {
        let (from, to) = (at.max(offset), (at + u64::from(sge.length)).min(end));
        let start = at;
        at += u64::from(sge.length);
        (from < to).then(|| {
            let piece = Sge { addr: sge.addr.wrapping_add(from - start), length: (to - from) as u32, ..*sge };
            (piece, (from - offset) as usize)
        })
    })
}

pub(crate) fn gather(pd: u32, sges: &[Sge], offset: u64, dst: &mut [u8]) -> Result<(), ()> {
    let table = KeyTable::global();
    for (piece, at) in pieces(sges, offset, dst.len()) {
        let part = &mut dst[at..at + piece.length as usize];
        table.local(pd, &piece, false, |addr| copy::read(addr, part)).map_err(|Denied| ())?;
    }
    Ok(())
}

pub(crate) fn scatter(pd: u32, sges: &[Sge], offset: u64, src: &RxPayload<'_>) -> Result<(), PlaceError> {
    scatter_rest(pd, sges, offset, src, 0)
}

/// Writes a payload, but for its first `skip` bytes.
pub(super) fn scatter_rest(
    pd: u32,
    sges: &[Sge],
    offset: u64,
    src: &RxPayload<'_>,
    skip: usize,
) -> Result<(), PlaceError> {
    let table = KeyTable::global();
    let mut done = skip;
    for (piece, at) in pieces(sges, offset, src.len() - skip) {
        let len = piece.length as usize;
        let copy = |addr| src.copy_to(skip + at, addr, len);
        table.local(pd, &piece, true, copy).map_err(|Denied| PlaceError)?;
        done += len;
    }
    if done == src.len() { Ok(()) } else { Err(PlaceError) }
}

/// Runs `f` with place, address and length of each part of `len` bytes from `offset` of a message; `None` when a key or a
/// copy is wrong: a packet then finds out which.
pub(super) fn each_piece(
    pd: u32,
    sges: &[Sge],
    offset: u64,
    len: usize,
    write: bool,
    mut f: impl FnMut(u64, u64, usize) -> Option<()>,
) -> Option<u32> {
    let table = KeyTable::global();
    for (piece, at) in pieces(sges, offset, len) {
        let copied = |addr| f(at as u64, addr, piece.length as usize).ok_or(Fault);
        table.local(pd, &piece, write, copied).ok()?;
    }
    Some(len as u32)
}

/// Fills a record's payload with the one that `source` names.
pub(super) fn fill_ring(
    by: KeyUser,
    source: PayloadSource<'_>,
    ring: &RingBytes<'_>,
) -> Result<(), TransmitError> {
    let table = KeyTable::global();
    match source {
        PayloadSource::None => Ok(()),
        PayloadSource::Bytes(bytes) => {
            ring.put(bytes);
            Ok(())
        }
        PayloadSource::Local { sges, offset, len, .. } => pieces(sges, offset, len as usize)
            .try_for_each(|(piece, at)| {
                let len = piece.length as usize;
                table.local(by.pd, &piece, false, |addr| ring.copy_from(at, addr, len))
            })
            .map_err(|Denied| TransmitError::Local),
        PayloadSource::Remote { rkey, va, len } => table
            .remote(by, rkey, va, u64::from(len), RemoteAccess::Read, |addr| {
                ring.copy_from(0, addr, len as usize)
            })
            .map_err(TransmitError::Remote),
    }
}

/// Fills `buf` with the payload that `source` names.
pub(super) fn fill(
    by: KeyUser,
    ahead: &mut ReadAhead,
    source: PayloadSource<'_>,
    buf: &mut [u8],
) -> Result<(), TransmitError> {
    match source {
        PayloadSource::None => Ok(()),
        PayloadSource::Bytes(bytes) => {
            buf.copy_from_slice(bytes);
            Ok(())
        }
        PayloadSource::Local { message, sges, offset, .. } => {
            ahead.read(by.pd, (by.qp, message), sges, offset, buf).map_err(|()| TransmitError::Local)
        }
        PayloadSource::Remote { rkey, va, len } => KeyTable::global()
            .remote(by, rkey, va, u64::from(len), RemoteAccess::Read, |addr| copy::read(addr, buf))
            .map_err(TransmitError::Remote),
    }
}

pub(super) fn source_len(source: &PayloadSource<'_>) -> usize {
    match *source {
        PayloadSource::None => 0,
        PayloadSource::Bytes(bytes) => bytes.len(),
        PayloadSource::Local { len, .. } | PayloadSource::Remote { len, .. } => len as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_exactly_the_asked_bytes() {
        let sge = |addr, length| Sge { addr, length, lkey: 1 };
        let sges = [sge(100, 10), sge(200, 0), sge(300, 5), sge(400, 10)];
        let got: Vec<_> = pieces(&sges, 8, 10).map(|(s, at)| (s.addr, s.length, at)).collect();
        assert_eq!(got, [(108, 2, 0), (300, 5, 2), (400, 3, 7)]);
        assert_eq!(pieces(&sges, 25, 4).count(), 0);
    }
}
