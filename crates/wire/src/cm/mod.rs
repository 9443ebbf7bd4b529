//! Messages of the communication manager (IBTA volume 1, chapter 12) in their MADs (13.4).
//!
//! In here: each message with its fields, and the header that the IP port spaces put before the private data (annex A11).
//! Out of here: what the messages mean to a connection (`ferroce_cm`).

mod ip;
mod reject;
mod reply;
mod request;
mod service;
mod sidr;

pub use ip::{IP_HEADER_LEN, IpHeader};
pub use reject::{Reject, RejectReason, Rejected};
pub use reply::Reply;
pub use request::{ConnectPath, Request, Transport};
pub use service::{PortSpace, ServiceId};
pub use sidr::{SidrReply, SidrRequest, SidrStatus};

/// Extended communication establishment: what both ends of a connection may agree on beyond the specification. All zero is none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ece {
    /// Whose options they are, 24 bits.
    pub vendor_id: u32,
    /// The options, in the MAD's attribute modifier.
    pub options: u32,
}
