//! A connection's verbs objects and buffers, and the posting and polling that its accounts ([`ferroce_rsocket_protocol::flow`]) ask for.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;

use crate::abi::*;
use crate::verbs::{ConnectionId, IdQp, NO_COMPLETION, RegisteredMemory, Sizes, request};
use ferroce_rsocket_calls::call::{Outcome, SocketRefusal};
use ferroce_rsocket_protocol::ends::SocketAddresses;
use ferroce_rsocket_protocol::flow::{
    Arrived, DataSource, ProtocolViolation, ReceivingHalf, SenderSizes, SendingHalf, SentRequest, Write,
};
use ferroce_rsocket_protocol::runs::{Runs, piece_at};
use ferroce_rsocket_protocol::wire::{
    CONNECTION_DATA, ConnectionData, ControlMessage, ENTRY, IO_MAP_ENTRY, ImmediateMessage, IoMapEntry,
    MemoryEntry, TABLE,
};

/// The first piece of data of a call. Each next one is twice as long, so that sending begins while the rest is copied.
const FIRST_PIECE: usize = 2048;
/// The longest piece of data.
const LONGEST_PIECE: usize = 1 << 16;
/// Receives beside those for which there are credits: messages about the connection take none.
const MORE_RECEIVES: u32 = 8;

/// What a program may choose before it connects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choices {
    pub(crate) send_queue: u16,
    pub(crate) receive_queue: u16,
    pub(crate) inline: u32,
    pub(crate) send_buffer: u32,
    pub(crate) receive_buffer: u32,
    pub(crate) io_map_size: u16,
}

/// Before the peer's connection data is known.
#[derive(Debug)]
pub(crate) struct Prepared {
    qp: IdQp,
    /// The table of receive buffers, then that of mapped memory: the peer writes both.
    table: RegisteredMemory,
    /// What is written into the peer's tables, where requests don't take it themselves.
    notes: RegisteredMemory,
    receive_buffer: RegisteredMemory,
    send_buffer: RegisteredMemory,
    half: usize,
    credits: u16,
    io_map_size: u16,
}

impl Prepared {
    pub(crate) fn new(id: &ConnectionId, choices: &Choices) -> Outcome<Self> {
        let sizes = Sizes {
            send: choices.send_queue.into(),
            receive: u32::from(choices.receive_queue) + MORE_RECEIVES,
            inline: choices.inline,
        };
        let qp = IdQp::new(id, IBV_QPT_RC, sizes)?;
        let credits = u32::from(choices.receive_queue).min(qp.sizes().receive) as u16;
        let half = (choices.receive_buffer / 2).max(1) as usize;
        let written = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let new = Self {
            table: RegisteredMemory::new(
                id.pd(),
                TABLE * ENTRY + usize::from(choices.io_map_size) * IO_MAP_ENTRY,
                written,
            )?,
            notes: RegisteredMemory::new(id.pd(), NOTES * ENTRY, IBV_ACCESS_LOCAL_WRITE)?,
            receive_buffer: RegisteredMemory::new(id.pd(), 2 * half, written)?,
            send_buffer: RegisteredMemory::new(
                id.pd(),
                choices.send_buffer.max(1) as usize,
                IBV_ACCESS_LOCAL_WRITE,
            )?,
            qp,
            half,
            credits,
            io_map_size: choices.io_map_size,
        };
        for _ in 0..new.qp.sizes().receive {
            new.qp.post_receive(RECEIVE, &mut [])?;
        }
        Ok(new)
    }

    /// The descriptor that is readable when a completion has been notified.
    pub(crate) fn fd(&self) -> RawFd {
        self.qp.fd()
    }

    /// The connection data for the peer.
    pub(crate) fn data(&self) -> [u8; CONNECTION_DATA] {
        ConnectionData {
            big_endian: cfg!(target_endian = "big"),
            io_map: true,
            credits: self.credits,
            io_map_size: self.io_map_size,
            table: MemoryEntry { addr: self.table.address(), key: self.table.rkey(), length: TABLE as u32 },
            buffer: MemoryEntry {
                addr: self.receive_buffer.address(),
                key: self.receive_buffer.rkey(),
                length: self.half as u32,
            },
        }
        .emit()
    }
}

/// Messages about the connection that may be under way, each with its note.
const NOTES: usize = ferroce_rsocket_protocol::flow::CONTROL_PLACES as usize;
/// The `wr_id` of receives.
const RECEIVE: u64 = u64::MAX;

