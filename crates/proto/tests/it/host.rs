//! The surroundings of one QP: memory with keys, a receive queue, completions, and packets on their way out.

use ferroce_proto::{
    Buffer, Cause, DelegateError, Env, Failure, KeptPacket, KeptPackets, LookedAt, NeededMemory, NoReceive,
    PayloadSource, PlaceError, QpEvent, SendEnds, SendWr, SrqPlace, TagInfo, Taken, Telling, TransmitError,
    Unanswered,
};
use ferroce_types::{
    Access, AtomicOp, BindMw, Completion, Instant, Placement, RecvWqe, RemoteAccess, RemoteError, Sge,
    WcOpcode, WcStatus,
};
use ferroce_wire::{Headers, Operation, TagOperation, Tmh};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Address of a host's first byte of memory.
pub const BASE: u64 = 0x10_0000;
/// Where tests write and read the peer's memory.
pub const THERE: u64 = BASE + (1 << 20);
/// The number of every reason.
pub const REASON: u16 = 77;
/// The key of all its memory, with all rights.
pub const ALL: u32 = 0x100;

/// A packet on the wire.
#[derive(Clone, Debug)]
pub struct Frame {
    pub headers: Headers,
    pub payload: Vec<u8>,
}

/// A registered region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub start: u64,
    pub len: u64,
    pub local_write: bool,
    pub remote_read: bool,
    pub remote_write: bool,
    pub remote_atomic: bool,
    pub flush: bool,
    /// The memory behind it has been unmapped.
    pub gone: bool,
}

impl Region {
    pub const fn new(start: u64, len: u64) -> Self {
        Self {
            start,
            len,
            local_write: true,
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            flush: true,
            gone: false,
        }
    }
}

pub struct Host {
    pub memory: Vec<u8>,
    pub regions: BTreeMap<u32, Region>,
    pub receives: VecDeque<RecvWqe>,
    pub srq: bool,
    /// The SRQs of an XRC target by number.
    pub xrc_srqs: BTreeMap<u32, VecDeque<RecvWqe>>,
    /// Keys of one SRQ's protection domain; all others go with every SRQ.
    pub owners: BTreeMap<u32, u32>,
    selected: Option<u32>,
    /// SRQs of another process, and the requests given to it, with their runs.
    pub other_process: Vec<u32>,
    pub delegated: VecDeque<(Frame, u32)>,
    /// Requests that can be given to it at a time.
    pub delegated_room: usize,
    /// It asks the initiator for time while that process is silent.
    pub asks_for_time: bool,
    pub sends: Vec<Completion>,
    /// The next completion of a work request, or of a rendezvous's data, is given and then panics.
    pub panics_once: bool,
    pub recvs: Vec<Completion>,
    /// Receive completions that wait for the ACK that is owed.
    pub unpublished: Vec<Completion>,
    /// The numbers of the packets with which receives have ended, by `wr_id`.
    pub ended_with: BTreeMap<u64, u64>,
    pub events: Vec<QpEvent>,
    pub out: Vec<Frame>,
    /// Every request and response packet that left, in order: operation and PSN.
    pub log: Vec<(Operation, u32)>,
    pub window: u32,
    /// What it sends may be marked by the network.
    pub ecn: bool,
    /// Packets the fabric still takes; `None`: no limit.
    pub room: Option<usize>,
    /// Nothing leaves before then.
    pub later: Option<Instant>,
    /// Bytes that may still be carried out without the peer; all is claimed to succeed.
    pub direct: u64,
    /// It had rather execute a request than send a packet.
    pub prefers_direct: bool,
    /// Memory of the requests of this side isn't there.
    pub memory_is_absent: bool,
    /// What was carried out so: offset and bytes.
    pub direct_log: Vec<(u64, u32)>,
    /// The peer is alive and looks at nothing.
    pub peer_stopped: bool,
    /// What was waited for each time that the transport has asked whether an answer may come.
    pub waited_for: Vec<Unanswered>,
    /// READs of the peer's that have been answered: their bytes, and whether the peer's request ends with them.
    pub read_by_peer: Vec<(u32, bool)>,
    /// What was flushed: addresses and lengths.
    pub flushed: Vec<(u64, u64)>,
    /// Tags with masks and buffers.
    pub tags: Vec<(u64, u64, RecvWqe)>,
    /// Messages that matched none.
    pub unexpected: u32,
    /// The tag infos of completions.
    pub infos: Vec<TagInfo>,
    /// Packets go the short way where they can, and how many have.
    pub takes_plain: bool,
    /// What it owes for a packet leaves before it looks at the next.
    pub answers_at_once: bool,
    /// PSNs that are acknowledged by the fabric if the peer takes them the short way.
    pub awaited: BTreeSet<u32>,
    pub plain: u32,
    /// The reported errors, each with the `wr_id` of the request and of the receive, and the number of flushed requests.
    pub failures: Vec<(Cause, Option<u64>, Option<u64>, u32)>,
    /// How NAKs carry the numbers of reasons.
    pub telling: Telling,
    /// Packets beyond a gap, and how many of them may be kept.
    pub kept: KeptPackets,
    pub kept_room: usize,
    /// What is kept counts as another sender's the next time that some of it is taken.
    pub distrusts_kept: bool,
    /// Packets that were kept, and wait for memory.
    pub awaiting: Vec<KeptPacket>,
}

