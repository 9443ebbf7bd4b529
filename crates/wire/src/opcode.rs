//! BTH opcodes (InfiniBand Architecture Specification 1.7, 9.2.1, table 38).

/// The transport service in an opcode's top three bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// Reliable connection, 000.
    Rc,
    /// Unreliable connection, 001.
    Uc,
    /// Unreliable datagram, 011.
    Ud,
    /// Congestion notification (annex A17.9.3), opcode 0x81.
    Cnp,
    /// Extended reliable connection (annex A14), 101.
    Xrc,
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