/// Memory that the peer may write by riowrite, or that isn't its to write.
#[derive(Debug)]
struct MappedRegion {
    mr: *mut ibv_mr,
    /// Its entry of the peer's table.
    index: Option<u16>,
}

// SAFETY: a region that any thread may deregister.
unsafe impl Send for MappedRegion {}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        // SAFETY: a live region.
        unsafe { ibv_dereg_mr(self.mr) };
    }
}

/// An established connection.
#[derive(Debug)]
pub(crate) struct StreamConnection {
    prepared: Prepared,
    peer: ConnectionData,
    sender: SendingHalf,
    receiver: ReceivingHalf,
    pub(crate) ends: SocketAddresses,
    next_note: usize,
    /// By the address and length of the memory.
    mapped: BTreeMap<(usize, usize), MappedRegion>,
    /// What the peer has mapped, by entry of our table.
    targets: BTreeMap<u16, IoMapEntry>,
    /// Entries of the peer's table of mapped memory that haven't been written yet.
    untold: Vec<(u16, IoMapEntry)>,
    /// The message about our ends that the peer has yet to get.
    farewell: Option<ControlMessage>,
}

impl StreamConnection {
    pub(crate) fn new(prepared: Prepared, peer: ConnectionData) -> Self {
        let sizes = SenderSizes {
            queue: prepared.qp.sizes().send,
            buffer: prepared.send_buffer.length(),
            inline: prepared.qp.sizes().inline as usize,
        };
        Self {
            sender: SendingHalf::new(sizes, peer.credits, peer.buffer),
            receiver: ReceivingHalf::new(prepared.credits, prepared.half),
            prepared,
            peer,
            ends: SocketAddresses::default(),
            next_note: 0,
            mapped: BTreeMap::new(),
            targets: BTreeMap::new(),
            untold: Vec::new(),
            farewell: None,
        }
    }

    /// The descriptor that is readable when a completion has been notified.
    pub(crate) fn fd(&self) -> RawFd {
        self.prepared.fd()
    }

    pub(crate) fn can_send(&self) -> bool {
        self.sender.can_send()
    }

