//! The packets that a QP keeps until those before them have come, and how much memory they take.

use ferroce_proto::{KeptPacket, KeptPackets, Payload};
use ferroce_wire::Headers;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that all QPs of the process keep, at most: a packet beyond that is as good as lost.
const MOST: usize = 64 << 20;
/// The part that a QP may have of what the others leave: some QPs whose gaps don't close leave room for the rest. For one QP alone it is several
/// times what may be in flight to a socket of usual size.
const SHARE: usize = 16;
/// What a packet takes besides its payload: its headers, its place in the map, and what the allocator needs for both.
const OVERHEAD: usize = 384;

/// Bytes that all QPs of the process keep.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// The packets of one QP, which count towards the limit of the process while they are here.
///
/// All have come from one port, as all requests of a QP do. They are executed only if what was missing comes from there too: a forged packet
/// has to name the right port besides QPN and PSN, though it may be any of 2048 PSNs.
#[derive(Default)]
pub struct KeptOfQp {
    packets: KeptPackets,
    port: u16,
}

impl KeptOfQp {
    /// Keeps a copy of a packet that has come from a port. False: there is no room, or the others have come from another port.
    pub fn keep(&mut self, number: u64, headers: &Headers, payload: &impl Payload, port: u16) -> bool {
        if !self.packets.is_empty() && self.port != port {
            return false;
        }
        let (own, cost) = (self.bytes(), cost(payload.len()));
        let of_others = KEPT.fetch_add(cost, Ordering::Relaxed).saturating_sub(own);
        let has_room = own + cost <= MOST.saturating_sub(of_others) / SHARE;
        let is_kept = has_room && self.packets.keep(number, headers, payload);
        if is_kept {
            self.port = port;
        }
        // Nothing if the packet was kept, unless it has replaced another one.
        let spare = own + cost - self.bytes();
        if spare > 0 {
            KEPT.fetch_sub(spare, Ordering::Relaxed);
        }
        is_kept
    }

    /// Takes the packet with this number, if it has come from the port.
    pub fn take(&mut self, number: u64, port: u16) -> Option<KeptPacket> {
        if self.port != port {
            return None;
        }
        let packet = self.packets.take(number)?;
        KEPT.fetch_sub(cost(packet.payload.len()), Ordering::Relaxed);
        Some(packet)
    }

    /// Drops all of them.
    #[inline]
    pub fn forget(&mut self) {
        KEPT.fetch_sub(self.bytes(), Ordering::Relaxed);
        self.packets = KeptPackets::default();
    }

    fn bytes(&self) -> usize {
        self.packets.bytes() + self.packets.len() * OVERHEAD
    }
}

impl Drop for KeptOfQp {
    fn drop(&mut self) {
        self.forget();
    }
}

