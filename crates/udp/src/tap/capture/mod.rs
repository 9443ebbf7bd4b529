//! The packet capture: `FERROCE_CAPTURE=FILE.pcapng`, for Wireshark and its like.
//!
//! Every packet is written as it is on the wire, with IP and UDP headers, whichever fabric carries it; of raw packet QPs the frames
//! that they send, and the received frames that a flow takes. Processes append to one file: each block goes out in one `write` to a
//! descriptor in append mode, so blocks of several processes, and of a child after `fork`, never mix. Timestamps are in
//! nanoseconds, and each packet is marked as sent or received. A capture of two processes of one host contains each of their
//! packets twice, once each way.
//!
//! Nothing is buffered, allocated or locked here. When a write fails (a full disk), this process stops capturing, and logs that
//! once. It also stops when the reader of a FIFO has read nothing for a second: a queue pair may wait for the capture.

use super::Direction;
use ferroce_os::sync::MadeOnce;
use ferroce_os::{own_file, sys};
pub use ferroce_pcapng::IpUdpHeader;
use ferroce_pcapng::{Interface, PacketBlock, file_header, headed, ip_udp_bytes, trailer};
use ferroce_wire::Headers;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The environment variable.
pub const VARIABLE: &str = "FERROCE_CAPTURE";

/// Bytes of a message that are kept where a packet is a whole message and has no MTU.
pub const MESSAGE_BYTES: usize = 4096;

/// How long a block waits for room in a FIFO.
const PATIENCE: Duration = Duration::from_secs(1);

/// Pieces a packet may come in.
const PIECES: usize = 6;

/// A capture file that this process appends to.
#[derive(Debug)]
pub struct Capture {
    file: File,
    path: PathBuf,
    /// A block that isn't written whole has no room. (A FIFO may have some for the rest later.)
    is_regular: bool,
    /// Device and inode of the file.
    identity: (u64, u64),
    failed: AtomicBool,
}

/// Makes an empty capture file, or empties one that is there. (Processes that find none make it themselves.)
///
/// # Errors
/// Those of opening and writing the file; it is another user's.
pub fn create(path: &Path) -> io::Result<()> {
    let mut file = own_file::open(path, libc::O_WRONLY)?;
    file.set_len(0)?;
    file.write_all(&file_header())
}

