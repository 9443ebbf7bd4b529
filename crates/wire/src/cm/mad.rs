//! The MAD around a message (IBTA 13.4.2, 16.7.1).

use super::fields::{DATA_LEN, Data};
use super::{CommIds, DisconnectRequest, Mra, Reject, Reply, Request, SidrReply, SidrRequest};

/// Bytes of a MAD, whatever is in it.
pub const MAD_LEN: usize = 256;
const HEADER_LEN: usize = MAD_LEN - DATA_LEN;

const BASE_VERSION: u8 = 1;
/// Communication management.
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
/// `ComMgtSend`, the only one that messages of the communication manager have.
const METHOD: u8 = 0x03;

const REQ: u16 = 0x10;
const MRA: u16 = 0x11;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

/// Why bytes aren't a message of the communication manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MadError {
    /// It isn't 256 bytes.
    Length,
    /// Another class of management, version or method.
    Class,
    /// An attribute that isn't known, or that RoCE has no use for (LAP, APR).
    Attribute(u16),
}

/// A message of the communication manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// REQ.
    Request(Request),
    /// MRA.
    Mra(Mra),
    /// REJ.
    Reject(Reject),
    /// REP.
    Reply(Reply),
    /// RTU: the requester is ready.
    ReadyToUse(CommIds),
    /// DREQ.
    DisconnectRequest(DisconnectRequest),
    /// DREP: the connection is over.
    DisconnectReply(CommIds),
    /// SIDR_REQ.
    SidrRequest(SidrRequest),
    /// SIDR_REP.
    SidrReply(SidrReply),
}

impl Message {
    /// What the specification calls it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Request(_) => "REQ",
            Self::Mra(_) => "MRA",
            Self::Reject(_) => "REJ",
            Self::Reply(_) => "REP",
            Self::ReadyToUse(_) => "RTU",
            Self::DisconnectRequest(_) => "DREQ",
            Self::DisconnectReply(_) => "DREP",
            Self::SidrRequest(_) => "SIDR_REQ",
            Self::SidrReply(_) => "SIDR_REP",
        }
    }
}

/// A message in its MAD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad {
    /// Transaction ID: an answer has that of its question, and nothing depends on it.
    pub transaction: u64,
    /// The message.
    pub message: Message,
}

impl Mad {
    /// Reads a MAD.
    ///
    /// # Errors
    /// See [`MadError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, MadError> {
        let bytes: &[u8; MAD_LEN] = bytes.try_into().map_err(|_| MadError::Length)?;
        let Some((header, data)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(MadError::Length);
        };
        let data: &Data = data.try_into().map_err(|_| MadError::Length)?;
        let [base, class, version, method, ..] = *header;
        if [base, class, version, method] != [BASE_VERSION, CLASS, CLASS_VERSION, METHOD] {
            return Err(MadError::Class);
        }
        let modifier = u32::from_be_bytes([header[20], header[21], header[22], header[23]]);
        let message = match u16::from_be_bytes([header[16], header[17]]) {
            REQ => Message::Request(Request::parse(data, modifier)),
            MRA => Message::Mra(Mra::parse(data)),
            REJ => Message::Reject(Reject::parse(data)),
            REP => Message::Reply(Reply::parse(data, modifier)),
            RTU => Message::ReadyToUse(CommIds::parse(data)),
            DREQ => Message::DisconnectRequest(DisconnectRequest::parse(data)),
            DREP => Message::DisconnectReply(CommIds::parse(data)),
            SIDR_REQ => Message::SidrRequest(SidrRequest::parse(data)),
            SIDR_REP => Message::SidrReply(SidrReply::parse(data, modifier)),
            other => return Err(MadError::Attribute(other)),
        };
        let transaction = [8, 9, 10, 11, 12, 13, 14, 15].map(|at| header[at]);
        Ok(Self { transaction: u64::from_be_bytes(transaction), message })
    }

    /// The bytes of the MAD.
    #[must_use]
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let mut data = [0; DATA_LEN];
        let mut modifier = 0;
        let attribute = match &self.message {
            Message::Request(m) => {
                modifier = m.emit(&mut data);
                REQ
            }
            Message::Mra(m) => {
                m.emit(&mut data);
                MRA
            }
            Message::Reject(m) => {
                m.emit(&mut data);
                REJ
            }
            Message::Reply(m) => {
                modifier = m.emit(&mut data);
                REP
            }
            Message::ReadyToUse(m) => {
                m.emit(&mut data);
                RTU
            }
            Message::DisconnectRequest(m) => {
                m.emit(&mut data);
                DREQ
            }
            Message::DisconnectReply(m) => {
                m.emit(&mut data);
                DREP
            }
            Message::SidrRequest(m) => {
                m.emit(&mut data);
                SIDR_REQ
            }
            Message::SidrReply(m) => {
                modifier = m.emit(&mut data);
                SIDR_REP
            }
        };
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD]);
        bytes[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
        bytes[HEADER_LEN..].copy_from_slice(&data);
        bytes
    }
}
