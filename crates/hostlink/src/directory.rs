//! What a process shows to the other processes of its host: its slots, the regions and QPs that they may reach,
//! and its sleeping threads. Written by its owner only; the other processes map it read-only.

use super::protocol::{Attention, Bell, DirectoryEntry};
use ferroce_access::{Cookie, PeerRegion, SharedMemory, SharedWords, layout};
use ferroce_types::{Access, QPNS_PER_SLOT, slot_of};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Regions that others can reach without this process; those beyond are reached through packets.
const REGIONS: usize = 1 << 16;
/// Slots whose QPs are listed.
const LISTED_SLOTS: usize = 4;

const REGIONS_AT: usize = 4096;
const QPS_AT: usize = REGIONS_AT + REGIONS * size_of::<DirectoryEntry>();
/// Bytes of a directory.
pub(super) const LEN: usize = QPS_AT + LISTED_SLOTS * QPNS_PER_SLOT * size_of::<DirectoryEntry>();

/// Of a directory.
pub(super) const LAYOUT: u64 = layout(
    LEN,
    &[
        ("header", 0, DirectoryHeader::LAYOUT),
        ("regions", REGIONS_AT, <[DirectoryEntry; REGIONS]>::LAYOUT),
        ("queue pairs", QPS_AT, <[DirectoryEntry; LISTED_SLOTS * QPNS_PER_SLOT]>::LAYOUT),
    ],
);

/// Names of entries have this bit, so that none is 0.
const NAMED: u64 = 1 << 63;

/// The first words of a directory.
#[repr(C)]
struct DirectoryHeader {
    bell: Bell,
    /// Slot numbers with [`NAMED`].
    slots: [AtomicU64; LISTED_SLOTS],
    /// What follows is written often: it has a pair of cache lines of its own.
    _unused: [AtomicU64; 11],
    attention: Attention,
}

ferroce_access::shared_words!(DirectoryHeader { bell, slots, _unused, attention });
const _: () = assert!(std::mem::offset_of!(DirectoryHeader, attention) == 128);

/// The numbers of a QP of this process and of its peer.
pub type QpnPair = (u32, u32);

/// What other processes see of a region.
#[derive(Clone, Copy, Debug)]
pub struct ListedRegion {
    /// The protection domain's number.
    pub pd: u32,
    /// First byte in the program's memory.
    pub addr: u64,
    /// Address of the first byte in RETHs.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Others may read.
    pub remote_read: bool,
    /// Others may write.
    pub remote_write: bool,
    /// Others can map what it lies in.
    pub shared: bool,
    /// It may have pages of a file.
    pub of_file: bool,
}

/// What other processes see of a QP.
#[derive(Clone, Copy, Debug)]
pub struct ListedQp {
    /// Its number and that of its peer.
    pub ends: QpnPair,
    /// The number of its connection, unlike that of any other of the process's life; not 0.
    pub connection: u64,
    /// The protection domain's number.
    pub pd: u32,
    /// What its peer may do to the regions of its domain.
    pub access: Access,
    /// It owes its peer answers.
    pub owes: bool,
}

/// Why another process's memory is accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// The QP's own process has offered the memory: it needs no right.
    Offered,
}

/// Rights in an entry's word.
mod right {
    pub(super) const READ: u64 = 1;
    pub(super) const WRITE: u64 = 2;
}

/// In the word of a region's rights: other processes can map the memory that the region lies in.
const SHARED: u64 = 4;
/// … it may have pages of a file;
const OF_FILE: u64 = 8;
/// … and the bit at which the count of listings begins. It distinguishes a region from an earlier one with the same key.
const LISTING: u32 = 8;

/// The word of a QP's entry with the number of its peer.
const PEER: usize = 0;
/// … and this bit if the QP reaches its peer by UDP.
const BY_UDP: u64 = 1 << 32;
/// The word of a QP's entry that isn't 0 while the QP owes its peer answers, also while the entry is taken back for a change.
const OWES: usize = 3;

/// Memory that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FoundMemory {
    /// In the process that the directory is of.
    pub(super) address: u64,
    pub(super) region: FoundRegion,
    /// The number of the QP's connection.
    pub(super) connection: u64,
}

