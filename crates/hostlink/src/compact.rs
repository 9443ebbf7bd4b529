//! Compact headers: how a record names a packet of a connection that both ends know already.
//!
//! Addresses, traffic class and hop limit of such a packet are those of the connection, so the record leaves them out. What
//! is left lies in native order at fixed places, and a message of up to 40 bytes takes one line of memory.

use ferroce_wire::{Aeth, AtomicEth, Bth, Headers, Opcode, Operation, Reth, Service};

/// Bytes before the payload where the packet names no memory of the receiver.
pub(super) const SHORT: usize = 24;
/// Bytes before the payload where it does.
const LONG: usize = 40;

const SOLICITED: u32 = 1 << 24;
const ACK_REQUEST: u32 = 1 << 25;
/// In place of [`ACK_REQUEST`]: the packet is acknowledged when the consumer's position has passed it.
const BY_POSITION: u32 = 1 << 26;
const PSN: u32 = (1 << 24) - 1;

/// What lies where a payload would, as headers have no place for it: what an atomic swaps in or adds, and what it compares with; or what
/// the memory held, of the answer to one.
pub(super) type Operands = [u64; 2];

/// How many bytes of [`Operands`] a packet of this opcode has.
#[inline]
const fn operands_len(opcode: Opcode) -> usize {
    if opcode.is_atomic() {
        16
    } else if opcode.carries_atomic_ack() {
        8
    } else {
        0
    }
}

/// The first words of a record as they lie in memory, each of two halves in native order: length of the record and a byte each
/// for its kind and the opcode before the partition key; destination QPN and PSN; length of the payload and
/// [`CompactHeaders::word`]; length and key of the memory that is named; its address.
pub(super) type Front = [u64; LONG / 8];

/// The first and the second four bytes of a word.
#[inline]
fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

/// The word of two halves.
#[inline]
fn word_of(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// The length of a record, and its kind.
#[inline]
pub(super) fn length_and_kind(first: u64) -> (usize, u8) {
    let [length, about] = halves(first);
    (length as usize, about.to_ne_bytes()[0])
}

/// The first word of a record without headers.
#[inline]
pub(super) fn first_word(length: usize, kind: u8) -> u64 {
    word_of(length as u32, u32::from_ne_bytes([kind, 0, 0, 0]))
}

/// How syndrome and MSN lie in [`CompactHeaders::word`].
#[inline]
const fn word_of_aeth(aeth: Aeth) -> u32 {
    (aeth.syndrome as u32) << 24 | aeth.msn & PSN
}

/// The headers of a packet of an RC or UC connection, without the fields that its path determines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompactHeaders {
    /// What the packet is.
    pub opcode: Opcode,
    /// Partition key.
    pub pkey: u16,
    /// Destination QPN.
    pub dest_qp: u32,
    /// Packet sequence number.
    psn: u32,
    /// Immediate data, the key to invalidate, or syndrome and MSN of an acknowledgement.
    word: u32,
    /// The memory of the receiver that is named; an atomic has no length.
    reth: Reth,
}

/// The memory that is named by a packet that names none.
const NOWHERE: Reth = Reth { va: 0, rkey: 0, dma_len: 0 };

impl CompactHeaders {
    /// The same headers, without [`CompactHeaders::operands_of`]; `None` for those that don't have this form.
    #[inline]
    pub(super) fn of(headers: &Headers) -> Option<Self> {
        let Headers {
            bth,
            xrc_srqn: None,
            deth: None,
            flush: None,
            reth,
            atomic,
            aeth,
            atomic_ack,
            immediate,
            invalidate_rkey,
        } = headers
        else {
            return None;
        };
        let plain = bth.migrated && bth.pad == 0 && !bth.fecn && !bth.becn;
        let opcode = bth.opcode;
        let fits = opcode.carries_reth() == reth.is_some()
            && opcode.is_atomic() == atomic.is_some()
            && opcode.carries_atomic_ack() == atomic_ack.is_some();
        if !plain || !has_compact_form(opcode) || !fits {
            return None;
        }
        let word = match (aeth, immediate, invalidate_rkey) {
            (Some(aeth), None, None) if bth.opcode.carries_aeth() => word_of_aeth(*aeth),
            (None, Some(immediate), None) if bth.opcode.carries_immediate() => u32::from_ne_bytes(*immediate),
            (None, None, Some(rkey)) if bth.opcode.carries_invalidate() => *rkey,
            (None, None, None) if !carries_word(bth.opcode) => 0,
            _ => return None,
        };
        let flag = |is: bool, flag| if is { flag } else { 0 };
        Some(Self {
            opcode: bth.opcode,
            pkey: bth.pkey,
            dest_qp: bth.dest_qp,
            psn: bth.psn & PSN | flag(bth.solicited, SOLICITED) | flag(bth.ack_request, ACK_REQUEST),
            word,
            reth: match atomic {
                Some(atomic) => Reth { va: atomic.va, rkey: atomic.rkey, dma_len: 0 },
                None => reth.unwrap_or(NOWHERE),
            },
        })
    }

