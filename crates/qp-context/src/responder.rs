//! What a responder remembers.

use crate::{Counters, psn};
use crate::{Delegated, KeptNumbers, MessageProgress, Tagged};
use ferroce_types::RecvWqe;

/// Everything the responder remembers besides its answers.
#[derive(Debug, Default)]
pub struct Responder {
    /// The extended PSN of the first request, which the program has set.
    pub first: u64,
    /// The extended PSN of the next request.
    pub expected: u64,
    /// READ responses, results of atomics and NAKs for time that have left acknowledge everything before this one. Any other ACK or NAK leaves
    /// last: nothing is owed then.
    pub acknowledged: u64,
    /// Messages completed: those that have come the short way, and the others.
    pub plain: u64,
    /// Messages that have ended.
    pub messages: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// The message that has begun.
    pub message: MessageProgress,
    /// The receive taken for the message in progress (UC keeps it when the message is lost).
    pub held: Option<RecvWqe>,
    /// What a tag-matching SRQ makes of the message that has a receive.
    pub tagged: Option<Tagged>,
    /// The SRQ of the message in progress (XRC).
    pub srqn: Option<u32>,
    /// Requests that other processes execute.
    pub delegated: Delegated,
    /// What executes another process's requests: the run that it has ended by a refusal.
    pub ended_run: Option<u32>,
    /// A NAK for the expected PSN has been sent: the highest PSN that has been seen beyond the gap since.
    pub gap: Option<u64>,
    /// That NAK asked for time: the expected request has come, and found no receive.
    pub waits_for_receive: bool,
    /// What has come beyond the gap.
    pub kept: KeptNumbers,
    /// `QpEvent::CommunicationEstablished` was raised.
    pub established: bool,
    /// Packets from before the first PSN, while none has been executed.
    pub strangers: u8,
    /// Dropped datagrams have been reported: for their Q_Key, for their length.
    pub told_qkey: bool,
    /// A message longer than its receive was reported.
    pub told_length: bool,
}

impl Responder {
    /// One that expects this PSN first.
    pub fn at(psn: u32) -> Self {
        let first = psn::first(psn);
        Self { first, expected: first, ..Self::default() }
    }

    /// The expected PSN on the wire.
    pub const fn expected_psn(&self) -> u32 {
        psn::wire(self.expected)
    }

    /// A READ response, the result of an atomic or a NAK for time has left, which acknowledges everything before `end`.
    #[inline]
    pub fn note_acknowledged(&mut self, end: u64) {
        self.acknowledged = self.acknowledged.max(end);
    }

    /// No message is in progress, no request is missing, and none is with another process.
    #[inline]
    pub fn is_between_messages(&self) -> bool {
        self.message == MessageProgress::None
            && self.held.is_none()
            && self.gap.is_none()
            && self.delegated.is_empty()
    }

    /// The receive that a message in progress uses.
    pub fn take_held(&mut self) -> Option<RecvWqe> {
        self.message = MessageProgress::None;
        self.held.take()
    }

    /// A message of this many bytes has been executed.
    pub fn count_message(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes += bytes;
    }

    /// A message has come the short way.
    #[inline]
    pub fn count_plain(&mut self, bytes: u64) {
        self.plain += 1;
        self.bytes += bytes;
    }

    /// Messages completed, 24 bits.
    pub const fn msn(&self) -> u32 {
        (self.plain + self.messages) as u32 & 0x00ff_ffff
    }

    /// The same when the next message has been completed.
    #[inline]
    pub const fn msn_after_next(&self) -> u32 {
        (self.msn() + 1) & 0x00ff_ffff
    }

    /// Adds what it has counted.
    pub fn add_to(&self, counters: &mut Counters) {
        counters.packets_received += self.plain;
        counters.messages_received += self.plain + self.messages;
        counters.bytes_received += self.bytes;
    }
}
