//! From bytes to [`Headers`] and back.
//!
//! Which extension headers a packet has follows from its opcode alone, and they come in the order of
//! IBTA 9.2 (table 38) and annexes A14 and A19: XRCETH, DETH, FETH, RETH or AtomicETH, ImmDt or IETH, AETH, AtomicAckETH.

use crate::opcode::Extensions;
use crate::{Aeth, AtomicEth, BTH_LEN, Bth, Deth, Feth, Headers, Opcode, Reth};
use core::fmt;

/// Why bytes aren't the headers of a packet. (IBTA 9.6.1: such packets are dropped in silence.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParseError {
    /// Fewer bytes than the opcode's headers take.
    Truncated {
        /// Bytes that there are.
        have: usize,
        /// Bytes that there should be at least.
        need: usize,
    },
    /// The transport header version isn't 0.
    Version(u8),
    /// A reserved opcode, or one of a service that isn't spoken here.
    Opcode(u8),
}

/// Why headers weren't emitted. Nothing was written then.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EmitError {
    /// The buffer is shorter than the headers.
    Short {
        /// Bytes of the buffer.
        have: usize,
        /// Bytes of the headers.
        need: usize,
    },
    /// The optional headers that are `Some` aren't those that the opcode has, or there is no such opcode.
    Mismatch(Opcode),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { have, need } => write!(f, "{have} bytes, but the headers take {need}"),
            Self::Version(version) => write!(f, "transport header version {version}"),
            Self::Opcode(opcode) => write!(f, "unknown opcode {opcode:#04x}"),
        }
    }
}

impl core::error::Error for ParseError {}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { have, need } => write!(f, "the headers take {need} bytes, the buffer has {have}"),
            Self::Mismatch(opcode) => write!(f, "the headers don't fit the opcode {opcode:?}"),
        }
    }
}

impl core::error::Error for EmitError {}

const LOW_24_BITS: u32 = 0x00ff_ffff;

/// Takes fields off the front of a slice.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

/// Puts fields to the front of a slice; what doesn't fit is left out (the caller has checked the length).
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some((head, rest)) = core::mem::take(&mut self.0).split_first_chunk_mut::<N>() {
            *head = bytes;
            self.0 = rest;
        }
    }

    fn u32(&mut self, value: u32) {
        self.put(value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(value.to_be_bytes());
    }
}

impl Bth {
    #[inline]
    pub(crate) fn parse(bytes: &[u8; BTH_LEN]) -> Result<Self, ParseError> {
        let [op, flags, pkey_hi, pkey_lo, ecn, qp2, qp1, qp0, ack, psn2, psn1, psn0] = *bytes;
        let version = flags & 0x0f;
        if version != 0 {
            return Err(ParseError::Version(version));
        }
        Ok(Self {
            opcode: Opcode::from_u8(op).ok_or(ParseError::Opcode(op))?,
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            pkey: u16::from_be_bytes([pkey_hi, pkey_lo]),
            fecn: ecn & 0x80 != 0,
            becn: ecn & 0x40 != 0,
            dest_qp: u32::from_be_bytes([0, qp2, qp1, qp0]),
            ack_request: ack & 0x80 != 0,
            psn: u32::from_be_bytes([0, psn2, psn1, psn0]),
        })
    }

    #[inline(always)]
    fn emit(&self, pad: u8) -> [u8; BTH_LEN] {
        let [_, qp2, qp1, qp0] = self.dest_qp.to_be_bytes();
        let [_, psn2, psn1, psn0] = self.psn.to_be_bytes();
        let [pkey_hi, pkey_lo] = self.pkey.to_be_bytes();
        [
            self.opcode.to_u8(),
            u8::from(self.solicited) << 7 | u8::from(self.migrated) << 6 | (pad & 3) << 4,
            pkey_hi,
            pkey_lo,
            u8::from(self.fecn) << 7 | u8::from(self.becn) << 6,
            qp2,
            qp1,
            qp0,
            u8::from(self.ack_request) << 7,
            psn2,
            psn1,
            psn0,
        ]
    }
}

