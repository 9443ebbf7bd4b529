//! Payloads between packets and the program's memory: which bytes of which elements, and how they are copied.

use super::offers::Offered;
use super::waiting::AbsentMemory;
use ferroce_access::{Fault, copy, pages, summed};
use ferroce_hostlink::{RingBytes, ShmPayload};
use ferroce_mem::{Denied, KeyTable, KeyUser};
use ferroce_parts::settings;
use ferroce_proto::{Payload, PayloadSource, PlaceError, TransmitError};
use ferroce_types::{RemoteAccess, Sge};
use ferroce_wire::crc::extend;

/// A packet's payload, wherever it lies.
#[derive(Clone, Copy)]
pub enum RxPayload<'a> {
    /// In memory that no other process changes.
    Bytes(&'a [u8]),
    /// As [`RxPayload::Bytes`], where more is asked of how they are placed ([`settings::is_careful`]).
    Careful(&'a [u8]),
    /// In memory that another process may change.
    Shared(ShmPayload<'a>),
    /// In the memory of the process that has sent it.
    Offered(Offered<'a>),
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
            Self::Offered(payload) => payload.len(),
        }
    }

    fn is_lost(&self) -> bool {
        matches!(self, Self::Offered(payload) if payload.is_lost())
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
    #[inline(always)]
    pub(super) fn copy_to(&self, offset: usize, addr: u64, len: usize) -> Result<(), Fault> {
        match self {
            Self::Bytes(bytes) => copy::write(addr, &bytes[offset..offset + len]),
            Self::Careful(bytes) => ferroce_mem::place(addr, &bytes[offset..offset + len]),
            Self::Shared(payload) => payload.copy_to(offset, addr, len),
            Self::Offered(payload) => payload.copy_to(offset, addr, len),
        }
    }

    /// Copies it to the program's memory at `addr`, its last byte long before the others: a program that polls the last byte and then reads
    /// the others finds old bytes.
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

/// The parts of the elements that make up `len` bytes from `offset` of the message, with their place in it.
pub(super) fn pieces(sges: &[Sge], offset: u64, len: usize) -> impl Iterator<Item = (Sge, usize)> + '_ {
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

/// Copies `dst.len()` bytes from `offset` of a message on.
///
/// # Errors
/// A key, its range or its rights don't allow it, or the memory isn't there.
pub fn gather(pd: u32, sges: &[Sge], offset: u64, dst: &mut [u8]) -> Result<(), Denied> {
    let table = KeyTable::global();
    for (piece, at) in pieces(sges, offset, dst.len()) {
        let part = &mut dst[at..at + piece.length as usize];
        table.local(pd, &piece, false, |addr| copy::read(addr, part))?;
    }
    Ok(())
}

/// Writes a payload from byte `offset` of a message on.
///
/// # Errors
/// A key, its range or its rights don't allow it, the memory isn't there, or the elements end before the payload.
pub fn scatter(pd: u32, sges: &[Sge], offset: u64, src: &RxPayload<'_>) -> Result<(), PlaceError> {
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
    if let RxPayload::Offered(offered) = src
        && let Some(placed) = offered.scatter(pd, sges, offset, skip)
    {
        return placed;
    }
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

/// Runs `copy`, which touches `len` bytes at `addr`, if they are there.
///
/// # Errors
/// [`Fault`] when they aren't; those of `copy`.
#[inline(always)]
pub(super) fn if_present<R>(
    addr: u64,
    len: usize,
    copy: impl FnOnce() -> Result<R, Fault>,
) -> Result<R, Fault> {
    if pages::are_present(addr, len) { copy() } else { Err(Fault) }
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

/// Fills a cell's payload with the one that `source` names. [`TransmitError::AwaitsMemory`]: `absent` is what isn't there of it.
pub(super) fn fill_ring(
    by: KeyUser,
    source: PayloadSource<'_>,
    ring: &RingBytes<'_>,
    absent: &mut Option<AbsentMemory>,
) -> Result<(), TransmitError> {
    let table = KeyTable::global();
    let filled = match source {
        PayloadSource::None => Ok(()),
        PayloadSource::Bytes(bytes) => {
            ring.put(bytes);
            Ok(())
        }
        PayloadSource::Local { sges, offset, len, .. } => pieces(sges, offset, len as usize)
            .try_for_each(|(piece, at)| {
                let len = piece.length as usize;
                table.local(by.pd, &piece, false, |addr| {
                    AbsentMemory::look(addr, len, absent)?;
                    ring.copy_from(at, addr, len)
                })
            })
            .map_err(|Denied| TransmitError::Local),
        PayloadSource::Remote { rkey, va, len } => table
            .remote(by, rkey, va, u64::from(len), RemoteAccess::Read, |addr| {
                AbsentMemory::look(addr, len as usize, absent)?;
                ring.copy_from(0, addr, len as usize)
            })
            .map_err(TransmitError::Remote),
    };
    filled.map_err(|error| if absent.is_some() { TransmitError::AwaitsMemory } else { error })
}

/// Fills `buf` with the payload that `source` names. Returns the CRC-32 of what `crc` is the CRC-32 of, followed by the payload.
/// [`TransmitError::AwaitsMemory`]: `absent` is what isn't there of it.
pub(super) fn fill_summed(
    by: KeyUser,
    source: PayloadSource<'_>,
    buf: &mut [u8],
    mut crc: u32,
    absent: &mut Option<AbsentMemory>,
) -> Result<u32, TransmitError> {
    let table = KeyTable::global();
    let mut read = |addr, part: &mut [u8]| {
        AbsentMemory::look(addr, part.len(), absent)?;
        crc = summed::read(addr, part, crc)?;
        Ok(())
    };
    let filled = match source {
        PayloadSource::None => Ok(()),
        PayloadSource::Bytes(bytes) => {
            buf.copy_from_slice(bytes);
            return Ok(extend(crc, buf));
        }
        PayloadSource::Local { sges, offset, .. } => pieces(sges, offset, buf.len())
            .try_for_each(|(piece, at)| {
                let part = &mut buf[at..at + piece.length as usize];
                table.local(by.pd, &piece, false, |addr| read(addr, part))
            })
            .map_err(|Denied| TransmitError::Local),
        PayloadSource::Remote { rkey, va, len } => table
            .remote(by, rkey, va, u64::from(len), RemoteAccess::Read, |addr| read(addr, buf))
            .map_err(TransmitError::Remote),
    };
    filled.map_err(|error| if absent.is_some() { TransmitError::AwaitsMemory } else { error })?;
    Ok(crc)
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
    use crate::namespace::in_namespace;
    use crate::side::{Side, open, register};
    use ferroce_mem::{MrAccess, MrInit};
    use ferroce_wire::Service;

    #[test]
    fn a_payload_is_copied_from_any_byte_on_and_not_beyond_its_end() {
        let bytes: Vec<u8> = (1..=20).collect();
        let payload = RxPayload::from(&bytes[..]);
        let mut to = vec![0; 20];
        payload.copy_to(5, to.as_mut_ptr() as u64, 7).unwrap();
        assert_eq!(to[..8], [6, 7, 8, 9, 10, 11, 12, 0]);
        to.fill(0);
        payload.copy_last_byte_first(to.as_mut_ptr() as u64).unwrap();
        assert_eq!(to, bytes);
        for len in [0, 19, 21] {
            assert!(payload.copy(&mut vec![0; len]).is_err(), "{len}");
        }
        let mut first = [0; 4];
        payload.copy_first(&mut first).unwrap();
        assert_eq!(first, [1, 2, 3, 4]);
        assert!(payload.copy_first(&mut [0; 21]).is_err());
    }

    #[test]
    fn what_follows_the_skipped_bytes_fills_the_elements() {
        in_namespace("qp::payload::tests::what_follows_the_skipped_bytes_fills_the_elements", || {
            let side = Side::new(&open(), Service::Rc, 64);
            let bytes: Vec<u8> = (1..=20).collect();
            let payload = RxPayload::from(&bytes[..]);
            let (pd, sges) = (side.pd.id(), [side.sge(0, 4), side.sge(32, 8)]);
            scatter_rest(pd, &sges, 0, &payload, 10).unwrap();
            assert_eq!((&side.memory[..4], &side.memory[32..38]), (&bytes[10..14], &bytes[14..]));
            assert!(scatter(pd, &sges, 0, &payload).is_err(), "20 bytes into 12");

            let access = MrAccess { local_write: false, ..MrAccess::default() };
            let init = MrInit { addr: side.addr(), length: 64, iova: side.addr(), access };
            let read_only = register(&side.pd, init).unwrap();
            let sges = [Sge { addr: side.addr(), length: 8, lkey: read_only.key() }];
            let reached = |write| each_piece(pd, &sges, 0, 8, write, |_, _, _| Some(()));
            assert_eq!((reached(false), reached(true)), (Some(8), None));
            read_only.deregister().unwrap();
            side.close();
        });
    }

    #[test]
    fn pieces_cover_exactly_the_asked_bytes() {
        let sge = |addr, length| Sge { addr, length, lkey: 1 };
        let sges = [sge(100, 10), sge(200, 0), sge(300, 5), sge(400, 10)];
        let got: Vec<_> = pieces(&sges, 8, 10).map(|(s, at)| (s.addr, s.length, at)).collect();
        assert_eq!(got, [(108, 2, 0), (300, 5, 2), (400, 3, 7)]);
        assert_eq!(pieces(&sges, 25, 4).count(), 0);
    }
}