const fn cost(payload: usize) -> usize {
    OVERHEAD + payload
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::PlaceError;
    use ferroce_wire::{Bth, Opcode};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    const PACKET: [u8; 4096] = [7; 4096];
    const PORT: u16 = 40_000;

    /// The tests count what the process keeps.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(KEPT.load(Ordering::Relaxed), 0);
        alone
    }

    fn keep(kept: &mut KeptOfQp, number: u64, len: usize) -> bool {
        kept.keep(number, &Headers::new(Bth::new(Opcode::CNP, 0, 0)), &&PACKET[..len], PORT)
    }

    /// Keeps packets of so many bytes until there is no room, and returns what they take.
    fn fill(kept: &mut KeptOfQp, len: usize) -> usize {
        let before = kept.bytes();
        let first = kept.packets.len() as u64;
        (first..).find(|&number| !keep(kept, number, len)).expect("there is a limit");
        kept.bytes() - before
    }

    #[test]
    fn a_qp_keeps_four_mebibytes_and_gives_back_what_it_does_not_need() {
        let _alone = alone();
        let mut kept = KeptOfQp::default();
        let full = fill(&mut kept, 4096);
        assert!(full <= MOST / SHARE && full + cost(4096) > MOST / SHARE);
        assert_eq!(KEPT.load(Ordering::Relaxed), full);
        assert_eq!(kept.take(2, PORT).map(|packet| packet.payload.len()), Some(4096));
        assert!(kept.take(2, PORT).is_none() && keep(&mut kept, 2, 4096) && !keep(&mut kept, 1 << 20, 4096));
        // A packet replaces another one.
        assert!(kept.take(2, PORT).is_some() && keep(&mut kept, 1, 8));
        assert_eq!(
            (kept.bytes(), KEPT.load(Ordering::Relaxed)),
            (full - 2 * 4096 - OVERHEAD + 8, kept.bytes())
        );
        kept.forget();
        assert_eq!((kept.bytes(), KEPT.load(Ordering::Relaxed)), (0, 0));
        assert_eq!(fill(&mut kept, 4096), full);
        drop(kept);
        assert_eq!(KEPT.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn empty_packets_count_too() {
        let _alone = alone();
        let mut kept = KeptOfQp::default();
        fill(&mut kept, 0);
        assert!(kept.packets.len() < MOST / SHARE / size_of::<KeptPacket>());
    }

    #[test]
    fn many_qps_keep_no_more_than_the_process_may_and_leave_room_for_one_more() {
        let _alone = alone();
        let mut all: Vec<KeptOfQp> = (0..100).map(|_| KeptOfQp::default()).collect();
        for kept in &mut all {
            assert!(fill(kept, 1024) > 0);
        }
        assert!(KEPT.load(Ordering::Relaxed) < MOST);
        // One that has more than its share gets nothing, and the next one gets some of what is left.
        assert!(!keep(&mut all[0], 1 << 20, 0));
        assert!(fill(&mut KeptOfQp::default(), 1024) > 0);
        // What a few give back is there for others.
        all.drain(..8);
        assert!(fill(&mut KeptOfQp::default(), 4096) > 1 << 20);
        drop(all);
        assert_eq!(KEPT.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn many_qps_at_once_share_equally() {
        let _alone = alone();
        let mut all: Vec<KeptOfQp> = (0..64).map(|_| KeptOfQp::default()).collect();
        for number in 0..4096 {
            for kept in &mut all {
                keep(kept, number, 1024);
            }
        }
        let bytes = all.iter().map(KeptOfQp::bytes);
        let (least, most) = (bytes.clone().min().unwrap(), bytes.max().unwrap());
        assert!(least > MOST / 100 && most - least <= 2 * cost(1024), "{least} {most}");
    }

    #[test]
    fn packets_of_two_ports_are_not_kept_together() {
        let _alone = alone();
        let mut kept = KeptOfQp::default();
        let headers = Headers::new(Bth::new(Opcode::CNP, 0, 0));
        assert!(keep(&mut kept, 1, 8) && !kept.keep(2, &headers, &&PACKET[..8], PORT + 1));
        assert!(kept.take(1, PORT + 1).is_none() && kept.take(1, PORT).is_some());
        assert!(kept.keep(2, &headers, &&PACKET[..8], PORT + 1) && !keep(&mut kept, 3, 8));
    }

    #[test]
    fn a_packet_that_cannot_be_read_takes_no_room() {
        struct Unreadable;
        impl Payload for Unreadable {
            fn len(&self) -> usize {
                1024
            }
            fn copy(&self, _: &mut [u8]) -> Result<(), PlaceError> {
                Err(PlaceError)
            }
            fn copy_first(&self, _: &mut [u8]) -> Result<(), PlaceError> {
                Err(PlaceError)
            }
        }
        let _alone = alone();
        let mut kept = KeptOfQp::default();
        assert!(!kept.keep(1, &Headers::new(Bth::new(Opcode::CNP, 0, 0)), &Unreadable, PORT));
        assert_eq!((kept.bytes(), KEPT.load(Ordering::Relaxed)), (0, 0));
    }
}