/// A region as it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FoundRegion {
    rkey: u32,
    words: [u64; DirectoryEntry::WORDS],
}

impl FoundRegion {
    /// Its key.
    pub(super) fn key(&self) -> u32 {
        self.rkey
    }

    /// Its first byte in the peer's memory, and its bytes.
    pub(super) fn range(&self) -> (u64, u64) {
        (self.words[0], self.words[2])
    }

    /// Whether it lies in memory that can be mapped.
    pub(super) fn is_shared(&self) -> bool {
        self.words[3] & SHARED != 0
    }

    /// What is known of its pages.
    #[inline]
    pub(super) fn pages(&self) -> PeerRegion {
        let rights = self.words[3] & u64::from(u32::MAX);
        PeerRegion { of_file: rights & OF_FILE != 0, registration: rights >> LISTING }
    }

    /// Others may write.
    pub(super) fn is_writable(&self) -> bool {
        self.words[3] & right::WRITE != 0
    }
}

fn rights(read: bool, write: bool) -> u64 {
    (u64::from(read) * right::READ) | (u64::from(write) * right::WRITE)
}

fn region_at(key: u32) -> Option<usize> {
    let index = (key >> 8).checked_sub(1)? as usize;
    (index < REGIONS).then_some(REGIONS_AT + index * size_of::<DirectoryEntry>())
}

fn qp_at(memory: &SharedMemory, qpn: u32) -> Option<usize> {
    let slot = NAMED | u64::from(slot_of(qpn));
    let ordinal =
        memory.words::<DirectoryHeader>(0).slots.iter().position(|s| s.load(Ordering::Acquire) == slot)?;
    let index = ordinal * QPNS_PER_SLOT + qpn as usize % QPNS_PER_SLOT;
    Some(QPS_AT + index * size_of::<DirectoryEntry>())
}

/// This process's own.
#[derive(Debug)]
pub struct Directory {
    memory: SharedMemory,
    /// A number that no other process of the host has.
    pub(super) process: u64,
    /// Proves that a PID is still this process: checked by every `process_vm_*` call.
    pub(super) cookie: Cookie,
}

impl Directory {
    /// One that lists nothing. The caller then lists what there is already.
    ///
    /// # Errors
    /// The system refused.
    pub(super) fn new() -> io::Result<Self> {
        let memory = SharedMemory::create(LEN, true)?;
        Ok(Self { memory, process: ferroce_os::sys::random(), cookie: Cookie::new()? })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.memory.fd()
    }

    /// The sleeping threads of this process.
    #[inline]
    pub fn bell(&self) -> &Bell {
        &self.memory.words::<DirectoryHeader>(0).bell
    }

    /// Whether a thread of this process watches its rings.
    #[inline]
    pub fn attention(&self) -> &Attention {
        &self.memory.words::<DirectoryHeader>(0).attention
    }

    /// Lists a slot as this process's.
    pub fn add_slot(&self, slot: u16) {
        let name = NAMED | u64::from(slot);
        for entry in &self.memory.words::<DirectoryHeader>(0).slots {
            let listed = entry.load(Ordering::Relaxed);
            if listed == name {
                return;
            }
            if listed == 0 {
                entry.store(name, Ordering::Release);
                return;
            }
        }
    }

    fn entry(&self, at: usize) -> &DirectoryEntry {
        self.memory.words(at)
    }

    /// The entry of a region, if the directory has room for it.
    pub(super) fn region(&self, key: u32) -> Option<&DirectoryEntry> {
        region_at(key).map(|at| self.entry(at))
    }

    /// A region with this key is listed.
    #[must_use]
    pub fn lists_region(&self, key: u32) -> bool {
        self.region(key).is_some_and(|entry| entry.read(NAMED | u64::from(key)).is_some())
    }

    /// Lists a region, if there is room.
    pub fn publish_region(&self, key: u32, region: &ListedRegion) {
        /// Regions that were listed.
        static LISTINGS: AtomicU64 = AtomicU64::new(0);
        let &ListedRegion { pd, addr, iova, length, remote_read, remote_write, shared, of_file } = region;
        let listing = LISTINGS.fetch_add(1, Ordering::Relaxed) << LISTING & u64::from(u32::MAX);
        let memory = (u64::from(shared) * SHARED) | (u64::from(of_file) * OF_FILE);
        let rights = rights(remote_read, remote_write) | memory | listing;
        if let Some(entry) = self.region(key) {
            entry.publish(NAMED | u64::from(key), [addr, iova, length, (u64::from(pd) << 32) | rights]);
        }
    }

