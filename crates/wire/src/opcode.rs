//! BTH opcodes (InfiniBand Architecture Specification 1.7, 9.2.1, table 38).

/// The transport service in an opcode's top three bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// Reliable connection, 000.
    Rc = 0b000 << 5,
    /// Unreliable connection, 001.
    Uc = 0b001 << 5,
    /// Unreliable datagram, 011.
    Ud = 0b011 << 5,
    /// Congestion notification (annex A17.9.3), opcode 0x81.
    Cnp = 0b100 << 5,
    /// Extended reliable connection (annex A14), 101.
    Xrc = 0b101 << 5,
}

/// The operation in an opcode's low five bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names are the specification's
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastWithImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyWithImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastWithImmediate = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyWithImmediate = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastWithInvalidate = 0x16,
    SendOnlyWithInvalidate = 0x17,
    /// Annex A19.
    Flush = 0x1c,
    /// Annex A19.
    AtomicWrite = 0x1d,
    /// Only with [`Service::Cnp`] (0x81).
    CongestionNotification = 0x01 | 0x80,
}

/// A BTH opcode: service and operation, in a combination that exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Opcode {
    /// Transport service.
    pub service: Service,
    /// Operation.
    pub operation: Operation,
}

impl Operation {
    /// The operation with these low five bits, without regard to the service. Never a CNP.
    const fn from_low_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0x00 => Self::SendFirst,
            0x01 => Self::SendMiddle,
            0x02 => Self::SendLast,
            0x03 => Self::SendLastWithImmediate,
            0x04 => Self::SendOnly,
            0x05 => Self::SendOnlyWithImmediate,
            0x06 => Self::WriteFirst,
            0x07 => Self::WriteMiddle,
            0x08 => Self::WriteLast,
            0x09 => Self::WriteLastWithImmediate,
            0x0a => Self::WriteOnly,
            0x0b => Self::WriteOnlyWithImmediate,
            0x0c => Self::ReadRequest,
            0x0d => Self::ReadResponseFirst,
            0x0e => Self::ReadResponseMiddle,
            0x0f => Self::ReadResponseLast,
            0x10 => Self::ReadResponseOnly,
            0x11 => Self::Acknowledge,
            0x12 => Self::AtomicAcknowledge,
            0x13 => Self::CompareSwap,
            0x14 => Self::FetchAdd,
            0x16 => Self::SendLastWithInvalidate,
            0x17 => Self::SendOnlyWithInvalidate,
            0x1c => Self::Flush,
            0x1d => Self::AtomicWrite,
            _ => return None,
        })
    }
}

impl Opcode {
    /// The congestion notification packet, 0x81.
    pub const CNP: Self = Self { service: Service::Cnp, operation: Operation::CongestionNotification };
    /// A datagram in one packet, as all MADs are.
    pub const UD_SEND_ONLY: Self = Self { service: Service::Ud, operation: Operation::SendOnly };

    /// The opcode of an operation on a service; `None` where the service doesn't have it.
    #[must_use]
    pub const fn new(service: Service, operation: Operation) -> Option<Self> {
        use Operation as O;
        let exists = match service {
            Service::Rc => !matches!(operation, O::CongestionNotification),
            Service::Xrc => (operation as u8) <= O::SendOnlyWithInvalidate as u8,
            Service::Uc => (operation as u8) <= O::WriteOnlyWithImmediate as u8,
            Service::Ud => matches!(operation, O::SendOnly | O::SendOnlyWithImmediate),
            Service::Cnp => matches!(operation, O::CongestionNotification),
        };
        if exists { Some(Self { service, operation }) } else { None }
    }

    /// The opcode with this value; `None` for reserved values and services that Ferroce doesn't speak (RD).
    #[must_use]
    #[inline]
    pub const fn from_u8(value: u8) -> Option<Self> {
        static ALL: [Option<Opcode>; 256] = {
            let mut all = [None; 256];
            let mut value = 0;
            while value < 256 {
                all[value] = Opcode::of_value(value as u8);
                value += 1;
            }
            all
        };
        ALL[value as usize]
    }