impl Host {
    pub fn new(bytes: usize) -> Self {
        Self {
            memory: vec![0; bytes],
            regions: BTreeMap::from([(ALL, Region::new(BASE, bytes as u64))]),
            receives: VecDeque::new(),
            srq: false,
            xrc_srqs: BTreeMap::new(),
            owners: BTreeMap::new(),
            selected: None,
            other_process: Vec::new(),
            delegated: VecDeque::new(),
            delegated_room: 20,
            asks_for_time: false,
            sends: Vec::new(),
            panics_once: false,
            recvs: Vec::new(),
            unpublished: Vec::new(),
            ended_with: BTreeMap::new(),
            events: Vec::new(),
            out: Vec::new(),
            log: Vec::new(),
            window: 1 << 20,
            ecn: true,
            room: None,
            later: None,
            direct: 0,
            prefers_direct: false,
            memory_is_absent: false,
            direct_log: Vec::new(),
            peer_stopped: false,
            waited_for: Vec::new(),
            read_by_peer: Vec::new(),
            flushed: Vec::new(),
            tags: Vec::new(),
            unexpected: 0,
            infos: Vec::new(),
            takes_plain: false,
            answers_at_once: false,
            awaited: BTreeSet::new(),
            plain: 0,
            failures: Vec::new(),
            telling: Telling::Never,
            kept: KeptPackets::default(),
            kept_room: 0,
            distrusts_kept: false,
            awaiting: Vec::new(),
        }
    }

    pub fn post_recv(&mut self, wr_id: u64, addr: u64, length: u32) {
        self.receives
            .push_back(RecvWqe { wr_id, sges: [Sge { addr, length, lkey: ALL }].into_iter().collect() });
    }

    pub fn bytes(&self, addr: u64, len: usize) -> &[u8] {
        let from = (addr - BASE) as usize;
        &self.memory[from..from + len]
    }

    pub fn fill(&mut self, addr: u64, len: usize, seed: u8) {
        let from = (addr - BASE) as usize;
        for (i, byte) in self.memory[from..from + len].iter_mut().enumerate() {
            *byte = pattern(seed, i);
        }
    }

    pub fn send_statuses(&self) -> Vec<(u64, WcStatus)> {
        self.sends.iter().map(|c| (c.wr_id, c.status)).collect()
    }

    pub fn recv_statuses(&self) -> Vec<(u64, WcStatus)> {
        self.recvs.iter().map(|c| (c.wr_id, c.status)).collect()
    }

    /// How often an operation left.
    pub fn sent(&self, operation: Operation) -> usize {
        self.log.iter().filter(|(op, _)| *op == operation).count()
    }

    fn span(&self, addr: u64, len: u64) -> core::ops::Range<usize> {
        let from = (addr - BASE) as usize;
        from..from + len as usize
    }