    /// The entry of a QP, if the directory has room for it.
    pub(super) fn qp(&self, qpn: u32) -> Option<&DirectoryEntry> {
        qp_at(&self.memory, qpn).map(|at| self.entry(at))
    }

    /// Lists a QP, if there is room.
    pub fn publish_qp(&self, qp: &ListedQp) -> bool {
        let &ListedQp { ends: (qpn, peer), connection, pd, access, owes } = qp;
        let rights = rights(access.remote_read, access.remote_write);
        let entry = self.qp(qpn);
        if let Some(entry) = entry {
            let words = [u64::from(peer), (u64::from(pd) << 32) | rights, connection, owes.into()];
            entry.publish(NAMED | u64::from(qpn), words);
        }
        entry.is_some()
    }

    /// Notes the peer of a QP that isn't listed: the peer sees whether the QP owes it answers, and whether the QP reaches it by UDP.
    pub fn note_peer(&self, qpn: u32, peer: u32, by_udp: bool) {
        if let Some(entry) = self.qp(qpn) {
            entry.set(PEER, u64::from(peer) | if by_udp { BY_UDP } else { 0 });
        }
    }

    /// A QP doesn't reach its peer by UDP any more.
    pub fn note_no_udp(&self, qpn: u32) {
        if let Some(entry) = self.qp(qpn).filter(|entry| entry.get(PEER) & BY_UDP != 0) {
            entry.set(PEER, 0);
        }
    }

    /// Shows the peer of a QP whether the QP owes it answers. The QP is or was listed, or its peer is noted.
    pub fn note_owing(&self, qpn: u32, owes: bool) {
        if let Some(entry) = self.qp(qpn) {
            entry.set(OWES, owes.into());
        }
    }
}

/// Another process's.
#[derive(Debug)]
pub(super) struct PeerDirectory(SharedMemory);

impl PeerDirectory {
    /// # Errors
    /// It isn't a directory, or the system refused.
    pub(super) fn open(fd: ferroce_os::sys::EngineFd) -> io::Result<Self> {
        SharedMemory::open(fd, LEN, false).map(Self)
    }

    #[inline]
    pub(super) fn bell(&self) -> &Bell {
        &self.0.words::<DirectoryHeader>(0).bell
    }

    #[inline]
    pub(super) fn attention(&self) -> &Attention {
        &self.0.words::<DirectoryHeader>(0).attention
    }

    pub(super) fn has_slot(&self, slot: u16) -> bool {
        let name = NAMED | u64::from(slot);
        self.0.words::<DirectoryHeader>(0).slots.iter().any(|s| s.load(Ordering::Acquire) == name)
    }

    /// The entry of the region with a key. To be called while an access word names the region; otherwise the result is a guess.
    fn region(&self, rkey: u32) -> Option<FoundRegion> {
        let entry: &DirectoryEntry = self.0.words(region_at(rkey)?);
        Some(FoundRegion { rkey, words: entry.read(NAMED | u64::from(rkey))? })
    }

    /// The region with this key can be mapped, it seems.
    #[inline]
    pub(super) fn is_shared(&self, rkey: u32) -> bool {
        self.region(rkey).is_some_and(|region| region.is_shared())
    }

    /// The region is still listed as it was found.
    pub(super) fn lists(&self, found: &FoundRegion) -> bool {
        self.region(found.rkey) == Some(*found)
    }

    /// The number of QP `qpn`'s connection with `from`, for a guess; `None`: the QP isn't listed, or has another peer.
    pub(super) fn connection(&self, (from, qpn): QpnPair) -> Option<u64> {
        let qp: &DirectoryEntry = self.0.words(qp_at(&self.0, qpn)?);
        let [peer, _, connection, _] = qp.read(NAMED | u64::from(qpn))?;
        (peer == u64::from(from)).then_some(connection)
    }

