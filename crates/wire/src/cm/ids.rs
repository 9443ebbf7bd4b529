//! Messages with little more than the two communication IDs: RTU, MRA, DREQ and DREP (IBTA 12.6.6 to 12.6.11). Their private
//! data is ignored.

use super::Rejected;
use super::fields::{Data, put_u24, put_u32, u24_at, u32_at};

/// The communication IDs of a connection, as a message's sender calls them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CommIds {
    /// The sender's.
    pub local: u32,
    /// The receiver's.
    pub remote: u32,
}

impl CommIds {
    /// Of no connection.
    pub const NONE: Self = Self { local: 0, remote: 0 };

    pub(super) fn parse(data: &Data) -> Self {
        Self { local: u32_at(data, 0), remote: u32_at(data, 4) }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        put_u32(data, 0, self.local);
        put_u32(data, 4, self.remote);
    }
}

/// A request for a disconnection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DisconnectRequest {
    /// Of the connection.
    pub ids: CommIds,
    /// The receiver's QPN, 24 bits.
    pub remote_qpn: u32,
}

impl DisconnectRequest {
    pub(super) fn parse(data: &Data) -> Self {
        Self { ids: CommIds::parse(data), remote_qpn: u24_at(data, 8) }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        self.ids.emit(data);
        put_u24(data, 8, self.remote_qpn);
    }
}

/// A message was received, and its answer takes a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mra {
    /// Of the connection.
    pub ids: CommIds,
    /// Which message.
    pub received: Rejected,
    /// How long the answer may take, 5 bits: 4.096 µs · 2^n.
    pub service_timeout: u8,
}

impl Mra {
    pub(super) fn parse(data: &Data) -> Self {
        Self {
            ids: CommIds::parse(data),
            received: Rejected::of(data[8] >> 6),
            service_timeout: data[9] >> 3,
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        self.ids.emit(data);
        data[8] = self.received.code() << 6;
        data[9] = self.service_timeout << 3;
    }
}