    /// What goes in place of a payload, and how many bytes of it: of an atomic or its answer.
    #[inline]
    pub(super) fn operands_of(headers: &Headers) -> Option<([u8; size_of::<Operands>()], usize)> {
        let operands = match (&headers.atomic, headers.atomic_ack) {
            (Some(atomic), _) => [atomic.swap_or_add, atomic.compare],
            (None, Some(original)) => [original, 0],
            (None, None) => return None,
        };
        let mut bytes = [0; size_of::<Operands>()];
        bytes.as_chunks_mut::<8>().0.iter_mut().zip(operands).for_each(|(to, word)| *to = word.to_ne_bytes());
        Some((bytes, operands_len(headers.bth.opcode)))
    }

    /// Those of a SEND of one packet that asks for an acknowledgement, `by_position` or as a packet: its opcode, the
    /// connection's partition key and destination QPN, its PSN, whether it is solicited, and its immediate data.
    #[must_use]
    #[inline]
    pub fn of_send(
        opcode: Opcode,
        (pkey, dest_qp): (u16, u32),
        psn: u32,
        (solicited, word): (bool, u32),
        by_position: bool,
    ) -> Self {
        let psn = psn & PSN
            | if by_position { BY_POSITION } else { ACK_REQUEST }
            | if solicited { SOLICITED } else { 0 };
        Self { opcode, pkey, dest_qp, psn, word, reth: NOWHERE }
    }

    /// Those of a READ or an atomic: its opcode, the connection's partition key and destination QPN, its PSN, and the memory that is
    /// asked for.
    #[must_use]
    #[inline]
    pub fn of_fetch(opcode: Opcode, (pkey, dest_qp): (u16, u32), psn: u32, reth: Reth) -> Self {
        Self { opcode, pkey, dest_qp, psn: psn & PSN | ACK_REQUEST, word: 0, reth }
    }

    /// Those of the answer to one, with what acknowledges it.
    #[must_use]
    #[inline]
    pub fn of_answer(opcode: Opcode, (pkey, dest_qp): (u16, u32), psn: u32, aeth: Aeth) -> Self {
        Self { opcode, pkey, dest_qp, psn: psn & PSN, word: word_of_aeth(aeth), reth: NOWHERE }
    }

    /// The memory of the receiver that is named. An atomic has no length.
    #[must_use]
    #[inline]
    pub const fn reth(&self) -> Reth {
        self.reth
    }

    /// What acknowledges, of an opcode that carries it.
    #[must_use]
    #[inline]
    pub const fn aeth(&self) -> Aeth {
        Aeth { syndrome: (self.word >> 24) as u8, msn: self.word & PSN }
    }

    /// Packet sequence number.
    #[must_use]
    #[inline]
    pub const fn psn(&self) -> u32 {
        self.psn & PSN
    }

    /// Its completion is solicited.
    #[must_use]
    #[inline]
    pub const fn is_solicited(&self) -> bool {
        self.psn & SOLICITED != 0
    }

    /// The requester wants an acknowledgement, as a packet or by position.
    #[must_use]
    #[inline]
    pub const fn asks_for_ack(&self) -> bool {
        self.psn & (ACK_REQUEST | BY_POSITION) != 0
    }

    /// The packet waits to be acknowledged by position: see [`Link::send_plain`](crate::Link::send_plain).
    #[must_use]
    #[inline]
    pub const fn is_by_position(&self) -> bool {
        self.psn & BY_POSITION != 0
    }

