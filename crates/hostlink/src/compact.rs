//! Compact headers: how a cell names a packet of a connection that both ends know already.
//!
//! Addresses, traffic class and hop limit of such a packet are those of the connection, so the cell leaves them out. What
//! is left lies in native order at fixed places, and a message of up to 40 bytes takes the cell alone.

use ferroce_wire::{Aeth, AtomicEth, Bth, Headers, Opcode, Operation, Reth, Service};

/// Bytes before the payload where the packet names no memory of the receiver.
const SHORT: usize = 24;
/// Bytes before the payload where it does.
const LONG: usize = 40;

const SOLICITED: u32 = 1 << 24;
const ACK_REQUEST: u32 = 1 << 25;
/// In place of [`ACK_REQUEST`]: the result of the cell acknowledges the packet, or comes with the answer to it.
const BY_RESULT: u32 = 1 << 26;
/// The payload isn't in the ring: the words of the memory that is named are those of the sender's memory that it lies in.
const OFFERED: u32 = 1 << 27;
const PSN: u32 = (1 << 24) - 1;

/// What lies where a payload would, as headers have no place for it: what an atomic swaps in or adds, and what it compares with; or what
/// the memory held, of the answer to one.
pub(super) type Operands = [u64; 2];

/// How a packet of some opcode lies in a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CellForm {
    opcode: Opcode,
    /// The opcode as a byte.
    value: u8,
    /// Bytes before the payload: [`SHORT`], or [`LONG`] where the packet names memory of the receiver. 0: it has no compact headers.
    offset: usize,
    /// How many bytes of [`Operands`] come before the payload.
    operands: usize,
    /// What may be set beside the PSN.
    flags: u32,
    /// It asks for an answer: a READ or an atomic.
    is_fetch: bool,
}

impl CellForm {
    /// By the value of the opcode.
    const ALL: [Self; 256] = {
        let mut all = [Self::of(Opcode::CNP); 256];
        let mut value = 0;
        while value < all.len() {
            if let Some(opcode) = Opcode::from_u8(value as u8) {
                all[value] = Self::of(opcode);
            }
            value += 1;
        }
        all
    };

    const fn of(opcode: Opcode) -> Self {
        let Opcode { service, operation } = opcode;
        let is_compact = matches!(service, Service::Rc | Service::Uc) && !opcode.carries_feth();
        let names_memory = opcode.carries_reth() || opcode.is_atomic();
        let offset = if names_memory { LONG } else { SHORT };
        let operands = if opcode.is_atomic() {
            16
        } else if opcode.carries_atomic_ack() {
            8
        } else {
            0
        };
        let is_fetch = opcode.is_atomic() || matches!(operation, Operation::ReadRequest);
        let is_send = matches!(operation, Operation::SendOnly | Operation::SendOnlyWithImmediate);
        let is_rc = matches!(service, Service::Rc);
        let flags = SOLICITED
            | ACK_REQUEST
            | if is_rc && (is_send || is_fetch) { BY_RESULT } else { 0 }
            | if is_rc && opcode.is_send() { OFFERED } else { 0 };
        let offset = if is_compact { offset } else { 0 };
        Self { opcode, value: opcode.to_u8(), offset, operands, flags, is_fetch }
    }

    #[inline]
    fn get(value: u8) -> &'static Self {
        static ALL: [CellForm; 256] = CellForm::ALL;
        &ALL[usize::from(value)]
    }

    /// Of a packet of this opcode.
    #[inline]
    fn of_packet(opcode: Opcode) -> &'static Self {
        Self::get(opcode.to_u8())
    }
}

/// The words of a cell before its payload. The upper half of the first is a byte each for the kind of the record and the opcode, and the
/// partition key; its lower half belongs to the ring. The others are two halves each, in native order: destination QPN and PSN; length of
/// the payload and [`CompactHeaders::word`]; length and key of the memory that is named; its address.
pub(super) type Front = [u64; LONG / 8];

/// The first and the second four bytes of a word.
#[inline]
const fn halves(word: u64) -> [u32; 2] {
    let [low, high] = [word as u32, (word >> 32) as u32];
    if cfg!(target_endian = "little") { [low, high] } else { [high, low] }
}