    fn region(
        &self,
        key: u32,
        addr: u64,
        len: u64,
        allowed: impl Fn(&Region) -> bool,
    ) -> Result<(), RemoteError> {
        let region = self.regions.get(&key).ok_or(RemoteError::Access)?;
        if self.owners.get(&key).is_some_and(|owner| self.selected != Some(*owner)) {
            return Err(RemoteError::Access);
        }
        let end = addr.checked_add(len).ok_or(RemoteError::Access)?;
        if addr < region.start || end > region.start + region.len || !allowed(region) {
            return Err(RemoteError::Access);
        }
        if region.gone { Err(RemoteError::Operational) } else { Ok(()) }
    }

    /// Pieces of memory that `len` bytes from `offset` of a message lie in.
    fn pieces(
        &self,
        sges: &[Sge],
        offset: u64,
        len: u64,
        write: bool,
    ) -> Result<Vec<core::ops::Range<usize>>, ()> {
        let (mut skip, mut left, mut pieces) = (offset, len, Vec::new());
        for sge in sges {
            let length = u64::from(sge.length);
            if skip >= length {
                skip -= length;
                continue;
            }
            let here = (length - skip).min(left);
            self.region(sge.lkey, sge.addr + skip, here, |r| r.local_write || !write).map_err(drop)?;
            pieces.push(self.span(sge.addr + skip, here));
            (skip, left) = (0, left - here);
            if left == 0 {
                return Ok(pieces);
            }
        }
        if left == 0 { Ok(pieces) } else { Err(()) }
    }
}

/// Byte `i` of a message with this seed.
pub fn pattern(seed: u8, i: usize) -> u8 {
    (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)
}

impl SendEnds for Host {
    type Address = u32;

    fn complete_send(&mut self, completion: Completion) {
        self.sends.push(completion);
        assert!(!std::mem::take(&mut self.panics_once), "injected");
    }
}

impl Env for Host {
    type Payload<'p> = &'p [u8];

    fn transmit(
        &mut self,
        headers: &Headers,
        source: PayloadSource<'_>,
        _to: Option<&Self::Address>,
    ) -> Result<(), TransmitError> {
        if self.room == Some(0) {
            return Err(TransmitError::Blocked);
        }
        if self.memory_is_absent && matches!(source, PayloadSource::Local { .. }) {
            return Err(TransmitError::AwaitsMemory);
        }
        if let Some(at) = self.later {
            return Err(TransmitError::Later(at));
        }
        let payload = match source {
            PayloadSource::None => Vec::new(),
            PayloadSource::Bytes(bytes) => bytes.to_vec(),
            PayloadSource::Local { sges, offset, len, .. } => self
                .pieces(sges, offset, u64::from(len), false)
                .map_err(|()| TransmitError::Local)?
                .into_iter()
                .flat_map(|piece| self.memory[piece].iter().copied())
                .collect(),
            PayloadSource::Remote { rkey, va, len } => {
                self.region(rkey, va, u64::from(len), |r| r.remote_read).map_err(TransmitError::Remote)?;
                self.memory[self.span(va, u64::from(len))].to_vec()
            }
        };
        if let Some(room) = &mut self.room {
            *room -= 1;
        }
        self.log.push((headers.bth.opcode.operation, headers.bth.psn));
        self.out.push(Frame { headers: *headers, payload });
        Ok(())
    }

    fn execute_directly(
        &mut self,
        _peer: u32,
        _wr: &SendWr<u32>,
        _buffer: Buffer,
        offset: u64,
        max: u32,
    ) -> Result<Option<u32>, TransmitError> {
        if self.memory_is_absent {
            return Err(TransmitError::AwaitsMemory);
        }
        let bytes = self.direct.min(u64::from(max)).min(4096) as u32;
        self.direct -= u64::from(bytes);
        Ok((bytes > 0).then(|| {
            self.direct_log.push((offset, bytes));
            bytes
        }))
    }

    fn prefers_to_execute(&self, _wr: &SendWr<u32>) -> bool {
        self.prefers_direct
    }

    fn answer_may_come(&mut self, _peer: u32, oldest: Unanswered) -> bool {
        self.waited_for.push(oldest);
        self.peer_stopped
    }

    fn is_ecn_capable(&self) -> bool {
        self.ecn
    }

    fn window(&self) -> u32 {
        self.window
    }

