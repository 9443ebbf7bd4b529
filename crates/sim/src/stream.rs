//! Streams of bytes between programs, as TCP connections are.

use crate::mail::{Receiver, Sender};
use crate::world::World;
use std::io::{self, Read, Write};

/// An end of a [stream](World::stream). Bytes that are written arrive at once.
#[derive(Debug)]
pub struct Stream {
    to: Sender<Vec<u8>>,
    from: Receiver<Vec<u8>>,
    /// Bytes that have arrived and weren't read.
    rest: Vec<u8>,
}

impl World {
    /// A stream of bytes in both directions, in the place of a TCP connection. Waiting for bytes lets virtual time pass.
    #[must_use]
    pub fn stream(&self) -> (Stream, Stream) {
        let ((to_b, at_b), (to_a, at_a)) = (self.channel(), self.channel());
        let end = |to, from| Stream { to, from, rest: Vec::new() };
        (end(to_b, at_a), end(to_a, at_b))
    }
}

impl Read for Stream {
    /// 0: the other end was dropped.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() && !into.is_empty() {
            match self.from.recv() {
                Some(bytes) => self.rest = bytes,
                None => return Ok(0),
            }
        }
        let count = self.rest.len().min(into.len());
        into[..count].copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        Ok(count)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
