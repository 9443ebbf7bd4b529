//! Large payloads of SENDs that aren't in the ring: the sender offers them in its memory, and the receiver reads them from there, with one copy.

use super::Link;
use crate::directory::{Purpose, QpnPair};
use crate::record::CompactRecord;
use ferroce_access::PeerRead;
use std::sync::atomic::{Ordering, fence};

/// A payload in the memory of the process that has sent it.
#[derive(Clone, Copy, Debug)]
pub struct OfferedPayload<'a> {
    link: &'a Link,
    ends: QpnPair,
    /// Key, address and length.
    range: (u32, u64, u64),
    /// The lower half of the number of the sender's connection.
    connection: u32,
}

#[expect(clippy::len_without_is_empty, reason = "none is empty")]
impl OfferedPayload<'_> {
    /// Bytes of the payload.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.2 as usize
    }

    /// Copies the bytes from `offset` on to ranges of this process (address and length), which are registered memory of the program, or belong
    /// to the caller. Refused: also when not all bytes are the sender's: its queue pair doesn't have the connection any more, so its program
    /// may have written other bytes there.
    #[must_use]
    pub fn read(&self, offset: usize, to: &[(u64, usize)]) -> PeerRead {
        let len = to.iter().map(|(_, len)| len).sum();
        assert!(offset <= self.len() && len <= self.len() - offset);
        let is_same = |connection: u64| connection as u32 == self.connection;
        let read = self.link.access(self.ends, self.range, Purpose::Offered, |peer, address| {
            let at = address.wrapping_add(offset as u64);
            // A page that has gone since the sender's look would hold up the reader of the link, or show zeros where the memory is mapped here.
            let may_read = is_same(peer.connection()) && peer.are_present(at, len);
            let read = may_read.then(|| peer.read_to(at, to));
            // SYNC: pairs with the fence of `DirectoryEntry::withdraw`, which the sender passes before its program gets the memory back: if the
            // entry is still there, the copy has read nothing that was written later.
            fence(Ordering::SeqCst);
            read.filter(|_| is_same(self.link.connection_of(self.ends)))
        });
        read.unwrap_or(PeerRead::Refused)
    }
}

impl Link {
    /// This process reads what the peer offers.
    pub(crate) fn take_offers(&self) {
        self.terms(true).reads_offers.store(1, Ordering::Release);
    }

    /// The peer's process may read payloads from this one's memory: it is another process of the same user, and its exit is seen here. It
    /// could do so when the link was made.
    pub fn peer_reads_offers(&self) -> bool {
        // In the child of a fork the memory isn't there.
        !self.is_dead()
            && !self.is_to_itself()
            && self.is_entitled()
            && self.terms(false).reads_offers.load(Ordering::Relaxed) == 1
    }

    /// The payload of a packet that has come by this link from QP `sender`, if it is in the sender's memory.
    #[must_use]
    pub fn offered<'a>(&'a self, packet: &CompactRecord, sender: u32) -> Option<OfferedPayload<'a>> {
        let (headers, reth) = (&packet.headers, packet.headers.reth());
        headers.is_offered().then_some(OfferedPayload {
            link: self,
            ends: (headers.dest_qp, sender),
            range: (reth.rkey, reth.va, packet.len as u64),
            connection: reth.dma_len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::tests::{ENDS, KEY, links};
    use super::super::receive::{Receive, RecordRun};
    use super::super::results::SentPacket;
    use super::super::send::SendOutcome;
    use super::*;
    use crate::compact::{CompactHeaders, MemoryOffer};
    use crate::directory::Directory;
    use crate::payload::ShmPayload;
    use crate::protocol::DirectoryEntry;
    use ferroce_wire::Opcode;

    const LEN: usize = 64 * 1024;
    const CONNECTION: u64 = 9;

    /// Reads the payloads that come, each in two parts.
    #[derive(Default)]
    struct Reads(Vec<Option<Vec<u8>>>);

    impl Receive for Reads {
        fn run(&mut self, run: &mut RecordRun<'_>) -> bool {
            while let Some(packet) = run.next_compact() {
                let offered = run.link().offered(packet, ENDS.1).expect("an offer");
                let (mut bytes, half) = (vec![0u8; offered.len()], offered.len() / 2);
                let to = bytes.as_mut_ptr() as u64;
                let behind = offered.read(half, &[(to + half as u64, offered.len() - half)]);
                let read = [behind, offered.read(0, &[(to, half - 1), (to + half as u64 - 1, 1)])];
                assert!(read.iter().all(|end| *end != PeerRead::Partial));
                self.0.push((read == [PeerRead::Whole; 2]).then_some(bytes));
                run.settle(true);
            }
            true
        }

        fn executed(&mut self, _: SentPacket, _: Option<ShmPayload<'_>>) {}
    }

    /// Offers what is at `va`, and returns what the link's other end reads.
    fn read([link, peer]: &[Link; 2], va: u64, connection: u64) -> Option<Vec<u8>> {
        let opcode = Opcode::from_u8(4).unwrap();
        let headers = CompactHeaders::of_send(opcode, (0xffff, ENDS.0), 5, (false, 0));
        let headers = headers.acknowledged_by_result().offering(&MemoryOffer { key: KEY, va, connection });
        let sent = peer.send_on_connection::<()>(&headers, (ENDS.1, connection), LEN, |_| Ok(()));
        assert!(matches!(sent, SendOutcome::Published(_)), "{sent:?}");
        let mut reads = Reads::default();
        assert_eq!(link.receive(usize::MAX, &mut reads), Some(true));
        let [read] = <[_; 1]>::try_from(reads.0).unwrap();
        read
    }

    #[test]
    fn an_offer_is_read_while_its_queue_pair_has_the_connection_and_its_region_is_listed() {
        let memory: Vec<u8> = (0..2 * LEN).map(|at| (at % 251) as u8).collect();
        let va = memory.as_ptr() as u64;
        type Ends = fn(&DirectoryEntry);
        for (what, ends) in
            [("revoked", (|entry| _ = entry.revoke()) as Ends), ("withdrawn", DirectoryEntry::withdraw)]
        {
            for of_region in [false, true] {
                let own = Directory::new().unwrap();
                let links @ [_, peer] = &links(&own, (va, memory.len() as u64), false);
                assert!(read(links, va, CONNECTION).is_none(), "the sender doesn't see the reader's exit");
                peer.entitle();
                assert_eq!(read(links, va + 100, CONNECTION).as_deref(), Some(&memory[100..][..LEN]));
                assert!(read(links, va, CONNECTION + 1).is_none(), "another connection");
                assert!(read(links, va + LEN as u64 + 1, CONNECTION).is_none(), "beyond the region");
                // More offers than the ring has room for bytes.
                assert!((0..100).all(|_| read(links, va, CONNECTION).is_some()));
                let entry = if of_region { own.region(KEY) } else { own.qp(ENDS.1) };
                ends(entry.unwrap());
                assert!(read(links, va, CONNECTION).is_none(), "{what}");
            }
        }
    }

    #[test]
    fn offers_are_made_to_other_processes_that_read_them() {
        let own = Directory::new().unwrap();
        let [link, peer] = links(&own, (0x1000, 8), false);
        assert!(!peer.peer_reads_offers());
        link.take_offers();
        assert!(peer.peer_reads_offers() && !link.peer_reads_offers());
        peer.give_up();
        assert!(!peer.peer_reads_offers());
    }
}