    /// Whether the peer's adapter has everything that was sent.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.sender.is_idle()
    }

    pub(crate) fn readable(&self) -> usize {
        self.receiver.readable()
    }

    /// Processes completions. True: there was one, or waiting threads have to look again.
    pub(crate) fn progress(&mut self) -> bool {
        let mut any = self.prepared.qp.take_events();
        let mut room = [NO_COMPLETION; 16];
        loop {
            let found = match self.prepared.qp.poll(&mut room) {
                Ok(found) => found.len(),
                Err(refusal) => {
                    self.ends.fail(refusal.errno);
                    return true;
                }
            };
            for completion in &room[..found] {
                self.completed(completion);
            }
            any |= found > 0;
            if found < room.len() {
                break;
            }
        }
        if any {
            self.give_credits();
            self.tell_mapped();
            self.tell_farewell();
        }
        any
    }

    fn completed(&mut self, completion: &ibv_wc) {
        if completion.status != IBV_WC_SUCCESS {
            self.ends.fail(errno_of(completion.status));
            if completion.wr_id != RECEIVE {
                self.sender.completed(SentRequest::of(completion.wr_id));
            }
            return;
        }
        if completion.wr_id == RECEIVE {
            if let Err(ProtocolViolation(why)) = self.arrived(completion) {
                ferroce_rsocket_calls::log::refused("rsocket", &format!("the peer isn't an rsocket: {why}"));
                self.ends.fail(libc::EPROTO);
            }
            return;
        }
        let sent = SentRequest::of(completion.wr_id);
        self.sender.completed(sent);
        if sent == SentRequest::Disconnect {
            self.ends.disconnect();
        }
    }

    fn arrived(&mut self, completion: &ibv_wc) -> Result<(), ProtocolViolation> {
        if !self.ends.is_over() && self.prepared.qp.post_receive(RECEIVE, &mut []).is_err() {
            self.ends.fail(libc::EIO);
        }
        if completion.wc_flags & IBV_WC_WITH_IMM == 0 {
            return Err(ProtocolViolation("it sends a message without immediate data"));
        }
        match self.receiver.message(ImmediateMessage::parse(u32::from_be(completion.imm_data)))? {
            Arrived::Data => {}
            Arrived::Credits(until) => {
                let written = completion.byte_len as usize == ENTRY;
                let entry = written.then(|| {
                    let at = self.sender.expected_entry() * ENTRY;
                    MemoryEntry::from_own_table(&self.prepared.table.bytes(at))
                });
                self.sender.granted(until, entry)?;
            }
            Arrived::IoMap(index) => {
                if index >= self.prepared.io_map_size {
                    return Err(ProtocolViolation("it maps memory beyond the table"));
                }
                let at = TABLE * ENTRY + usize::from(index) * IO_MAP_ENTRY;
                let entry = IoMapEntry::from_own_table(&self.prepared.table.bytes(at));
                self.targets.insert(index, entry);
            }
            Arrived::Control(control) => self.ends.received(control),
        }
        Ok(())
    }

    /// Requests a notification of the next completion. Earlier completions must be processed afterwards.
    pub(crate) fn arm(&mut self) {
        if let Err(refusal) = self.prepared.qp.arm() {
            self.ends.fail(refusal.errno);
        }
    }

    /// Whether a notification is requested, or no completion is outstanding.
    pub(crate) fn is_armed(&self) -> bool {
        self.prepared.qp.is_armed() || self.ends.is_over()
    }

    /// Sends the peer credits for room that has become free.
    pub(crate) fn give_credits(&mut self) {
        while !self.ends.is_over() && self.receiver.owes() && self.sender.control() {
            let grant = self.receiver.grant();
            let mut write = request(SentRequest::Control.id(), IBV_WR_RDMA_WRITE_WITH_IMM);
            write.imm_data = grant.message.emit().to_be();
            let posted = match grant.half {
                None => self.prepared.qp.post_send(&mut write),
                Some((offset, entry)) => {
                    let half = MemoryEntry {
                        addr: self.prepared.receive_buffer.address() + offset as u64,
                        key: self.prepared.receive_buffer.rkey(),
                        length: self.prepared.half as u32,
                    }
                    .for_peer(self.peer.big_endian);
                    write.wr = ibv_send_wr_wr {
                        rdma: ibv_send_wr_rdma {
                            remote_addr: self.peer.table.addr + (entry * ENTRY) as u64,
                            rkey: self.peer.table.key,
                        },
                    };
                    self.post_note(&mut write, &half)
                }
            };
            self.check(posted);
        }
    }

    /// Posts a request about the connection with a payload.
    fn post_note(&mut self, write: &mut ibv_send_wr, bytes: &[u8; ENTRY]) -> Outcome<()> {
        let offset = self.next_note * ENTRY;
        self.next_note = (self.next_note + 1) % NOTES;
        // SAFETY: an array of this length.
        unsafe { self.prepared.notes.put(offset, bytes.as_ptr(), ENTRY) };
        let mut list = [self.prepared.notes.entry(offset, ENTRY)];
        (write.sg_list, write.num_sge) = (list.as_mut_ptr(), 1);
        self.prepared.qp.post_send(write)
    }

    fn check(&mut self, posted: Outcome<()>) {
        if let Err(refusal) = posted {
            self.ends.fail(refusal.errno);
        }
    }

    /// Closes ends. The peer gets the message in order with the data that was sent before; a DISCONNECT that has arrived ends the connection.
    pub(crate) fn shut(&mut self, reading: bool, writing: bool) {
        if let Some(control) = self.ends.shut(reading, writing) {
            self.farewell = Some(control);
            self.tell_farewell();
        }
    }

    fn tell_farewell(&mut self) {
        let Some(control) = self.farewell.filter(|_| !self.ends.is_over()) else { return };
        if !self.sender.control() {
            return;
        }
        self.farewell = None;
        let sent = if control == ControlMessage::Disconnect {
            SentRequest::Disconnect
        } else {
            SentRequest::Control
        };
        let mut write = request(sent.id(), IBV_WR_RDMA_WRITE_WITH_IMM);
        write.imm_data = ImmediateMessage::Control(control).emit().to_be();
        let posted = self.prepared.qp.post_send(&mut write);
        self.check(posted);
    }

    /// Lets the peer's adapter acknowledge something, so that a peer that is gone is noticed.
    pub(crate) fn keep_alive(&mut self) {
        if !self.ends.is_over() && self.sender.control() {
            let mut write = request(SentRequest::Control.id(), IBV_WR_RDMA_WRITE);
            let posted = self.prepared.qp.post_send(&mut write);
            self.check(posted);
        }
    }

    /// Posts a write of the next bytes of `from`, as many as the write has.
    ///
    /// # Safety
    /// `from` is readable.
    unsafe fn post_write(
        &mut self,
        write: Write,
        message: Option<ImmediateMessage>,
        from: &mut Runs<'_>,
    ) -> Outcome<()> {
        let length = write.length;
        let buffer = &self.prepared.send_buffer;
        let kept = if write.place == DataSource::Inline { 0 } else { length as u32 };
        let opcode = if message.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE };
        let mut posted = request(SentRequest::Data(kept).id(), opcode);
        posted.imm_data = message.map_or(0, |message| message.emit().to_be());
        posted.wr = ibv_send_wr_wr { rdma: ibv_send_wr_rdma { remote_addr: write.remote, rkey: write.key } };
        let mut gathered = Vec::new();
        let (mut list, entries) = match write.place {
            DataSource::Inline => {
                posted.send_flags = IBV_SEND_INLINE;
                let addr = match from.run() {
                    Some((at, run)) if run >= length => {
                        from.skip(length);
                        at
                    }
                    _ => {
                        // SAFETY: the caller's promise.
                        let bytes = |at, run| unsafe { std::slice::from_raw_parts(at, run) };
                        from.take(length, |_, at, run| gathered.extend_from_slice(bytes(at, run)));
                        gathered.as_ptr()
                    }
                };
                let entry = ibv_sge { addr: addr as u64, length: length as u32, lkey: 0 };
                ([entry, entry], 1)
            }
            DataSource::Buffer(offset) => {
                from.take(length, |before, at, run| {
                    // SAFETY: the caller's promise; the accounts keep to the buffer's length.
                    unsafe { buffer.put((offset + before) % buffer.length(), at, run) };
                });
                let before_end = length.min(buffer.length() - offset);
                let list = [buffer.entry(offset, before_end), buffer.entry(0, length - before_end)];
                (list, if before_end < length { 2 } else { 1 })
            }
        };
        (posted.sg_list, posted.num_sge) = (list.as_mut_ptr(), entries);
        self.prepared.qp.post_send(&mut posted)
    }

    /// Sends what can be sent at once of `from`; how many bytes. `piece` is how long the next message may be.
    ///
    /// # Safety
    /// `from` is readable.
    pub(crate) unsafe fn send(&mut self, mut from: Runs<'_>, piece: &mut Piece) -> usize {
        let (mut done, length) = (0, from.left());
        while done < length && self.ends.is_writable() {
            let Some(write) = self.sender.data((length - done).min(piece.next())) else { break };
            let (message, sent) = (ImmediateMessage::Data(write.length as u32), write.length);
            // SAFETY: the caller's promise.
            let posted = unsafe { self.post_write(write, Some(message), &mut from) };
            self.check(posted);
            done += sent;
        }
        done
    }

    /// Copies what has arrived to `to`, at most `length` bytes and after the first `skipped`. They stay readable.
    ///
    /// # Safety
    /// `to` is writable for `length` bytes.
    pub(crate) unsafe fn copy(&self, to: *mut u8, length: usize, skipped: usize) {
        let length = length.min(self.receiver.readable().saturating_sub(skipped));
        let mut done = 0;
        while done < length {
            let (offset, run) = self.receiver.next_bytes(skipped + done);
            let run = run.min(length - done);
            // SAFETY: within what the caller promises.
            unsafe { self.prepared.receive_buffer.get(offset, to.add(done), run) };
            done += run;
        }
    }

    /// So many bytes have been read.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.receiver.consumed(bytes);
        self.give_credits();
    }

    /// Registers memory of the program; `offset` is what the peer knows it by, or a number is chosen.
    pub(crate) fn map(
        &mut self,
        pd: *mut ibv_pd,
        memory: (usize, usize),
        write: bool,
        offset: Option<u64>,
    ) -> Outcome<u64> {
        if !self.peer.io_map {
            return Err(SocketRefusal::new(libc::EOPNOTSUPP, "the peer can't write mapped memory"));
        }
        if self.mapped.contains_key(&memory) {
            return Err(SocketRefusal::new(libc::EINVAL, "the memory is mapped already"));
        }
        let length = u32::try_from(memory.1)
            .map_err(|_| SocketRefusal::new(libc::EINVAL, "a mapping has less than 4 GiB"))?;
        let index = if write {
            let taken = |index: &u16| self.mapped.values().any(|m| m.index == Some(*index));
            let free = (0..self.peer.io_map_size).find(|index| !taken(index));
            Some(free.ok_or_else(|| {
                SocketRefusal::new(
                    libc::ENOBUFS,
                    "all entries are mapped that the peer has room for; the peer may set more by RDMA_IOMAPSIZE before it \
                     connects",
                )
            })?)
        } else {
            None
        };
        let access =
            if write { IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE } else { IBV_ACCESS_LOCAL_WRITE };
        // SAFETY: a live domain; the memory is the program's, which promises that it is there.
        let mr = unsafe { ibv_reg_mr(pd, memory.0 as *mut _, memory.1, access) };
        if mr.is_null() {
            return Err(SocketRefusal::last("the memory can't be registered"));
        }
        // SAFETY: a live region.
        let key = unsafe { (*mr).rkey };
        self.mapped.insert(memory, MappedRegion { mr, index });
        let offset = offset.unwrap_or(memory.0 as u64);
        if let Some(index) = index {
            let memory = MemoryEntry { addr: memory.0 as u64, key, length };
            self.untold.push((index, IoMapEntry { offset, memory }));
            self.tell_mapped();
        }
        Ok(offset)
    }

    /// Ends a mapping.
    pub(crate) fn unmap(&mut self, memory: (usize, usize)) -> Outcome<()> {
        let mapped = self.mapped.remove(&memory);
        let mapped = mapped.ok_or_else(|| SocketRefusal::new(libc::EINVAL, "no such mapping"))?;
        if let Some(index) = mapped.index {
            self.untold.retain(|(i, _)| *i != index);
            self.untold.push((index, IoMapEntry::default()));
            self.tell_mapped();
        }
        Ok(())
    }

    /// Sends mappings to the peer, as far as there is room.
    fn tell_mapped(&mut self) {
        while let Some((index, entry)) = self.untold.first().copied() {
            let remote = self.peer.table.addr + (TABLE * ENTRY + usize::from(index) * IO_MAP_ENTRY) as u64;
            if self.ends.is_over() {
                return;
            }
            let Some(write) = self.sender.table_entry(IO_MAP_ENTRY, remote, self.peer.table.key) else {
                return;
            };
            self.untold.remove(0);
            let bytes = entry.for_peer(self.peer.big_endian);
            let piece = [piece_at(bytes.as_ptr(), bytes.len())];
            let message = Some(ImmediateMessage::IoMap(index));
            // SAFETY: an array of this length.
            let posted = unsafe { self.post_write(write, message, &mut Runs::behind(&piece, 0)) };
            self.check(posted);
        }
    }

    /// Whether all mappings have been sent to the peer.
    pub(crate) fn has_told_mapped(&self) -> bool {
        self.untold.is_empty()
    }

    /// Writes what can be written at once of `length` bytes at `from` to the memory that the peer has mapped at `offset`; how
    /// many.
    ///
    /// # Safety
    /// `from` is readable for `length` bytes.
    pub(crate) unsafe fn write_mapped(
        &mut self,
        from: *const u8,
        length: usize,
        offset: u64,
        piece: &mut Piece,
    ) -> Outcome<usize> {
        let mut done = 0;
        let memory = [piece_at(from, length)];
        let mut from = Runs::behind(&memory, 0);
        while done < length && self.ends.is_writable() {
            let at = offset.wrapping_add(done as u64);
            let Some(target) = self.targets.values().find(|target| target.holds(at)) else {
                return Err(SocketRefusal::new(libc::EINVAL, "the peer has mapped nothing at this offset"));
            };
            let inside = at - target.offset;
            let left = (u64::from(target.memory.length) - inside) as usize;
            let (remote, key) = (target.memory.addr + inside, target.memory.key);
            let wanted = (length - done).min(left).min(piece.next());
            let Some(write) = self.sender.mapped(wanted, remote, key) else { break };
            let written = write.length;
            // SAFETY: the caller's promise.
            let posted = unsafe { self.post_write(write, None, &mut from) };
            self.check(posted);
            done += written;
        }
        Ok(done)
    }
}

/// How long the pieces of one call are.
pub(crate) struct Piece(usize);

impl Piece {
    pub(crate) fn new() -> Self {
        Self(FIRST_PIECE)
    }

    fn next(&mut self) -> usize {
        let this = self.0;
        self.0 = (2 * this).min(LONGEST_PIECE);
        this
    }
}

/// What a failed completion means for the connection.
fn errno_of(status: c_int) -> c_int {
    const RETRIES_EXCEEDED: c_int = 12;
    const RECEIVER_NOT_READY: c_int = 13;
    const FLUSHED: c_int = 5;
    const REMOTE: std::ops::RangeInclusive<c_int> = 9..=11;
    match status {
        RETRIES_EXCEEDED | RECEIVER_NOT_READY => libc::ETIMEDOUT,
        FLUSHED => libc::ECONNRESET,
        status if REMOTE.contains(&status) => libc::ECONNRESET,
        _ => libc::EIO,
    }
}
