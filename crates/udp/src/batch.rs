//! Outgoing packets: built in one buffer, gathered into UDP_SEGMENT trains.

use super::endpoint::Dest;
use super::send;
use super::train::{Flushed, MAX_TRAIN, Train};
use ferroce_os::clock;
use ferroce_types::Instant;
use ferroce_wire::{EmitError, Headers, ICRC_LEN};

/// Trains in a batch.
const MAX_TRAINS: usize = 64;
const DEFAULT_STAGING: usize = 256 << 10;

/// Why a packet wasn't appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PushError<E> {
    /// The caller's closure failed; its error.
    #[error("the payload could not be copied")]
    Fill(E),
    /// The headers don't fit their opcode.
    #[error(transparent)]
    Headers(EmitError),
    /// No UDP datagram holds this many bytes.
    #[error("{0} bytes are too many for a packet")]
    TooLong(usize),
}

/// Packets on their way out. Nothing leaves before [`flush`](Self::flush), or before there is no more room.
///
/// One batch belongs to one thread at a time; it may hold packets of any number of QPs and endpoints.
pub struct TxBatch {
    staging: Box<[u8]>,
    used: usize,
    trains: Vec<Train>,
    early: Flushed,
    tap: Option<&'static dyn OutgoingTap>,
    many: Option<send::Many>,
}

/// Sees packets just before they leave, one by one.
pub trait OutgoingTap: Sync {
    /// Whether the packet is to be sent now; else the tap has taken it over.
    fn outgoing(&self, dest: &Dest, id: u16, packet: &mut [u8]) -> bool;
    /// A batch has been shown in full.
    fn flushed(&self);
}

impl std::fmt::Debug for dyn OutgoingTap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OutgoingTap")
    }
}

impl std::fmt::Debug for TxBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TxBatch").field("bytes", &self.used).field("trains", &self.trains.len()).finish()
    }
}

impl Default for TxBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl TxBatch {
    /// An empty batch with room for 256 KiB.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(DEFAULT_STAGING)
    }

    /// An empty batch with room for this many bytes, at least those of one train.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        let staging = vec![0; bytes.max(MAX_TRAIN)].into_boxed_slice();
        Self {
            staging,
            used: 0,
            trains: Vec::with_capacity(MAX_TRAINS),
            early: Flushed::default(),
            tap: None,
            many: None,
        }
    }

    /// Nothing waits for a flush.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }

    /// Appends a packet. `fill` writes the payload, `payload_len` bytes, straight into the buffer (which holds old
    /// bytes: it must write them all). It gets the CRC-32 of what comes before and returns that of both, so that one pass
    /// copies and sums up. Pad bytes, `bth.pad` and the ICRC are added here. Flushes first when there is no room, which
    /// takes a system call and at most a millisecond.
    ///
    /// Packets for the same destination that follow one another become one train while they are of equal length; a
    /// shorter one ends it. So SEND first, middles and last make one train; the first packet of a WRITE or of a READ
    /// response is longer than the middles and doesn't belong to theirs.
    ///
    /// # Errors
    /// See [`PushError`]; nothing was appended then.
    pub fn packet<E>(
        &mut self,
        dest: &Dest,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8], u32) -> Result<u32, E>,
    ) -> Result<(), PushError<E>> {
        let len = packet_len(headers, payload_len).filter(|&len| len <= MAX_TRAIN);
        let len = len.ok_or(PushError::TooLong(payload_len))?;
        if self.used + len > self.staging.len() || self.trains.len() == MAX_TRAINS {
            self.send(clock::now());
        }
        let last = self.trains.last_mut().filter(|train| train.takes(dest, len));
        let id = last.as_ref().map_or(0, |train| train.count);
        build(&mut self.staging[self.used..self.used + len], (dest, id), headers, payload_len, fill)?;
        if let Some(train) = last {
            train.count += 1;
            train.len += len;
        } else {
            self.trains.push(Train { dest: dest.clone(), start: self.used, len, segment: len, count: 1 });
        }
        self.used += len;
        Ok(())
    }

    /// Sends everything, in the order of appending for each destination. Non-blocking, but that a full socket buffer is
    /// given a millisecond in all. What the kernel doesn't take is counted and lost: retransmission fixes it. `now` is the
    /// present, at most half a millisecond ago.
    pub fn flush(&mut self, now: Instant) -> Flushed {
        self.send(now);
        std::mem::take(&mut self.early)
    }

    /// Shows all packets to `tap` from now on.
    pub fn set_tap(&mut self, tap: Option<&'static dyn OutgoingTap>) {
        self.tap = tap;
    }

    fn send(&mut self, now: Instant) {
        if let Some(tap) = self.tap {
            // All packets of a tap are either its own or to be sent: trains stay whole.
            self.trains.retain(|train| {
                let bytes = &mut self.staging[train.start..train.start + train.len];
                let packets = bytes.chunks_mut(train.segment).enumerate();
                packets.fold(true, |send, (id, packet)| tap.outgoing(&train.dest, id as u16, packet) && send)
            });
            tap.flushed();
        }
        if !self.trains.is_empty() {
            let flushed = send::send(&mut self.staging[..self.used], &mut self.trains, &mut self.many, now);
            self.early.sent += flushed.sent;
            self.early.dropped += flushed.dropped;
            self.trains.clear();
        }
        self.used = 0;
    }
}