    const fn of_value(value: u8) -> Option<Self> {
        let service = match value >> 5 {
            0b000 => Service::Rc,
            0b001 => Service::Uc,
            0b011 => Service::Ud,
            0b100 if value == 0x81 => return Some(Self::CNP),
            0b101 => Service::Xrc,
            _ => return None,
        };
        match Operation::from_low_bits(value & 0x1f) {
            Some(operation) => Self::new(service, operation),
            None => None,
        }
    }

    /// The value in the BTH.
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        self.service as u8 | (self.operation as u8 & 0x1f)
    }

    /// The extension headers of a packet with this opcode.
    #[inline]
    pub(crate) const fn extensions(self) -> Extensions {
        static ALL: [Extensions; 256] = {
            let mut all = [Extensions(0); 256];
            let mut value = 0;
            while value < 256 {
                if let Some(opcode) = Opcode::of_value(value as u8) {
                    all[value] = Extensions::of(opcode);
                }
                value += 1;
            }
            all
        };
        ALL[self.to_u8() as usize]
    }

    /// First packet of several, of a SEND, a WRITE or a READ response.
    #[must_use]
    pub const fn is_first(self) -> bool {
        use Operation as O;
        matches!(self.operation, O::SendFirst | O::WriteFirst | O::ReadResponseFirst)
    }

    /// Neither first nor last packet of a SEND, a WRITE or a READ response.
    #[must_use]
    pub const fn is_middle(self) -> bool {
        use Operation as O;
        matches!(self.operation, O::SendMiddle | O::WriteMiddle | O::ReadResponseMiddle)
    }

    /// Last packet of several, of a SEND, a WRITE or a READ response.
    #[must_use]
    pub const fn is_last(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::SendLast
                | O::SendLastWithImmediate
                | O::SendLastWithInvalidate
                | O::WriteLast
                | O::WriteLastWithImmediate
                | O::ReadResponseLast
        )
    }

    /// The one packet of a SEND, a WRITE, an atomic write or a READ response.
    #[must_use]
    pub const fn is_only(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::SendOnly
                | O::SendOnlyWithImmediate
                | O::SendOnlyWithInvalidate
                | O::WriteOnly
                | O::WriteOnlyWithImmediate
                | O::ReadResponseOnly
                | O::AtomicWrite
        )
    }

    /// Any packet of a SEND.
    #[must_use]
    pub const fn is_send(self) -> bool {
        use Operation as O;
        (self.operation as u8) <= O::SendOnlyWithImmediate as u8
            || matches!(self.operation, O::SendLastWithInvalidate | O::SendOnlyWithInvalidate)
    }

    /// Any packet of an RDMA WRITE.
    #[must_use]
    pub const fn is_write(self) -> bool {
        use Operation as O;
        let value = self.operation as u8;
        O::WriteFirst as u8 <= value && value <= O::WriteOnlyWithImmediate as u8
    }

    /// Any packet of an RDMA READ response.
    #[must_use]
    pub const fn is_read_response(self) -> bool {
        use Operation as O;
        let value = self.operation as u8;
        O::ReadResponseFirst as u8 <= value && value <= O::ReadResponseOnly as u8
    }

    /// COMPARE & SWAP or FETCH & ADD.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self.operation, Operation::CompareSwap | Operation::FetchAdd)
    }

    /// From the responder to the requester.
    #[must_use]
    pub const fn is_response(self) -> bool {
        use Operation as O;
        self.is_read_response() || matches!(self.operation, O::Acknowledge | O::AtomicAcknowledge)
    }

    /// From the requester to the responder.
    #[must_use]
    pub const fn is_request(self) -> bool {
        !self.is_response() && !matches!(self.operation, Operation::CongestionNotification)
    }

    /// The packet may carry bytes of a message.
    #[must_use]
    pub const fn has_payload(self) -> bool {
        self.is_send()
            || self.is_write()
            || self.is_read_response()
            || matches!(self.operation, Operation::AtomicWrite)
    }

    /// An XRCETH follows the BTH (annex A14: every request of XRC).
    #[must_use]
    pub const fn carries_xrceth(self) -> bool {
        matches!(self.service, Service::Xrc) && self.is_request()
    }

    /// The packet has a DETH.
    #[must_use]
    pub const fn carries_deth(self) -> bool {
        matches!(self.service, Service::Ud)
    }

    /// The packet has a RETH.
    #[must_use]
    pub const fn carries_reth(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::WriteFirst
                | O::WriteOnly
                | O::WriteOnlyWithImmediate
                | O::ReadRequest
                | O::Flush
                | O::AtomicWrite
        )
    }

    /// The packet has a FETH.
    #[must_use]
    pub const fn carries_feth(self) -> bool {
        matches!(self.operation, Operation::Flush)
    }

    /// The packet has an AETH.
    #[must_use]
    pub const fn carries_aeth(self) -> bool {
        self.is_response() && !matches!(self.operation, Operation::ReadResponseMiddle)
    }

    /// The packet has an AtomicAckETH.
    #[must_use]
    pub const fn carries_atomic_ack(self) -> bool {
        matches!(self.operation, Operation::AtomicAcknowledge)
    }

    /// The packet has immediate data.
    #[must_use]
    pub const fn carries_immediate(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::SendLastWithImmediate
                | O::SendOnlyWithImmediate
                | O::WriteLastWithImmediate
                | O::WriteOnlyWithImmediate
        )
    }

    /// The packet has an IETH.
    #[must_use]
    pub const fn carries_invalidate(self) -> bool {
        use Operation as O;
        matches!(self.operation, O::SendLastWithInvalidate | O::SendOnlyWithInvalidate)
    }

    /// Bytes of all headers of a packet with this opcode, BTH included.
    #[must_use]
    #[inline]
    pub const fn headers_len(self) -> usize {
        crate::BTH_LEN + self.extensions().len()
    }
}

