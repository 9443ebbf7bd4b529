//! XRC between the processes of a host: which file a domain is, what a target and the processes with its SRQs or handles of it write to
//! one another, the table of their connections, numbers of SRQs.
//!
//! In here: the messages, and both ends of handles.
//! Out of here: queue pairs, and what they make of messages (`ferroce_nic`).

#![forbid(unsafe_code)]

mod connections;
mod guest;
pub mod handle_message;
pub mod message;
mod process;
mod remote;
mod srq_numbers;

pub use connections::{ConnectError, ConnectionEnd, Connections, Target};
pub use guest::Guest;
pub use process::{SrqProcess, grant_handle, receive, send, send_event};
pub use remote::{HandleOwner, Remote};
pub use srq_numbers::SrqTable;

use ferroce_os::sys;
use ferroce_types::{Error, Result};
use std::os::fd::RawFd;

/// What makes two domains the same: the device, and the inode behind the descriptor.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DomainFile {
    device: String,
    dev: u64,
    ino: u64,
}

impl DomainFile {
    /// The file behind a descriptor, for the device with this name.
    ///
    /// # Errors
    /// EBADF when there is none.
    pub fn behind(device: &str, fd: RawFd) -> Result<Self> {
        let (dev, ino) = sys::device_and_inode(fd).map_err(Error::os("the descriptor of an XRC domain"))?;
        Ok(Self { device: device.into(), dev, ino })
    }
}

/// What all handles of a domain have in common.
#[derive(Debug)]
pub struct Domain {
    /// By which other processes may have it too.
    pub file: Option<DomainFile>,
}
