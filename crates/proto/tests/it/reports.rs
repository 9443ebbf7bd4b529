//! What leaves after each report of a peer that keeps packets: what the reports show to be lost, the oldest first, and then new packets, as many
//! as the window has room for. A model knows which packets are in the network.

use crate::host::{BASE, Frame};
use crate::net::{Pair, READ, Rng, WRITE, wr};
use crate::selective::{nak, wide_and_patient};
use core::time::Duration;
use ferroce_wire::Service;
use std::collections::BTreeSet;

const MTU: u32 = 1024;
/// Packets that may be in the network.
const WINDOW: usize = 6;
/// Reports of one run. No time passes between them, and each may measure a round trip of nothing: the round trip that is known stays one.
const REPORTS: u32 = 30;

/// What a requester has to know, by numbers of packets from 0 on.
#[derive(Default, Debug)]
struct Known {
    una: u32,
    next: u32,
    /// The packet after the last that ever left.
    max: u32,
    network: BTreeSet<u32>,
    kept: BTreeSet<u32>,
    /// Lost, and to leave again.
    lost: BTreeSet<u32>,
    /// Those that have left again: they aren't lost once more at the same time.
    again: BTreeSet<u32>,
    /// Which of the lost packets that leave now ask for an acknowledgement.
    asks: Vec<bool>,
}

impl Known {
    /// The peer has everything before `una`, and `kept` beyond it.
    fn report(&mut self, una: u32, kept: &BTreeSet<u32>) {
        for set in [&mut self.network, &mut self.lost, &mut self.kept] {
            set.retain(|&packet| packet >= una);
        }
        self.una = una;
        // The first packet that the peer doesn't have, and has kept, was dropped: nothing of it is in the network.
        if self.kept.remove(&una) {
            self.lost.insert(una);
        }
        let end = kept.last().map_or(una + 1, |last| last + 1);
        let dropped: Vec<_> =
            self.kept.range(..end).filter(|packet| !kept.contains(packet)).copied().collect();
        for packet in dropped {
            // It may be a report that is older than the one before.
            self.kept.remove(&packet);
            self.network.insert(packet);
            self.again.insert(packet);
        }
        for packet in kept {
            self.network.remove(packet);
            self.lost.remove(packet);
        }
        self.kept.extend(kept);
        let end = self.kept.last().map_or(una + 1, |last| last + 1);
        let lost: Vec<_> =
            self.network.range(..end).filter(|packet| !self.again.contains(packet)).copied().collect();
        for packet in lost {
            self.network.remove(&packet);
            self.lost.insert(packet);
        }
    }

    /// The peer keeps nothing: all of it leaves again.
    fn goes_back(&mut self, una: u32) {
        self.again = (una..self.max).collect();
        (self.una, self.next) = (una, una);
        for set in [&mut self.network, &mut self.kept, &mut self.lost] {
            set.clear();
        }
    }

    /// What leaves now; the last of what was lost asks for an acknowledgement.
    fn leave(&mut self, packets: u32) -> Vec<u32> {
        let mut leaves = Vec::new();
        self.asks.clear();
        while let Some(&packet) = self.lost.first() {
            if packet > self.una && self.network.len() >= WINDOW {
                return leaves;
            }
            self.lost.remove(&packet);
            self.again.insert(packet);
            self.network.insert(packet);
            self.asks.push(self.lost.is_empty());
            leaves.push(packet);
        }
        while self.next < packets && self.network.len() < WINDOW {
            self.network.insert(self.next);
            leaves.push(self.next);
            self.next += 1;
            self.max = self.max.max(self.next);
        }
        leaves
    }
}

/// The payload of a report: its first bit is the packet after the one that is missing.
fn report_of(una: u32, kept: &BTreeSet<u32>) -> Vec<u8> {
    let bits = |packet: &u32| packet - una - 1;
    let words = kept.last().map_or(1, |last| bits(last) / 64 + 1);
    let word =
        |at| kept.iter().map(bits).filter(|bit| bit / 64 == at).fold(0, |word, bit| word | 1 << (bit % 64));
    (0..words).flat_map(|at| u64::to_le_bytes(word(at))).collect()
}

