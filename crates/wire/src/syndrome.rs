//! AETH syndromes (IBTA 9.7.5.2.1, tables 44 to 46).

/// A decoded AETH syndrome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Positive acknowledgement.
    Ack {
        /// End-to-end credit code, 5 bits; 31 is "no limit is kept".
        credits: u8,
    },
    /// Receiver not ready.
    RnrNak {
        /// Code of the time to wait, 5 bits (table 45).
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// A value that the specification reserves.
    Reserved(u8),
}

/// Why a responder refused a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names are the specification's (table 46)
pub enum NakCode {
    PsnSequenceError = 0,
    InvalidRequest = 1,
    RemoteAccessError = 2,
    RemoteOperationalError = 3,
    InvalidRdRequest = 4,
}

impl Syndrome {
    /// A positive acknowledgement whose sender keeps no credits, as RoCE adapters send it with an SRQ and rxe always.
    pub const ACK_UNLIMITED: Self = Self::Ack { credits: 31 };

    /// Decodes the byte on the wire.
    #[must_use]
    pub const fn from_u8(value: u8) -> Self {
        let low = value & 0x1f;
        match (value >> 5, low) {
            (0b000, _) => Self::Ack { credits: low },
            (0b001, _) => Self::RnrNak { timer: low },
            (0b011, 0) => Self::Nak(NakCode::PsnSequenceError),
            (0b011, 1) => Self::Nak(NakCode::InvalidRequest),
            (0b011, 2) => Self::Nak(NakCode::RemoteAccessError),
            (0b011, 3) => Self::Nak(NakCode::RemoteOperationalError),
            (0b011, 4) => Self::Nak(NakCode::InvalidRdRequest),
            _ => Self::Reserved(value),
        }
    }

    /// The byte on the wire. Of credits and timer the bits beyond five are cut off.
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0b001 << 5 | timer & 0x1f,
            Self::Nak(code) => 0b011 << 5 | code as u8,
            Self::Reserved(value) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Syndrome;

    #[test]
    fn every_syndrome_byte_survives_the_round_trip() {
        for value in 0..=u8::MAX {
            assert_eq!(Syndrome::from_u8(value).to_u8(), value);
        }
    }
}