    fn keep(&mut self, number: u64, headers: &Headers, payload: &Self::Payload<'_>) -> bool {
        self.kept.len() < self.kept_room && self.kept.keep(number, headers, payload)
    }

    fn take_kept(&mut self, number: u64) -> Option<KeptPacket> {
        if std::mem::take(&mut self.distrusts_kept) {
            return None;
        }
        self.kept.take(number)
    }

    fn forget_kept(&mut self) {
        self.kept = KeptPackets::default();
    }

    fn look(&mut self, needed: &NeededMemory<'_>, len: usize) -> LookedAt {
        let receive = match needed {
            NeededMemory::NextReceive if self.srq => self.next_recv_for(len as u64).ok(),
            _ => None,
        };
        let needs_any = match needed {
            NeededMemory::Nothing => false,
            NeededMemory::NextReceive if self.srq => receive.is_some(),
            _ => true,
        };
        LookedAt { is_there: !(needs_any && self.memory_is_absent), receive }
    }

    fn await_memory_of_kept(&mut self, packets: Vec<KeptPacket>) {
        self.awaiting.extend(packets);
    }

    fn payload_of(bytes: &[u8]) -> Self::Payload<'_> {
        bytes
    }

    fn select_srq(&mut self, srqn: u32) -> SrqPlace {
        self.selected = self.xrc_srqs.contains_key(&srqn).then_some(srqn);
        match self.selected {
            Some(_) => SrqPlace::Here,
            None if self.other_process.contains(&srqn) => SrqPlace::OtherProcess,
            None => SrqPlace::Nowhere,
        }
    }

    fn delegate(
        &mut self,
        headers: &Headers,
        payload: &Self::Payload<'_>,
        run: u32,
    ) -> Result<(), DelegateError> {
        if self.delegated.len() == self.delegated_room {
            return Err(DelegateError::Full);
        }
        self.delegated.push_back((Frame { headers: *headers, payload: payload.to_vec() }, run));
        Ok(())
    }

    fn next_recv(&mut self) -> Option<RecvWqe> {
        match self.selected.and_then(|srqn| self.xrc_srqs.get_mut(&srqn)) {
            Some(srq) => srq.pop_front(),
            None => self.receives.pop_front(),
        }
    }

    fn next_recv_for(&mut self, len: u64) -> Result<RecvWqe, NoReceive> {
        let room: u64 = self.receives.front().ok_or(NoReceive::Empty)?.capacity();
        if room < len {
            return Err(NoReceive::TooSmall);
        }
        self.next_recv().ok_or(NoReceive::Empty)
    }

    fn flush_recv_queue(&mut self) {
        if self.srq {
            return;
        }
        while let Some(receive) = self.receives.pop_front() {
            self.unpublished.push(Completion::new(
                receive.wr_id,
                WcStatus::WrFlushErr,
                ferroce_types::WcOpcode::Recv,
            ));
        }
    }

    fn next_tagged(&mut self, header: &Tmh) -> Option<Taken> {
        let expectable = matches!(header.operation, TagOperation::Eager | TagOperation::Rendezvous);
        let matches = |(tag, mask, _): &(u64, u64, RecvWqe)| header.tag & mask == *tag;
        if let Some(at) = self.tags.iter().position(matches).filter(|_| expectable) {
            let (_, _, receive) = self.tags.remove(at);
            return Some(Taken { receive, matched: true, sync_required: false });
        }
        let receive = self.receives.pop_front()?;
        self.unexpected += u32::from(expectable);
        Some(Taken { receive, matched: false, sync_required: false })
    }

    fn forget_unexpected(&mut self) {
        self.unexpected -= 1;
    }

    fn place(
        &mut self,
        _buffer: Buffer,
        sges: &[Sge],
        offset: u64,
        payload: &Self::Payload<'_>,
        skip: usize,
    ) -> Result<(), PlaceError> {
        self.place_bytes(sges, offset, &payload[skip..]).map_err(|()| PlaceError)
    }

    fn place_bytes(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), ()> {
        let mut rest = bytes;
        for piece in self.pieces(sges, offset, bytes.len() as u64, true)? {
            let (here, after) = rest.split_at(piece.len());
            self.memory[piece].copy_from_slice(here);
            rest = after;
        }
        Ok(())
    }

    fn place_grh(&mut self, sges: &[Sge]) -> Result<bool, ()> {
        self.place_bytes(sges, 0, &[0x60; 40]).map(|()| true)
    }

    fn check_remote(
        &mut self,
        rkey: u32,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), RemoteError> {
        self.region(rkey, va, len, |r| match access {
            RemoteAccess::Read => r.remote_read,
            RemoteAccess::Write | RemoteAccess::Store => r.remote_write,
            RemoteAccess::Atomic => r.remote_atomic,
            RemoteAccess::Flush(placement) => r.flush && !placement.persistent,
        })
    }

    fn write_remote(&mut self, rkey: u32, va: u64, payload: &Self::Payload<'_>) -> Result<(), RemoteError> {
        self.region(rkey, va, payload.len() as u64, |r| r.remote_write)?;
        let span = self.span(va, payload.len() as u64);
        self.memory[span].copy_from_slice(payload);
        Ok(())
    }

    fn atomic_remote(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, RemoteError> {
        let store = matches!(op, AtomicOp::Store { .. });
        self.region(rkey, va, 8, |r| if store { r.remote_write } else { r.remote_atomic })?;
        let span = self.span(va, 8);
        let original = u64::from_ne_bytes(self.memory[span.clone()].try_into().unwrap());
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOp::CompareSwap { .. } => original,
            AtomicOp::FetchAdd { add } => original.wrapping_add(add),
            AtomicOp::Store { value } => value,
        };
        self.memory[span].copy_from_slice(&new.to_ne_bytes());
        Ok(original)
    }

    fn flush_remote(
        &mut self,
        rkey: u32,
        range: Option<(u64, u64)>,
        placement: Placement,
    ) -> Result<(), RemoteError> {
        let (va, len) = match (range, self.regions.get(&rkey)) {
            (Some(range), _) => range,
            (None, Some(region)) => (region.start, region.len),
            (None, None) => return Err(RemoteError::Access),
        };
        self.region(rkey, va, len, |r| r.flush && !placement.persistent)?;
        self.flushed.push((va, len));
        Ok(())
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), RemoteError> {
        if rkey == ALL {
            Err(RemoteError::Access)
        } else {
            self.regions.remove(&rkey).map(drop).ok_or(RemoteError::Access)
        }
    }

    /// The window's old key is the number by which the request names it.
    fn bind_window(&mut self, bind: &BindMw) -> Result<(), ()> {
        self.region(bind.lkey, bind.va, bind.length, |_| true).map_err(drop)?;
        self.regions.remove(&(bind.window as u32));
        if bind.length > 0 {
            let Access { remote_read, remote_write, remote_atomic, .. } = bind.access;
            let whole = Region::new(bind.va, bind.length);
            let window = Region { local_write: false, remote_read, remote_write, remote_atomic, ..whole };
            self.regions.insert(bind.rkey, window);
        }
        Ok(())
    }

    fn complete_recv(&mut self, completion: Completion, number: u64) {
        self.ended_with.insert(completion.wr_id, number);
        self.unpublished.push(completion);
    }

    fn flush_unacknowledged(&mut self, from: u64) {
        for completion in &mut self.unpublished {
            if self.ended_with.get(&completion.wr_id).is_some_and(|&number| number >= from) {
                completion.status = WcStatus::WrFlushErr;
            }
        }
    }

    fn complete_tagged(&mut self, completion: Completion, number: u64, info: TagInfo) {
        self.infos.push(info);
        let ends_rendezvous = completion.opcode == WcOpcode::TmRecv && !completion.tags().matched;
        self.complete_recv(completion, number);
        assert!(!(ends_rendezvous && std::mem::take(&mut self.panics_once)), "injected");
    }

    fn failed(&mut self, failure: &Failure<'_, u32>) -> u16 {
        let (request, receive) = (failure.request.map(|wr| wr.wr_id), failure.receive.map(|wqe| wqe.wr_id));
        self.failures.push((failure.cause, request, receive, failure.flushed));
        REASON
    }

    fn was_read(&mut self, bytes: u32, ends: bool) {
        self.read_by_peer.push((bytes, ends));
    }

    fn telling(&self) -> Telling {
        self.telling
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }
}