    /// QP `qpn` reaches its peer `from` by UDP; also true for a QP that has no entry.
    pub(super) fn is_by_udp(&self, (from, qpn): QpnPair) -> bool {
        qp_at(&self.0, qpn).is_none_or(|at| {
            let entry: &DirectoryEntry = self.0.words(at);
            entry.get(PEER) == u64::from(from) | BY_UDP
        })
    }

    /// QP `qpn` owes answers to its peer `from`, for a guess.
    pub(super) fn owes(&self, (from, qpn): QpnPair) -> bool {
        // Each QP of a slot has an entry of its own.
        qp_at(&self.0, qpn).is_some_and(|at| {
            let entry: &DirectoryEntry = self.0.words(at);
            entry.get(PEER) == u64::from(from) && entry.get(OWES) != 0
        })
    }

    /// The `len` bytes at `va` that QP `from` may access by way of its peer `qpn`; `None` when it may not, or when only packets lead
    /// there. To be called, and used, while an access word names both.
    pub(super) fn find(
        &self,
        (from, qpn): QpnPair,
        (rkey, va, len): (u32, u64, u64),
        purpose: Purpose,
    ) -> Option<FoundMemory> {
        let right = match purpose {
            Purpose::Read => right::READ,
            Purpose::Write => right::WRITE,
            Purpose::Offered => 0,
        };
        let qp: &DirectoryEntry = self.0.words(qp_at(&self.0, qpn)?);
        let [peer, qp_rights, connection, _] = qp.read(NAMED | u64::from(qpn))?;
        let region = self.region(rkey)?;
        let [addr, iova, length, region_rights] = region.words;
        let allowed = peer == u64::from(from)
            && qp_rights & region_rights & right == right
            && qp_rights >> 32 == region_rights >> 32;
        let offset = va.checked_sub(iova)?;
        (allowed && offset.checked_add(len)? <= length).then(|| FoundMemory {
            address: addr.wrapping_add(offset),
            region,
            connection,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_os::sys::duplicate_engine;

    const QPN: u32 = 0x3005;
    const PEER: u32 = 0x4001;
    const KEY: u32 = 0x0001_2377;
    const PD: u32 = 6;
    const ADDR: u64 = 0x7000_0000;
    const IOVA: u64 = 0x1000;
    const LENGTH: u64 = 0x800;
    const ENDS: QpnPair = (PEER, QPN);

    fn opened(own: &Directory) -> PeerDirectory {
        PeerDirectory::open(duplicate_engine(own.fd()).unwrap()).unwrap()
    }

    fn publish(own: &Directory, qp: (bool, bool), region: (bool, bool)) {
        let access =
            Access { remote_read: qp.0, remote_write: qp.1, remote_atomic: false, ..Access::default() };
        own.publish_qp(&ListedQp { ends: (QPN, PEER), connection: 1, pd: PD, access, owes: false });
        let (remote_read, remote_write) = region;
        let region = ListedRegion {
            pd: PD,
            addr: ADDR,
            iova: IOVA,
            length: LENGTH,
            remote_read,
            remote_write,
            shared: true,
            of_file: false,
        };
        own.publish_region(KEY, &region);
    }

    #[test]
    fn what_is_listed_is_found_and_nothing_else() {
        let own = Directory::new().unwrap();
        let peer = opened(&own);
        own.add_slot(3);
        publish(&own, (true, true), (true, true));
        let find = |ends, range| peer.find(ends, range, Purpose::Write).map(|found| found.address);
        assert_eq!(find(ENDS, (KEY, IOVA, LENGTH)), Some(ADDR));
        assert_eq!(find(ENDS, (KEY, IOVA + 0x10, LENGTH - 0x10)), Some(ADDR + 0x10));
        assert_eq!(find(ENDS, (KEY, IOVA + LENGTH, 0)), Some(ADDR + LENGTH));
        for (what, ends, range) in [
            ("another peer", (PEER + 1, QPN), (KEY, IOVA, 8)),
            ("another QP", (PEER, QPN + 1), (KEY, IOVA, 8)),
            ("a QP of another slot", (PEER, QPN + 0x1000), (KEY, IOVA, 8)),
            ("another key", ENDS, (KEY + 0x100, IOVA, 8)),
            ("another tag", ENDS, (KEY ^ 1, IOVA, 8)),
            ("no key", ENDS, (0, IOVA, 8)),
            ("the greatest key", ENDS, (u32::MAX, IOVA, 8)),
            ("before the region", ENDS, (KEY, IOVA - 1, 8)),
            ("beyond the region", ENDS, (KEY, IOVA + LENGTH - 7, 8)),
            ("a length that overflows", ENDS, (KEY, IOVA + 1, u64::MAX)),
            ("an address far off", ENDS, (KEY, u64::MAX, 8)),
        ] {
            assert_eq!(find(ends, range), None, "{what}");
        }
    }

    #[test]
    fn a_qp_owes_answers_to_its_peer_alone() {
        let own = Directory::new().unwrap();
        let peer = opened(&own);
        own.add_slot(3);
        own.note_owing(QPN, true);
        assert!(!peer.owes(ENDS), "it has no peer");
        publish(&own, (true, true), (true, true));
        assert!(!peer.owes(ENDS), "nothing is owed when it is listed");
        own.note_owing(QPN, true);
        assert!(peer.owes(ENDS) && !peer.owes((PEER + 1, QPN)) && !peer.owes((PEER, QPN + 1)));
        own.note_owing(QPN, false);
        assert!(!peer.owes(ENDS));
        own.note_owing(QPN, true);
        own.qp(QPN).unwrap().revoke();
        assert!(peer.owes(ENDS), "it is being changed, or has failed");
        own.note_owing(QPN, false);
        assert!(!peer.owes(ENDS));
    }

    #[test]
    fn rights_are_those_of_the_qp_and_of_the_region() {
        for (qp, region) in (0..16u8).map(|bits| {
            let bit = |n: u8| bits >> n & 1 == 1;
            ((bit(0), bit(1)), (bit(2), bit(3)))
        }) {
            let own = Directory::new().unwrap();
            own.add_slot(3);
            publish(&own, qp, region);
            let may = |purpose| opened(&own).find(ENDS, (KEY, IOVA, 8), purpose).is_some();
            let both = (may(Purpose::Read), may(Purpose::Write));
            assert_eq!(both, (qp.0 && region.0, qp.1 && region.1), "QP {qp:?}, region {region:?}");
        }
    }

    #[test]
    fn a_region_of_another_domain_is_not_found() {
        let own = Directory::new().unwrap();
        own.add_slot(3);
        publish(&own, (true, true), (true, true));
        let access =
            Access { remote_read: true, remote_write: true, remote_atomic: false, ..Access::default() };
        own.qp(QPN).unwrap().revoke();
        own.publish_qp(&ListedQp { ends: (QPN, PEER), connection: 1, pd: PD + 1, access, owes: false });
        for purpose in [Purpose::Read, Purpose::Write] {
            assert_eq!(opened(&own).find(ENDS, (KEY, IOVA, 8), purpose), None, "{purpose:?}");
        }
    }

    #[test]
    fn what_was_taken_back_is_not_found() {
        let own = Directory::new().unwrap();
        own.add_slot(3);
        let takes: [fn(&Directory) -> u64; 2] =
            [|own| own.region(KEY).unwrap().revoke(), |own| own.qp(QPN).unwrap().revoke()];
        for take in takes {
            publish(&own, (true, true), (true, true));
            let find = || opened(&own).find(ENDS, (KEY, IOVA, 8), Purpose::Read);
            let FoundMemory { region, .. } = find().unwrap();
            assert_ne!(take(&own), 0);
            assert_eq!(find(), None);
            // Listed anew, it is another one, whatever it looks like.
            publish(&own, (true, true), (true, true));
            assert!(region.is_shared() && find().is_some_and(|found| found.region != region));
            own.region(KEY).unwrap().revoke();
            assert!(!opened(&own).lists(&region));
        }
    }

    #[test]
    fn slots_are_listed_as_far_as_there_is_room() {
        let own = Directory::new().unwrap();
        let peer = opened(&own);
        for slot in [9, 9, 10, 11, 12, 13] {
            own.add_slot(slot);
        }
        let listed: Vec<u16> = (0..20).filter(|&slot| peer.has_slot(slot)).collect();
        assert_eq!(listed, [9, 10, 11, 12]);
        assert!(own.qp(13 << 12).is_none());
    }
}
