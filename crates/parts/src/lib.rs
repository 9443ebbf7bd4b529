//! What the adapter's objects are made of: attributes of QPs, address handles, paths, QPNs, settings.
//!
//! In here: data, the rules for it, and what it needs of the fabrics.
//! Out of here: the objects of verbs, and the adapter that has them (`ferroce_nic`).

#![forbid(unsafe_code)]

mod ah;
mod attr;
pub mod counted;
mod frames;
mod kept;
mod numbers;
mod path;
mod poller;
pub mod settings;
pub mod traced;
mod unacked_pace;
mod unread;
pub mod voice;

pub use ah::{Ah, MAX_AH, PathLookup};
pub use attr::{
    AddressVector, AttrRules, MAX_RATE, QpAttr, STATIC_RATES, check, check_av, check_rate, limit_of, mask,
    names, stricter,
};
pub use frames::{FrameQps, FrameSource, drive_frames, frame_qps};
pub use kept::KeptOfQp;
pub use numbers::{HasQpn, MAX_QP, QpTable};
pub use path::{LastFlow, Path, PeerSocket, ResolvedAv};
pub use poller::Poller;
pub use unacked_pace::UnackedPace;
pub use unread::UnreadRecords;
