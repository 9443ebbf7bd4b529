//! How an adapter places what it has received.

use crate::env::QpEnv;
use crate::keys::key_fault;
use crate::unplaced::{Target, Unplaced};
use ferroce_types::{RemoteAccess, RemoteError, Sge};

impl QpEnv<'_> {
    /// Whether a packet's bytes are placed in any order.
    fn scatters(&mut self, len: usize) -> bool {
        let (host, qpn) = (self.name, self.side.user.qpn);
        self.licences.scattered_placement
            && len > 1
            && self.chances.choose(|| format!("QP {qpn:#x} of {host} places {len} bytes in any order"))
    }

    /// Cuts the bytes of a packet into pieces that are placed later.
    fn scatter(&mut self, bytes: &[u8], target: impl Fn(u64) -> Target) {
        let mut start = 0;
        while start < bytes.len() {
            let rest = bytes.len() - start;
            let len = 1 + self.chances.below(rest.div_ceil(2) as u64) as usize;
            let piece = Unplaced { target: target(start as u64), bytes: bytes[start..start + len].to_vec() };
            self.side.placing.push(piece);
            start += len;
        }
    }

    /// Places bytes of exposed memory, which the key permits.
    pub(crate) fn receive_remote(&mut self, rkey: u32, va: u64, bytes: &[u8]) -> Result<(), RemoteError> {
        self.remote(rkey, va, bytes.len() as u64, RemoteAccess::Write)?;
        if self.scatters(bytes.len()) {
            self.scatter(bytes, |at| Target::Remote(rkey, va + at));
            return Ok(());
        }
        self.write_remote_now(rkey, va, bytes)
    }

    fn write_remote_now(&self, rkey: u32, va: u64, bytes: &[u8]) -> Result<(), RemoteError> {
        let (tap, at) = self.remote(rkey, va, bytes.len() as u64, RemoteAccess::Write)?;
        tap.write(at, bytes).map_err(|_| RemoteError::Operational)
    }

    /// Places bytes of a receive or of a READ's answer.
    pub(crate) fn receive_local(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), ()> {
        let permitted = |sge: &Sge| {
            let range = (sge.addr, u64::from(sge.length));
            key_fault(&self.tables.keys, (sge.lkey, self.side.user), range, None).is_ok()
        };
        if sges.iter().all(permitted) && self.scatters(bytes.len()) {
            self.scatter(bytes, |at| Target::Local(sges.to_vec(), offset + at));
            return Ok(());
        }
        self.write_local_now(sges, offset, bytes)
    }

    fn write_local_now(&self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), ()> {
        self.pieces(sges, (offset, bytes.len()), |tap, at, range| tap.write(at, &bytes[range]))
    }

    fn place_piece(&self, Unplaced { target, bytes }: &Unplaced) {
        // The keys were right when the packet came, and memory is taken back after all pieces are placed.
        let placed = match target {
            Target::Local(sges, offset) => self.write_local_now(sges, *offset, bytes).is_ok(),
            Target::Remote(rkey, va) => self.write_remote_now(*rkey, *va, bytes).is_ok(),
        };
        assert!(placed, "memory was taken back before all bytes of a message were placed");
    }

    /// Places any of the pieces. Of those for the same bytes, the first comes first.
    pub(crate) fn place_one(&mut self) {
        let count = self.side.placing.len() as u64;
        if count > 0 {
            let any = &self.side.placing[self.chances.below(count) as usize];
            let first = self.side.placing.iter().position(|piece| piece.overlaps(any)).unwrap_or(0);
            let piece = self.side.placing.remove(first);
            self.place_piece(&piece);
        }
    }

    /// Places all pieces: what follows may depend on them.
    pub(crate) fn place_all(&mut self) {
        for piece in std::mem::take(&mut self.side.placing) {
            self.place_piece(&piece);
        }
    }
}