impl Capture {
    /// The capture of this process, as [`VARIABLE`] was at the first call; `None` when it is unset or empty, or when the
    /// file can't be written (which is logged).
    #[inline]
    #[must_use]
    pub fn global() -> Option<&'static Self> {
        static GLOBAL: MadeOnce<Capture> = MadeOnce::new();
        GLOBAL.get(|| {
            let path = ferroce_os::setting(VARIABLE).filter(|path| !path.is_empty())?;
            Self::open(Path::new(&path))
                .inspect_err(|error| tracing::error!("no packets are captured: {}: {error}", path.display()))
                .ok()
        })
    }

    /// Opens a capture file for appending, and makes it where there is none.
    ///
    /// # Errors
    /// Those of opening and writing the file; it is another user's.
    pub fn open(path: &Path) -> io::Result<Self> {
        // The program may change its working directory later.
        let path = std::path::absolute(path)?;
        let mut file = own_file::open(&path, libc::O_WRONLY | libc::O_APPEND)?;
        let metadata = file.metadata()?;
        if metadata.is_file() && metadata.len() == 0 {
            // If another process does the same now the file has two headers, which is allowed: a second begins a new
            // section, and what comes first in any case is a header.
            file.write_all(&file_header())?;
        }
        let (is_regular, identity) = (metadata.is_file(), (metadata.dev(), metadata.ino()));
        Ok(Self { file, path, is_regular, identity, failed: AtomicBool::new(false) })
    }

    /// Writes a packet that is complete: `pieces` together are its bytes from BTH to ICRC.
    /// At most six pieces; of more, those after the sixth are left out as if they had been cut off.
    pub fn packet(&self, direction: Direction, ip_udp: &IpUdpHeader, pieces: &[&[u8]]) {
        let len = pieces.iter().map(|p| p.len()).sum();
        self.write(direction, ip_udp, len, pieces);
    }

    /// Writes a packet of a fabric that needs neither pad nor ICRC, as it would be on the wire. `payload` has the
    /// message's `payload_len` bytes or as many of its first as the caller cares to bring; [`MESSAGE_BYTES`] are kept,
    /// and a packet that has more is marked as cut off. (One too long for an IP packet is shown as the longest there
    /// is.)
    pub fn message(
        &self,
        direction: Direction,
        ip_udp: &IpUdpHeader,
        headers: &Headers,
        payload: &[u8],
        payload_len: usize,
    ) {
        let Some(headed) = headed(headers, payload_len) else { return };
        let payload = &payload[..payload.len().min(payload_len).min(MESSAGE_BYTES)];
        let len = headed.packet_len();
        if payload.len() < payload_len {
            self.write(direction, ip_udp, len, &[headed.bytes(), payload]);
            return;
        }
        let icrc = trailer(ip_udp, &headed, payload);
        self.write(direction, ip_udp, len, &[headed.bytes(), payload, headed.pad(), &icrc]);
    }

    /// Writes an Ethernet frame, from its destination on.
    pub fn frame(&self, direction: Direction, bytes: &[u8]) {
        self.block(Interface::Frames, direction, bytes.len(), &[bytes]);
    }

    fn write(&self, direction: Direction, ip_udp: &IpUdpHeader, len: usize, pieces: &[&[u8]]) {
        let pieces = &pieces[..pieces.len().min(PIECES)];
        let headers = ip_udp_bytes(ip_udp, len, pieces);
        let mut all: [&[u8]; PIECES + 1] = [&[]; PIECES + 1];
        all[0] = headers.bytes();
        all[1..=pieces.len()].copy_from_slice(pieces);
        self.block(Interface::Packets, direction, headers.packet_len(), &all[..=pieces.len()]);
    }

    /// Writes what there is of `original` bytes.
    fn block(&self, interface: Interface, direction: Direction, original: usize, pieces: &[&[u8]]) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        let there = pieces.iter().map(|piece| piece.len()).sum();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let Ok(block) = PacketBlock::new(interface, direction, now, (there, original)) else { return };
        let mut slices = [IoSlice::new(&[]); PIECES + 3];
        slices[0] = IoSlice::new(block.front());
        for (slice, piece) in slices[1..].iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
        }
        slices[1 + pieces.len()] = IoSlice::new(block.back());
        if let Err(error) = self.append(&mut slices)
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tracing::error!("no more packets are captured: {}: {error}", self.path.display());
        }
    }

    /// One `writev`. A second one for the rest of a block could come after another process's block: only FIFOs get it, which take more
    /// than 4 KiB (PIPE_BUF) in parts.
    fn append(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        // A program that closes descriptors it didn't open (on becoming a daemon) may have reused ours for a file of its
        // own, which must not get our packets.
        let ours = self.file.metadata().is_ok_and(|m| (m.dev(), m.ino()) == self.identity);
        let reopened;
        let mut file = if ours {
            &self.file
        } else {
            reopened = own_file::open_existing(&self.path, libc::O_WRONLY | libc::O_APPEND)?;
            &reopened
        };
        let mut until = None;
        // What has no bytes is passed over.
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            match file.write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::Error::new(error.kind(), "its reader doesn't read"));
                    }
                    // Interrupted, it writes again.
                    let _ = sys::wait_for(file.as_raw_fd(), libc::POLLOUT, left);
                }
                Err(error) => return Err(error),
                Ok(written) => {
                    IoSlice::advance_slices(&mut slices, written);
                    if self.is_regular && !slices.is_empty() {
                        return Err(io::ErrorKind::StorageFull.into());
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