/// The word of two halves.
#[inline]
const fn word_of(first: u32, second: u32) -> u64 {
    let [low, high] = if cfg!(target_endian = "little") { [first, second] } else { [second, first] };
    low as u64 | (high as u64) << 32
}

/// The kind of a record, by the first word of its cell.
#[inline]
pub(super) const fn kind_of(first: u64) -> u8 {
    (first >> 32) as u8
}

/// The QPN that a packet is for, by the second word of its cell.
#[inline]
pub(super) fn dest_of(second: u64) -> u32 {
    halves(second)[0]
}

/// The first words of a cell whose packet has its headers elsewhere: destination QPN, and bytes of the packet.
#[inline]
pub(super) fn front_of_whole(kind: u8, dest_qp: u32, bytes: u32) -> Front {
    [u64::from(kind) << 32, word_of(dest_qp, 0), word_of(bytes, 0), 0, 0]
}

/// Bytes of a payload, or of a packet, by the third word of its cell.
#[inline]
pub(super) fn len_of(third: u64) -> usize {
    halves(third)[0] as usize
}

/// Where the payload of a SEND lies in the memory of its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryOffer {
    /// The key of its region.
    pub key: u32,
    /// Its address, as the key's region counts.
    pub va: u64,
    /// The number of the sender's connection.
    pub connection: u64,
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
    form: &'static CellForm,
    /// Partition key.
    pub pkey: u16,
    /// Destination QPN.
    pub dest_qp: u32,
    /// Packet sequence number.
    psn: u32,
    /// Immediate data, the key to invalidate, or syndrome and MSN of an acknowledgement.
    word: u32,
    /// The memory of the receiver that is named; an atomic has no length. Or that of the sender which is offered; in place of a length it has
    /// the lower half of the connection's number.
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
        let form = CellForm::of_packet(opcode);
        if !plain || form.offset == 0 || !fits {
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
            form,
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
        Some((bytes, CellForm::of_packet(headers.bth.opcode).operands))
    }

    /// Those of a SEND of one packet that asks for an acknowledgement: its opcode, the connection's partition key and destination QPN, its
    /// PSN, whether it is solicited, and its immediate data.
    #[must_use]
    #[inline]
    pub fn of_send(
        opcode: Opcode,
        (pkey, dest_qp): (u16, u32),
        psn: u32,
        (solicited, word): (bool, u32),
    ) -> Self {
        let psn = psn & PSN | ACK_REQUEST | if solicited { SOLICITED } else { 0 };
        Self { form: CellForm::of_packet(opcode), pkey, dest_qp, psn, word, reth: NOWHERE }
    }

    /// The same headers of a SEND, acknowledged by the result of its cell.
    #[must_use]
    #[inline]
    pub const fn acknowledged_by_result(self) -> Self {
        Self { psn: self.psn & !ACK_REQUEST | BY_RESULT, ..self }
    }

    /// The same headers of a packet of a SEND of RC, whose payload the receiver reads from the sender's memory.
    #[must_use]
    pub const fn offering(self, offer: &MemoryOffer) -> Self {
        let reth = Reth { va: offer.va, rkey: offer.key, dma_len: offer.connection as u32 };
        Self { psn: self.psn | OFFERED, reth, ..self }
    }

    /// The payload is to be read from the sender's memory ([`Link::offered`](crate::Link::offered)).
    #[must_use]
    #[inline]
    pub const fn is_offered(&self) -> bool {
        self.psn & OFFERED != 0
    }

    /// Those of a READ or an atomic whose answer comes with the result of its cell: its opcode, the connection's partition key and
    /// destination QPN, its PSN, and the memory that is asked for.
    #[must_use]
    #[inline]
    pub fn of_fetch(opcode: Opcode, (pkey, dest_qp): (u16, u32), psn: u32, reth: Reth) -> Self {
        let form = CellForm::of_packet(opcode);
        Self { form, pkey, dest_qp, psn: psn & PSN | BY_RESULT, word: 0, reth }
    }

    /// What the packet is.
    #[must_use]
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.form.opcode
    }

    /// The memory of the receiver that is named. An atomic has no length.
    #[must_use]
    #[inline]
    pub const fn reth(&self) -> Reth {
        self.reth
    }

    /// What acknowledges, of an opcode that carries it.
    #[inline]
    const fn aeth(&self) -> Aeth {
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

    /// The requester wants an acknowledgement, as a packet or by the result of the cell.
    #[must_use]
    #[inline]
    pub const fn asks_for_ack(&self) -> bool {
        self.psn & (ACK_REQUEST | BY_RESULT) != 0
    }

    /// The result of its cell acknowledges the packet, or comes with its answer: see
    /// [`Link::send_on_connection`](crate::Link::send_on_connection).
    #[must_use]
    #[inline]
    pub const fn is_by_result(&self) -> bool {
        self.psn & BY_RESULT != 0
    }

    /// Bytes of the answer that comes with the result of the cell. They lie where a payload would.
    #[inline]
    pub(super) fn answer_len(&self) -> usize {
        if !self.form.is_fetch || !self.is_by_result() {
            0
        } else if self.form.operands > 0 {
            size_of::<u64>()
        } else {
            self.reth.dma_len as usize
        }
    }

    /// The sender may sleep until it learns what has become of the packet: by the result, or by an answer, as of a READ or an atomic.
    #[inline]
    pub(super) fn is_waited_for(&self) -> bool {
        self.is_by_result() || self.payload_offset() == LONG
    }

    /// Of a SEND of one packet: its immediate data, if it has any. `None` for other packets.
    #[must_use]
    #[inline]
    pub const fn immediate_of_send(&self) -> Option<Option<[u8; 4]>> {
        match self.form.opcode.operation {
            Operation::SendOnly => Some(None),
            Operation::SendOnlyWithImmediate => Some(Some(self.word.to_ne_bytes())),
            _ => None,
        }
    }

    /// How many bytes of [`Operands`] come before the payload.
    #[inline]
    pub(super) fn operands_len(&self) -> usize {
        self.form.operands
    }

    /// The same headers as the transport takes them. The operands are asked for where there are any.
    #[inline]
    pub(super) fn headers(&self, operands: impl FnOnce() -> Operands) -> Headers {
        let Self { form: &CellForm { opcode, .. }, pkey, dest_qp, psn, word, reth } = *self;
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

    /// Where a payload begins that the cell has room for.
    #[inline]
    pub(super) fn payload_offset(&self) -> usize {
        self.form.offset
    }

    /// The words of a cell with a payload of `payload` bytes, and how many of them count.
    #[inline]
    pub(super) fn front(&self, kind: u8, payload: usize) -> (Front, usize) {
        let Self { form, pkey, dest_qp, psn, word, reth } = *self;
        let about = u32::from(kind) | u32::from(form.value) << 8 | u32::from(pkey) << 16;
        let front = [
            u64::from(about) << 32,
            word_of(dest_qp, psn),
            word_of(payload as u32, word),
            word_of(reth.dma_len, reth.rkey),
            reth.va,
        ];
        (front, self.payload_offset() / 8)
    }

    /// Understands the first words of a cell: the headers and the payload's length. `None` for what can't be.
    #[inline]
    pub(super) fn parse(front: &Front) -> Option<(Self, usize)> {
        let about = (front[0] >> 32) as u32;
        let form @ &CellForm { offset, operands, flags, .. } = CellForm::get((about >> 8) as u8);
        let ([dest_qp, psn], [payload, word]) = (halves(front[1]), halves(front[2]));
        if offset == 0 || dest_qp > PSN || psn & !(PSN | flags) != 0 || (payload as usize) < operands {
            return None;
        }
        let is_offered = psn & OFFERED != 0;
        if is_offered && payload == 0 {
            return None;
        }
        let reth = if offset == LONG || is_offered {
            let [dma_len, rkey] = halves(front[3]);
            Reth { va: front[4], rkey, dma_len }
        } else {
            NOWHERE
        };
        let pkey = (about >> 16) as u16;
        Some((Self { form, pkey, dest_qp, psn, word, reth }, payload as usize))
    }
}

const fn carries_word(opcode: Opcode) -> bool {
    opcode.carries_aeth() || opcode.carries_immediate() || opcode.carries_invalidate()
}