/// Bytes of a packet, BTH to ICRC; `None`: too many for a number.
#[inline(always)]
fn packet_len(headers: &Headers, payload_len: usize) -> Option<usize> {
    payload_len.checked_add(headers.len() + payload_len.wrapping_neg() % 4 + ICRC_LEN)
}

/// Writes a packet, which has the length of `packet`, for this destination and with this IPv4 identification; `fill` as in
/// [`TxBatch::packet`].
#[inline(always)]
fn build<E>(
    packet: &mut [u8],
    (dest, id): (&Dest, u16),
    headers: &Headers,
    payload_len: usize,
    fill: impl FnOnce(&mut [u8], u32) -> Result<u32, E>,
) -> Result<(), PushError<E>> {
    let (len, pad) = (packet.len(), payload_len.wrapping_neg() % 4);
    headers.emit_padded(pad as u8, packet).map_err(PushError::Headers)?;
    let (emitted, rest) = packet.split_at_mut(headers.len());
    let (payload, end) = rest.split_at_mut(payload_len);
    let mut icrc = dest.flow.start(len, id);
    icrc.bth(emitted);
    if payload_len > 0 {
        icrc.took(payload_len, fill(payload, icrc.so_far()).map_err(PushError::Fill)?);
    }
    let (padding, place) = end.split_at_mut(pad);
    padding.fill(0);
    icrc.update(padding);
    place.copy_from_slice(&icrc.finish());
    Ok(())
}

/// Builds a packet in `room` and sends it, before anything that waits in a batch; `fill` as in [`TxBatch::packet`], `now` as in
/// [`TxBatch::flush`]. No tap sees it.
///
/// # Errors
/// See [`PushError`], which a packet that doesn't fit into `room` is too long for; nothing was sent then.
#[inline(always)]
pub fn send_at_once<E>(
    room: &mut [u8],
    dest: &Dest,
    headers: &Headers,
    (payload_len, now): (usize, Instant),
    fill: impl FnOnce(&mut [u8], u32) -> Result<u32, E>,
) -> Result<(), PushError<E>> {
    let packet = packet_len(headers, payload_len).and_then(|len| room.get_mut(..len));
    let packet = packet.ok_or(PushError::TooLong(payload_len))?;
    build(packet, (dest, 0), headers, payload_len, fill)?;
    if !send::plain(dest, packet, now) {
        send_alone(dest, packet);
    }
    Ok(())
}

/// Sends one packet that is complete as it is.
#[cold]
#[inline(never)]
pub fn send_alone(dest: &Dest, packet: &mut [u8]) -> Flushed {
    let len = packet.len();
    let train = Train { dest: dest.clone(), start: 0, len, segment: len, count: 1 };
    send::send(packet, &mut [train], &mut None, clock::now())
}
