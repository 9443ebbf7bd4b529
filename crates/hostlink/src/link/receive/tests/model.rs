//! Two ends of a link that send and receive at random, beside what each packet must come to.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// A packet on its way. One with an even PSN is executed.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ModelPacket {
    dest: u32,
    psn: u32,
    bytes: Vec<u8>,
}

/// What a SEND that waits for its result has become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    OnItsWay,
    Executed,
    Left,
}

/// An end of a link, with what it has sent.
struct ModelEnd {
    link: Link,
    packets: VecDeque<ModelPacket>,
    /// QP and PSN of each packet that waits for its result and isn't reported yet, and the bytes of its answer.
    awaited: Vec<(u32, u32, Fate, usize)>,
    psn: u32,
}

impl ModelEnd {
    fn send(&mut self, number: u16) {
        const LENGTHS: [usize; 8] = [0, 8, 16, 17, 40, 41, 900, 20_000];
        let (qpn, dest) = (u32::from(number % 3), u32::from(number / 3 % 2));
        // A PSN names one packet; its last bit, what becomes of it.
        self.psn += 1 + u32::from(number & 0x100 == 0);
        let (len, by_result) = (LENGTHS[usize::from(number >> 13)], number & 0x200 == 0);
        // A READ instead of a SEND.
        let asks = by_result && number & 0x400 == 0;
        let (sent, answered) = if asks { (0, len.max(1)) } else { (len, 0) };
        let bytes = pattern(self.psn, sent);
        let opcode = Opcode::from_u8(if asks { 0x0c } else { 4 }).unwrap();
        let ends = (0xffff, dest);
        let headers = if asks {
            let reth = Reth { va: 0, rkey: 0, dma_len: answered as u32 };
            CompactHeaders::of_fetch(opcode, ends, self.psn, reth)
        } else {
            let headers = CompactHeaders::of_send(opcode, ends, self.psn, (false, 0));
            if by_result { headers.acknowledged_by_result() } else { headers }
        };
        if try_send_packet(&self.link, qpn, &headers, &bytes).is_some() {
            self.packets.push_back(ModelPacket { dest, psn: self.psn, bytes });
            if by_result {
                self.awaited.push((qpn, self.psn, Fate::OnItsWay, answered));
            }
        }
    }

    /// Receives what `peer` has sent. Whether anything has come.
    fn receive(&mut self, peer: &mut Self, number: u16) -> bool {
        let mut noted = ModelReader { has_enough: number & 1 == 0, ..ModelReader::default() };
        let any = self.link.receive(1 + usize::from(number >> 1) % 8, &mut noted).unwrap_or(false);
        assert!(any || noted.came.is_empty() && noted.told.is_empty());
        for (packet, executed) in noted.came {
            assert_eq!(peer.packets.pop_front(), Some(packet.clone()));
            if let Some(awaited) = peer.awaited.iter_mut().find(|(_, psn, ..)| *psn == packet.psn) {
                awaited.2 = if executed { Fate::Executed } else { Fate::Left };
            }
        }
        for (last, answer) in noted.told {
            let is_it = |&(qpn, psn, ..): &(u32, u32, Fate, usize)| (qpn, psn) == (last.qpn, last.psn);
            let told = self.awaited.iter().copied().find(is_it);
            assert_eq!(
                told.map(|(.., fate, len)| (fate, len)),
                Some((Fate::Executed, answer.len())),
                "{last:?}"
            );
            assert_eq!(answer, pattern(last.psn, answer.len()));
            let is_before = |&(qpn, psn, ..): &(u32, u32, Fate, usize)| qpn == last.qpn && psn <= last.psn;
            let lost = self.awaited.iter().filter(|awaited| is_before(awaited) && !is_it(awaited));
            assert!(
                lost.clone().all(|&(.., fate, len)| len == 0 || fate == Fate::Left),
                "an answer is passed over"
            );
            self.awaited.retain(|awaited| !is_before(awaited));
        }
        any
    }
}

/// Notes what comes and whether it was executed, and which packets are reported as executed, with their answers.
#[derive(Default)]
struct ModelReader {
    has_enough: bool,
    came: Vec<(ModelPacket, bool)>,
    told: Vec<(SentPacket, Vec<u8>)>,
}

impl ModelReader {
    fn note(&mut self, link: &Link, packet: &CompactRecord, executed: bool) {
        let (dest, psn) = (packet.headers.dest_qp, packet.headers.psn());
        self.came.push((ModelPacket { dest, psn, bytes: link.payload(packet).to_vec() }, executed));
    }
}

impl Receive for ModelReader {
    fn run(&mut self, run: &mut RecordRun<'_>) -> bool {
        let dest = run.dest_qp();
        while let Some(packet) = run.next_compact() {
            assert_eq!(packet.headers.dest_qp, dest);
            let executed = packet.headers.is_by_result() && packet.headers.psn().is_multiple_of(2);
            self.note(run.link(), packet, executed);
            if executed {
                answer(run);
            }
            run.settle(executed);
        }
        !self.has_enough
    }

    fn executed(&mut self, last: SentPacket, answer: Option<ShmPayload<'_>>) {
        self.told.push((last, answer.map_or_else(Vec::new, ShmPayload::to_vec)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 24 }))]
    /// Two ends send and receive at random, also when a ring is full. Each packet comes once, in order and intact. Each packet that was
    /// executed by its result is reported, with its answer, and no other.
    #[test]
    fn what_comes_and_what_is_told_is_what_was_sent_and_executed(
        steps in prop::collection::vec(any::<(u8, u16)>(), 1..1200),
    ) {
        let mut ends = link().map(|link| ModelEnd { link, packets: VecDeque::new(), awaited: Vec::new(), psn: 0 });
        for (what, number) in steps {
            let [one, other] = &mut ends;
            let (end, peer) = if what & 1 == 0 { (one, other) } else { (other, one) };
            match what >> 1 & 7 {
                0 => { end.receive(peer, number); }
                1 => (0..200).for_each(|n| end.send(number ^ n)),
                _ => end.send(number),
            }
        }
        let [one, other] = &mut ends;
        while one.receive(other, 15) | other.receive(one, 14) {}
        for end in &ends {
            prop_assert!(end.packets.is_empty() && end.link.unacked.lock().is_empty() && !end.link.is_dead());
            prop_assert!(end.awaited.iter().all(|(.., fate, _)| *fate == Fate::Left), "{:?}", end.awaited);
            prop_assert!(!end.link.has_records() && !end.link.may_have_work());
        }
    }
}
