//! Transfers: sending, receiving, and writing memory that the peer has mapped.

use std::ffi::c_int;
use std::time::Instant;

use crate::connection::{Piece, StreamConnection};
use crate::options::SocketOptions;
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal};
use ferroce_rsocket_protocol::runs::Runs;

use super::StreamSocket;

impl StreamSocket {
    /// Sends from `pieces` of memory.
    ///
    /// # Safety
    /// They are readable.
    pub(crate) unsafe fn send(&self, pieces: &[libc::iovec], flags: c_int) -> Outcome<usize> {
        let total: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let mut piece = Piece::new();
        self.transfer(flags, SocketOptions::send_deadline, |connection, done| {
            if !connection.ends.is_writable() {
                return Some(Err(SocketRefusal::plain(connection.ends.take_error().unwrap_or(libc::EPIPE))));
            }
            // SAFETY: the caller's promise.
            *done += unsafe { connection.send(Runs::behind(pieces, *done), &mut piece) };
            (*done == total).then_some(Ok(()))
        })
    }

    /// Receives into `pieces` of memory.
    ///
    /// # Safety
    /// They are writable.
    pub(crate) unsafe fn receive(&self, pieces: &[libc::iovec], flags: c_int) -> Outcome<usize> {
        let total: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let peek = flags & libc::MSG_PEEK != 0;
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        self.transfer(flags, SocketOptions::receive_deadline, |connection, done| {
            // The end may have come with the last bytes, and nothing comes after it.
            while connection.readable() > 0 {
                let mut runs = Runs::behind(pieces, *done);
                let taken = connection.readable().min(runs.left());
                // SAFETY: the caller's promise.
                runs.take(taken, |before, to, run| unsafe { connection.copy(to.cast_mut(), run, before) });
                *done += taken;
                if !peek {
                    connection.consume(taken);
                }
                if !all || *done == total {
                    return Some(Ok(()));
                }
            }
            if connection.ends.has_ended() {
                return Some(Ok(()));
            }
            match connection.ends.take_error() {
                Some(errno) => Some(Err(SocketRefusal::plain(errno))),
                None if !connection.ends.is_readable() || total == 0 => Some(Ok(())),
                None => None,
            }
        })
    }

    /// Writes memory that the peer has mapped.
    ///
    /// # Safety
    /// `from` is readable for `length` bytes.
    pub(crate) unsafe fn write_mapped(
        &self,
        from: *const u8,
        length: usize,
        offset: u64,
        flags: c_int,
    ) -> Outcome<usize> {
        let mut piece = Piece::new();
        self.transfer(flags, SocketOptions::send_deadline, |connection, done| {
            if !connection.ends.is_writable() {
                return Some(Err(SocketRefusal::plain(connection.ends.broken().unwrap_or(libc::ECONNRESET))));
            }
            let at = offset.wrapping_add(*done as u64);
            // SAFETY: the caller's promise.
            match unsafe { connection.write_mapped(from.add(*done), length - *done, at, &mut piece) } {
                Ok(now) => *done += now,
                Err(refusal) => return Some(Err(refusal)),
            }
            (*done == length).then_some(Ok(()))
        })
    }

    /// Takes `step` after `step`, which adds to the bytes that are done, until one has an answer; how many are done. What comes
    /// in the way after the first bytes isn't an error.
    fn transfer(
        &self,
        flags: c_int,
        deadline: impl Fn(&SocketOptions) -> Option<Instant>,
        mut step: impl FnMut(&mut StreamConnection, &mut usize) -> Option<Outcome<()>>,
    ) -> Outcome<usize> {
        let nonblocking = self.core.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let until = if nonblocking { None } else { deadline(&self.lock()?.options) };
        let mut done = 0;
        let transferred = self.core.wait(nonblocking, until, |state| match state.connection() {
            Ok(connection) => step(connection?, &mut done),
            Err(refusal) => Some(Err(refusal)),
        });
        match transferred {
            Err(refusal) if done == 0 => Err(refusal),
            _ => Ok(done),
        }
    }
}
