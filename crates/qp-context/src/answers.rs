//! The answers that a responder owes.

use ferroce_wire::{Reth, Syndrome};
use std::collections::VecDeque;

/// What a READ asks for.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// What is left of it.
    pub rest: Reth,
    /// XRC: whose protection domain the key is of.
    pub srqn: Option<u32>,
    /// A READ rather than something else that is answered as one: does the peer's work request end with it? A request of
    /// several READs asks for no ACK before the last.
    pub ends: Option<bool>,
}

impl Range {
    /// What an atomic write and a flush are answered with.
    pub const NOTHING: Self = Self { rest: Reth { va: 0, rkey: 0, dma_len: 0 }, srqn: None, ends: None };
}

/// A READ being answered.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Its first PSN (extended).
    pub first: u64,
    /// The PSN of the next response packet.
    pub next: u64,
    /// The PSN after the last one.
    pub end: u64,
    /// What is left of it.
    pub range: Range,
    /// All bytes that were asked for.
    pub bytes: u32,
    /// The next packet is the first of this answer.
    pub start: bool,
    /// The MSN of its packets.
    pub msn: u32,
    /// It was answered before.
    pub duplicate: bool,
}

/// The result of an atomic.
#[derive(Clone, Copy, Debug)]
pub struct Atomic {
    /// The PSN of the request.
    pub psn: u64,
    /// The value that was there before.
    pub original: u64,
    /// The MSN of the packet.
    pub msn: u32,
    /// It was answered before.
    pub duplicate: bool,
}

/// An answer that is owed.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// Packets with what was read.
    Read(Read),
    /// A packet with the result of an atomic.
    Atomic(Atomic),
}

impl Answer {
    /// The PSN of the next packet.
    pub const fn next(&self) -> u64 {
        match self {
            Answer::Read(read) => read.next,
            Answer::Atomic(atomic) => atomic.psn,
        }
    }

    /// It was answered before.
    pub const fn is_duplicate(&self) -> bool {
        match self {
            Answer::Read(read) => read.duplicate,
            Answer::Atomic(atomic) => atomic.duplicate,
        }
    }
}

/// The answers of one QP.
#[derive(Debug, Default)]
pub struct Answers {
    /// Answers that have still to leave, by PSN.
    pub queue: VecDeque<Answer>,
    /// The acknowledgement that is owed; a later one takes the place of an earlier one.
    pub owed: Option<Owed>,
    /// Executed atomics by PSN, oldest first, for duplicates.
    pub results: VecDeque<(u64, u64)>,
}

/// An acknowledgement that is owed.
#[derive(Clone, Copy, Debug)]
pub enum Owed {
    /// Everything before the expected PSN is done.
    Ack,
    /// This packet, which came again, and everything before it is done.
    Again(u64),
    /// A packet is refused or missing.
    Nak {
        /// The code.
        syndrome: Syndrome,
        /// Which packet.
        psn: u64,
        /// The number of the reason, as the payload; 0: none.
        reason: u16,
    },
}

impl Answers {
    /// Nothing is owed.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.owed.is_none()
    }

    /// READs and atomics that were asked for the first time and aren't answered yet.
    pub fn outstanding(&self) -> usize {
        self.queue.iter().filter(|answer| !answer.is_duplicate()).count()
    }

    /// An ACK is owed. No NAK is: the packet that it was about has come.
    pub fn owe_ack(&mut self) {
        debug_assert!(!matches!(self.owed, Some(Owed::Nak { .. })), "a NAK is withdrawn first");
        self.owed = Some(Owed::Ack);
    }

    /// A SEND or WRITE packet came again. An ACK up to here and no further: the answer to a READ or atomic after it may
    /// have been lost too, and rdma_rxe takes an ACK with the PSN of one for its answer.
    pub fn owe_ack_again(&mut self, psn: u64) {
        if matches!(self.owed, None | Some(Owed::Again(_))) {
            self.owed = Some(Owed::Again(psn));
        }
    }

    /// A NAK is owed.
    pub fn owe_nak(&mut self, syndrome: Syndrome, psn: u64, reason: u16) {
        self.owed = Some(Owed::Nak { syndrome, psn, reason });
    }

    /// The expected packet has come: the NAK that reports its absence is void. It would have acknowledged what is before it, so an ACK is
    /// owed instead.
    pub fn withdraw_nak(&mut self) {
        if matches!(self.owed, Some(Owed::Nak { .. })) {
            self.owed = Some(Owed::Ack);
        }
    }

    /// A new READ of `psns` response packets.
    pub fn read(&mut self, psn: u64, psns: u32, range: Range, msn: u32) {
        // Its answer acknowledges everything before it.
        self.owed = None;
        let end = psn + u64::from(psns);
        self.queue.push_back(Answer::Read(Read {
            first: psn,
            next: psn,
            end,
            range,
            bytes: range.rest.dma_len,
            start: true,
            msn,
            duplicate: false,
        }));
    }

    /// Remembers the result of an atomic that was executed, and the last `keep` of them at most.
    pub fn remember(&mut self, psn: u64, original: u64, keep: usize) {
        if self.results.len() >= keep {
            self.results.pop_front();
        }
        self.results.push_back((psn, original));
    }

    /// A new atomic was executed; the last `keep` results are remembered.
    pub fn atomic(&mut self, psn: u64, original: u64, msn: u32, keep: usize) {
        self.owed = None;
        self.remember(psn, original, keep);
        self.queue.push_back(Answer::Atomic(Atomic { psn, original, msn, duplicate: false }));
    }

    /// Takes back the result of the atomic that was just executed; 0 when there is none.
    pub fn take_atomic(&mut self) -> u64 {
        self.queue.clear();
        self.results.pop_back().map_or(0, |(_, original)| original)
    }

    /// A READ was asked for again, from its beginning or from a later PSN. Nothing is done if its answer is still to
    /// leave. At most `limit` answers are queued.
    pub fn read_again(&mut self, psn: u64, psns: u32, range: Range, msn: u32, limit: usize) {
        let again = Read {
            first: psn,
            next: psn,
            end: psn + u64::from(psns),
            range,
            bytes: range.rest.dma_len,
            start: true,
            msn,
            duplicate: true,
        };
        for answer in &mut self.queue {
            if let Answer::Read(read) = answer
                && (read.first..read.end).contains(&psn)
            {
                if psn < read.next {
                    let range = Range { ends: read.range.ends, ..again.range };
                    *read = Read { duplicate: read.duplicate, bytes: read.bytes, range, ..again };
                }
                return;
            }
        }
        self.insert(Answer::Read(again), limit);
    }

    /// An atomic was asked for again: its result is sent again, if it is remembered.
    pub fn atomic_again(&mut self, psn: u64, msn: u32, limit: usize) {
        let Some((_, original)) = self.results.iter().find(|(number, _)| *number == psn).copied() else {
            return;
        };
        if !self.queue.iter().any(|answer| matches!(answer, Answer::Atomic(a) if a.psn == psn)) {
            self.insert(Answer::Atomic(Atomic { psn, original, msn, duplicate: true }), limit);
        }
    }

    /// Queues an answer by its PSN, if there is room.
    pub fn insert(&mut self, answer: Answer, limit: usize) {
        if self.queue.len() < limit {
            let at =
                self.queue.iter().position(|other| other.next() > answer.next()).unwrap_or(self.queue.len());
            self.queue.insert(at, answer);
        }
    }
}
