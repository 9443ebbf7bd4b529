//! Messages of the communication manager (IBTA volume 1, chapter 12) in their MADs (13.4).
//!
//! In here: the MAD, each message with its fields, and the header that the IP port spaces put before the private data
//! (annex A11).
//! Out of here: what the messages mean to a connection (`ferroce_cm`).
//!
//! Whatever the fields of a message are, it can be emitted: of a number that has more bits than its field, the low ones are.

mod fields;
mod ids;
mod ip;
mod mad;
mod reject;
mod reply;
mod request;
mod service;
mod sidr;

pub use ids::{CommIds, DisconnectRequest, Mra};
pub use ip::{IP_HEADER_LEN, IpHeader};
pub use mad::{MAD_LEN, Mad, MadError, Message};
pub use reject::{Reject, RejectReason, Rejected};
pub use reply::Reply;
pub use request::{ConnectPath, Request, TransportService};
pub use service::{PortSpace, ServiceId};
pub use sidr::{SidrReply, SidrRequest, SidrStatus};

/// Q_Key of QP 1, which all MADs go from and to (IBTA 3.5.3).
pub const GSI_QKEY: u32 = 0x8001_0000;
/// QPN that all MADs go from and to.
pub const GSI_QPN: u32 = 1;

/// Extended communication establishment: what both ends of a connection may agree on beyond the specification. All zero is none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ece {
    /// Whose options they are, 24 bits.
    pub vendor_id: u32,
    /// The options, in the MAD's attribute modifier.
    pub options: u32,
}