/// A set of extension headers, and how many bytes they take together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extensions(u16);

impl Extensions {
    pub(crate) const XRCETH: u16 = 1 << 0;
    pub(crate) const DETH: u16 = 1 << 1;
    pub(crate) const FETH: u16 = 1 << 2;
    pub(crate) const RETH: u16 = 1 << 3;
    pub(crate) const ATOMIC_ETH: u16 = 1 << 4;
    pub(crate) const IMM_DT: u16 = 1 << 5;
    pub(crate) const IETH: u16 = 1 << 6;
    pub(crate) const AETH: u16 = 1 << 7;
    pub(crate) const ATOMIC_ACK_ETH: u16 = 1 << 8;
    /// From this bit on: the bytes.
    const LEN: u32 = 9;

    const fn of(opcode: Opcode) -> Self {
        let all = [
            (opcode.carries_xrceth(), Self::XRCETH, 4),
            (opcode.carries_deth(), Self::DETH, 8),
            (opcode.carries_feth(), Self::FETH, 4),
            (opcode.carries_reth(), Self::RETH, 16),
            (opcode.is_atomic(), Self::ATOMIC_ETH, 28),
            (opcode.carries_immediate(), Self::IMM_DT, 4),
            (opcode.carries_invalidate(), Self::IETH, 4),
            (opcode.carries_aeth(), Self::AETH, 4),
            (opcode.carries_atomic_ack(), Self::ATOMIC_ACK_ETH, 8),
        ];
        let (mut bits, mut i) = (0, 0);
        while i < all.len() {
            let (carries, bit, len) = all[i];
            if carries {
                bits |= bit;
                bits += len << Self::LEN;
            }
            i += 1;
        }
        Self(bits)
    }

    /// The bits of the headers.
    pub(crate) const fn bits(self) -> u16 {
        self.0 & ((1 << Self::LEN) - 1)
    }

    pub(crate) const fn has(self, header: u16) -> bool {
        self.0 & header != 0
    }

    /// Bytes of all of them.
    const fn len(self) -> usize {
        (self.0 >> Self::LEN) as usize
    }
}