    /// Of a SEND of one packet: its immediate data, if it has any. `None` for other packets.
    #[must_use]
    #[inline]
    pub const fn immediate_of_send(&self) -> Option<Option<[u8; 4]>> {
        match self.opcode.operation {
            Operation::SendOnly => Some(None),
            Operation::SendOnlyWithImmediate => Some(Some(self.word.to_ne_bytes())),
            _ => None,
        }
    }

    /// How many bytes of [`Operands`] come before the payload.
    #[inline]
    pub(super) const fn operands_len(&self) -> usize {
        operands_len(self.opcode)
    }

    /// The same headers as the transport takes them. The operands are asked for where there are any.
    #[inline]
    pub(super) fn headers(&self, operands: impl FnOnce() -> Operands) -> Headers {
        let Self { opcode, pkey, dest_qp, psn, word, reth } = *self;
        let bth = Bth {
            pkey,
            solicited: psn & SOLICITED != 0,
            ack_request: self.asks_for_ack(),
            ..Bth::new(opcode, dest_qp, psn & PSN)
        };
        let mut headers = Headers::new(bth);
        if opcode.carries_reth() {
            headers.reth = Some(reth);
        } else if opcode.is_atomic() {
            let (Reth { va, rkey, .. }, [swap_or_add, compare]) = (reth, operands());
            headers.atomic = Some(AtomicEth { va, rkey, swap_or_add, compare });
        } else if opcode.carries_atomic_ack() {
            headers.atomic_ack = Some(operands()[0]);
        }
        if opcode.carries_immediate() {
            headers.immediate = Some(word.to_ne_bytes());
        } else if opcode.carries_aeth() {
            headers.aeth = Some(self.aeth());
        } else if opcode.carries_invalidate() {
            headers.invalidate_rkey = Some(word);
        }
        headers
    }

    /// Where the payload begins in the record.
    #[inline]
    pub(super) const fn payload_offset(&self) -> usize {
        if self.opcode.carries_reth() || self.opcode.is_atomic() { LONG } else { SHORT }
    }

    /// The first words of a record of `length` bytes with a payload of `payload`, and how many of them count.
    #[inline]
    pub(super) fn front(&self, kind: u8, length: usize, payload: usize) -> (Front, usize) {
        let Self { opcode, pkey, dest_qp, psn, word, reth } = *self;
        let [low, high] = pkey.to_ne_bytes();
        let about = u32::from_ne_bytes([kind, opcode.to_u8(), low, high]);
        let front = [
            word_of(length as u32, about),
            word_of(dest_qp, psn),
            word_of(payload as u32, word),
            word_of(reth.dma_len, reth.rkey),
            reth.va,
        ];
        (front, self.payload_offset() / 8)
    }

    /// Understands the first words of a record: the headers and the payload's length. `None` for what can't be.
    #[inline]
    pub(super) fn parse(front: &Front) -> Option<(Self, usize)> {
        let [_, opcode, low, high] = halves(front[0])[1].to_ne_bytes();
        let opcode = Opcode::from_u8(opcode)?;
        let ([dest_qp, psn], [payload, word]) = (halves(front[1]), halves(front[2]));
        if !has_compact_form(opcode)
            || dest_qp > PSN
            || psn & !(PSN | SOLICITED | ACK_REQUEST | BY_POSITION) != 0
        {
            return None;
        }
        if psn & BY_POSITION != 0 && !is_plain_send(opcode) {
            return None;
        }
        if (payload as usize) < operands_len(opcode) {
            return None;
        }
        let reth = if opcode.carries_reth() || opcode.is_atomic() {
            let [dma_len, rkey] = halves(front[3]);
            Reth { va: front[4], rkey, dma_len }
        } else {
            NOWHERE
        };
        let pkey = u16::from_ne_bytes([low, high]);
        Some((Self { opcode, pkey, dest_qp, psn, word, reth }, payload as usize))
    }
}

/// Whether the packets of this opcode have no header that a compact record has no place for.
const fn has_compact_form(opcode: Opcode) -> bool {
    matches!(opcode.service, Service::Rc | Service::Uc) && !opcode.carries_feth()
}

/// Whether packets of this opcode may be acknowledged by position.
const fn is_plain_send(opcode: Opcode) -> bool {
    matches!(opcode.service, Service::Rc)
        && matches!(opcode.operation, Operation::SendOnly | Operation::SendOnlyWithImmediate)
}

const fn carries_word(opcode: Opcode) -> bool {
    opcode.carries_aeth() || opcode.carries_immediate() || opcode.carries_invalidate()
}