impl Reth {
    #[inline]
    pub(crate) fn parse(bytes: &[u8; 16]) -> Self {
        let [v0, v1, v2, v3, v4, v5, v6, v7, k0, k1, k2, k3, l0, l1, l2, l3] = *bytes;
        Self {
            va: u64::from_be_bytes([v0, v1, v2, v3, v4, v5, v6, v7]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
            dma_len: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }
}

impl AtomicEth {
    #[inline]
    pub(crate) fn parse(bytes: &[u8; 28]) -> Option<Self> {
        let mut r = Reader(bytes);
        Some(Self { va: r.u64()?, rkey: r.u32()?, swap_or_add: r.u64()?, compare: r.u64()? })
    }
}

impl Headers {
    /// Reads the headers at the front of `bytes`; the second value is how many bytes they take. Reserved bits are
    /// ignored, as IBTA 9.2 asks.
    ///
    /// # Errors
    /// See [`ParseError`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        let short = |need| ParseError::Truncated { have: bytes.len(), need };
        let (bth, rest) = bytes.split_first_chunk::<BTH_LEN>().ok_or(short(BTH_LEN))?;
        let mut headers = Self::new(Bth::parse(bth)?);
        let len = headers.len();
        headers.parse_extensions(rest).ok_or(short(len))?;
        Ok((headers, len))
    }

    #[inline]
    fn parse_extensions(&mut self, bytes: &[u8]) -> Option<()> {
        let extensions = self.bth.opcode.extensions();
        if extensions.bits() == 0 {
            return Some(());
        }
        let mut r = Reader(bytes);
        if extensions.has(Extensions::XRCETH) {
            self.xrc_srqn = Some(r.u32()? & LOW_24_BITS);
        }
        if extensions.has(Extensions::DETH) {
            self.deth = Some(Deth { qkey: r.u32()?, src_qp: r.u32()? & LOW_24_BITS });
        }
        if extensions.has(Extensions::FETH) {
            let [_, _, _, bits] = r.array()?;
            self.flush = Some(Feth { placement: bits & 0x0f, selectivity: bits >> 4 & 3 });
        }
        if extensions.has(Extensions::RETH) {
            self.reth = Some(Reth::parse(&r.array()?));
        }
        if extensions.has(Extensions::ATOMIC_ETH) {
            self.atomic = Some(AtomicEth::parse(&r.array()?)?);
        }
        if extensions.has(Extensions::IMM_DT) {
            self.immediate = Some(r.array()?);
        }
        if extensions.has(Extensions::IETH) {
            self.invalidate_rkey = Some(r.u32()?);
        }
        if extensions.has(Extensions::AETH) {
            let [syndrome, msn2, msn1, msn0] = r.array()?;
            self.aeth = Some(Aeth { syndrome, msn: u32::from_be_bytes([0, msn2, msn1, msn0]) });
        }
        if extensions.has(Extensions::ATOMIC_ACK_ETH) {
            self.atomic_ack = Some(r.u64()?);
        }
        Some(())
    }

    /// Bytes that the headers take on the wire; follows from the opcode alone.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // headers are never empty
    pub const fn len(&self) -> usize {
        self.bth.opcode.headers_len()
    }

    /// Bytes of a packet with these headers and so many bytes of payload, from BTH to ICRC.
    #[must_use]
    #[inline]
    pub const fn packet_len(&self, payload: usize) -> usize {
        self.len() + payload.next_multiple_of(4) + crate::ICRC_LEN
    }

    /// The optional headers that are there.
    #[inline(always)]
    fn present(&self) -> u16 {
        let bit = |is_there, bit| if is_there { bit } else { 0 };
        bit(self.xrc_srqn.is_some(), Extensions::XRCETH)
            | bit(self.deth.is_some(), Extensions::DETH)
            | bit(self.flush.is_some(), Extensions::FETH)
            | bit(self.reth.is_some(), Extensions::RETH)
            | bit(self.atomic.is_some(), Extensions::ATOMIC_ETH)
            | bit(self.immediate.is_some(), Extensions::IMM_DT)
            | bit(self.invalidate_rkey.is_some(), Extensions::IETH)
            | bit(self.aeth.is_some(), Extensions::AETH)
            | bit(self.atomic_ack.is_some(), Extensions::ATOMIC_ACK_ETH)
    }

    /// At least the optional headers are there that the opcode has.
    #[must_use]
    #[inline]
    pub fn has_extensions(&self) -> bool {
        self.bth.opcode.extensions().bits() & !self.present() == 0
    }

    /// Exactly the optional headers are there that the opcode has.
    #[must_use]
    #[inline(always)]
    pub fn fits_opcode(&self) -> bool {
        let opcode = self.bth.opcode;
        Opcode::from_u8(opcode.to_u8()) == Some(opcode) && self.present() == opcode.extensions().bits()
    }

    /// Writes the headers to the front of `buffer` and returns how many bytes they took ([`Headers::len`]). Of fields
    /// with fewer bits on the wire (PSN, QPN, MSN, SRQN: 24; placement: 4; pad, selectivity: 2) the higher bits are cut off; reserved bits are 0.
    ///
    /// # Errors
    /// See [`EmitError`]; `buffer` is unchanged then.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        self.emit_padded(self.bth.pad, buffer)
    }

    /// As [`Headers::emit`], with so many pad bytes instead of those in the BTH.
    ///
    /// # Errors
    /// As [`Headers::emit`].
    #[inline(always)]
    pub fn emit_padded(&self, pad: u8, buffer: &mut [u8]) -> Result<usize, EmitError> {
        if !self.fits_opcode() {
            return Err(EmitError::Mismatch(self.bth.opcode));
        }
        let (have, need) = (buffer.len(), self.len());
        let mut w = Writer(buffer.get_mut(..need).ok_or(EmitError::Short { have, need })?);
        w.put(self.bth.emit(pad));
        if need == BTH_LEN {
            return Ok(need);
        }
        if let Some(srqn) = self.xrc_srqn {
            w.u32(srqn & LOW_24_BITS);
        }
        if let Some(deth) = self.deth {
            w.u32(deth.qkey);
            w.u32(deth.src_qp & LOW_24_BITS);
        }
        if let Some(flush) = self.flush {
            w.put([0, 0, 0, (flush.selectivity & 3) << 4 | (flush.placement & 0x0f)]);
        }
        if let Some(reth) = self.reth {
            w.u64(reth.va);
            w.u32(reth.rkey);
            w.u32(reth.dma_len);
        }
        if let Some(atomic) = self.atomic {
            w.u64(atomic.va);
            w.u32(atomic.rkey);
            w.u64(atomic.swap_or_add);
            w.u64(atomic.compare);
        }
        if let Some(immediate) = self.immediate {
            w.put(immediate);
        }
        if let Some(rkey) = self.invalidate_rkey {
            w.u32(rkey);
        }
        if let Some(aeth) = self.aeth {
            w.u32(u32::from(aeth.syndrome) << 24 | (aeth.msn & LOW_24_BITS));
        }
        if let Some(original) = self.atomic_ack {
            w.u64(original);
        }
        Ok(need)
    }
}