#[test]
fn what_leaves_after_a_report_is_what_was_lost_and_what_the_window_has_room_for() {
    const PACKETS: u32 = 400;
    for seed in 0..400 {
        let (mut rng, mut known) = (Rng(seed), Known::default());
        let mut p = wide_and_patient();
        // As many retries as it needs, from the first acknowledgement on.
        p.a.qp.params_mut().retry_cnt = u8::MAX;
        p.a.post(wr(0, WRITE, BASE, 8));
        p.run();
        p.a.host.window = WINDOW as u32 * MTU;
        let first = p.a.qp.sq_psn();
        p.a.post(wr(1, WRITE, BASE, PACKETS * MTU));
        let leaves = |p: &mut Pair, known: &mut Known| {
            let mut frames: Vec<Frame> = Vec::new();
            p.transmit_a_into(|sent, _| frames = sent);
            let number = |frame: &Frame| frame.headers.bth.psn.wrapping_sub(first) & 0xff_ffff;
            let expected = known.leave(PACKETS);
            assert_eq!(frames.iter().map(number).collect::<Vec<_>>(), expected, "{seed}: {known:?}");
            let asks = frames.iter().map(|frame| frame.headers.bth.ack_request);
            assert!(asks.zip(&known.asks).all(|(asks, expected)| asks == *expected), "{seed}: {known:?}");
        };
        leaves(&mut p, &mut known);
        let mut has_gone_back = false;
        for _ in 0..REPORTS {
            // What the peer gets of what is in the network, but not the packet that it misses first.
            let mut kept = known.kept.clone();
            kept.extend(known.network.iter().filter(|_| rng.below(3) == 0));
            // Some that were taken for lost come late.
            kept.extend(known.lost.iter().filter(|_| rng.below(6) == 0));
            kept.remove(&known.una);
            if rng.below(4) == 0 {
                kept.retain(|_| rng.below(8) > 0);
            }
            // Each makes the window of the path smaller, which is to stay larger than this one.
            if !has_gone_back && rng.below(16) == 0 {
                has_gone_back = true;
                p.now = p.now.after(Duration::from_millis(20));
                p.inject(false, &nak(first + known.una, vec![0; 8]));
                known.goes_back(known.una);
            } else if !kept.is_empty() {
                // It gets what it misses, and some packets behind that.
                let misses = known.una + if rng.below(3) == 0 { 1 + rng.below(3) as u32 } else { 0 };
                let una = misses.min(known.next - 1);
                kept.retain(|&packet| packet > una);
                if kept.is_empty() {
                    continue;
                }
                p.inject(false, &nak(first + una, report_of(una, &kept)));
                known.report(una, &kept);
            }
            leaves(&mut p, &mut known);
        }
    }
}

/// How long `a` waits for its next timer.
fn wait(p: &Pair) -> Duration {
    p.a.qp.next_timeout().expect("a timer").since(p.now)
}

#[test]
fn a_report_of_a_loss_has_the_next_probe_come_soon() {
    let mut p = wide_and_patient();
    let first = p.a.qp.sq_psn();
    p.a.post(wr(1, WRITE, BASE, 10 * MTU));
    p.transmit_a_into(|_, _| ());
    let soon = wait(&p);
    for _ in 0..4 {
        p.now = p.a.qp.next_timeout().expect("a probe");
        p.a.qp.handle_timeout(p.now, &mut p.a.host);
        p.transmit_a_into(|_, _| ());
    }
    assert!(wait(&p) > soon);
    p.inject(false, &nak(first, 2_u64.to_le_bytes().to_vec()));
    p.transmit_a_into(|frames, _| assert_eq!(frames.len(), 2));
    assert_eq!(wait(&p), soon);
}

#[test]
fn a_lost_packet_measures_no_round_trip() {
    let mut p = wide_and_patient();
    let first = p.a.qp.sq_psn();
    // The first of them is to measure one.
    p.a.post(wr(1, WRITE, BASE, 8));
    p.a.post(wr(2, WRITE, BASE, 10 * MTU));
    p.transmit_a_into(|_, _| ());
    let soon = wait(&p);
    p.now = p.now.after(Duration::from_millis(100));
    p.inject(false, &nak(first, 2_u64.to_le_bytes().to_vec()));
    p.transmit_a_into(|frames, _| assert_eq!(frames.len(), 2));
    assert_eq!(wait(&p), soon);
}

#[test]
fn a_first_probe_comes_late_only_where_it_has_an_answer_with_data_sent_again() {
    for (op, expected) in [(WRITE, 1), (READ, 8)] {
        let mut p = Pair::new(Service::Rc, MTU);
        p.a.post(wr(1, op, BASE, 8));
        p.transmit_a_into(|_, _| ());
        assert_eq!(wait(&p), Duration::from_millis(expected));
    }
}
