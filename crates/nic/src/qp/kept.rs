//! The packets that a QP keeps until those before them have come, and how much memory they take.

use ferroce_proto::{KeptPacket, KeptPackets, Payload};
use ferroce_wire::Headers;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a packet takes besides its payload: its headers, its place in the map, and what the allocator needs for both.
const OVERHEAD: usize = 384;
/// Bytes that one QP keeps, at most: several times what may be in flight to a socket of usual size.
const MOST_OF_QP: usize = 4 << 20;
/// And all QPs of the process: a packet beyond that is as good as lost.
const MOST_OF_PROCESS: usize = 64 << 20;

/// Bytes that all QPs keep.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// The packets of one QP, which count towards the limit of the process while they are here.
#[derive(Default)]
pub(super) struct KeptOfQp(KeptPackets);

impl KeptOfQp {
    /// Keeps a copy of a packet. False: there is no room.
    pub(super) fn keep(&mut self, number: u64, headers: &Headers, payload: &impl Payload) -> bool {
        let (len, own) = (payload.len() + OVERHEAD, self.bytes());
        if own + len > MOST_OF_QP {
            return false;
        }
        let all = KEPT.fetch_add(len, Ordering::Relaxed);
        let is_kept = all + len <= MOST_OF_PROCESS && self.0.keep(number, headers, payload);
        // Nothing if the packet was kept, unless it has replaced another one.
        KEPT.fetch_sub(own + len - self.bytes(), Ordering::Relaxed);
        is_kept
    }

    pub(super) fn take(&mut self, number: u64) -> Option<KeptPacket> {
        let packet = self.0.take(number)?;
        KEPT.fetch_sub(packet.payload.len() + OVERHEAD, Ordering::Relaxed);
        Some(packet)
    }

    pub(super) fn forget(&mut self) {
        KEPT.fetch_sub(self.bytes(), Ordering::Relaxed);
        self.0 = KeptPackets::default();
    }

    fn bytes(&self) -> usize {
        self.0.bytes() + self.0.len() * OVERHEAD
    }
}

impl Drop for KeptOfQp {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_wire::{Bth, Opcode};

    #[test]
    fn a_qp_keeps_a_limited_number_of_bytes_and_gives_them_back() {
        let headers = Headers::new(Bth::new(Opcode::CNP, 0, 0));
        let payload = vec![7; (1 << 20) - OVERHEAD];
        let before = KEPT.load(Ordering::Relaxed);
        let mut kept = KeptOfQp::default();
        assert!((0..4).all(|number| kept.keep(number, &headers, &&payload[..])));
        assert!(!kept.keep(4, &headers, &&payload[..1]));
        assert_eq!(kept.take(2).map(|packet| packet.payload.len()), Some(payload.len()));
        assert!(kept.keep(4, &headers, &&payload[..1]));
        assert!(kept.take(3).is_some() && kept.keep(4, &headers, &&payload[..9]));
        assert_eq!(kept.bytes(), (2 << 20) + 9 + OVERHEAD);
        drop(kept);
        assert_eq!(KEPT.load(Ordering::Relaxed), before);
        let mut kept = KeptOfQp::default();
        let small = (0..).take_while(|&number| kept.keep(number, &headers, &&payload[..0])).count();
        assert_eq!(small, MOST_OF_QP / OVERHEAD);
        drop(kept);
        let mut all: Vec<KeptOfQp> = (0..17).map(|_| KeptOfQp::default()).collect();
        let full =
            |kept: &mut KeptOfQp| (0..4).filter(|&number| kept.keep(number, &headers, &&payload[..])).count();
        assert_eq!(all.iter_mut().map(full).sum::<usize>(), MOST_OF_PROCESS >> 20);
        drop(all);
        assert_eq!(KEPT.load(Ordering::Relaxed), before);
    }
}
