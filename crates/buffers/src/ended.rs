//! Completions, as each backend reports them.

use crate::Fault;
use ferroce_types::{Completion, WcOpcode, WcStatus, wc_flag};

/// When a request ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp {
    /// By the device's clock, in its units.
    pub clock: u64,
    /// In nanoseconds since 1970.
    pub wall_clock: u64,
}

/// What of a [`Stamp`] a completion queue is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamped {
    /// [`Stamp::clock`].
    pub clock: bool,
    /// [`Stamp::wall_clock`].
    pub wall_clock: bool,
}

/// A completion of an adapter, with the layout of `struct ibv_wc`: a library writes it where it is read. It has numbers where
/// [`Completion`] has variants, because a library's number may be that of none.
///
/// Of a request that has failed, only the numbers of the request and of its queue pair count, and why.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Ended {
    /// The request's number.
    pub wr_id: u64,
    /// A [`WcStatus`].
    pub status: u32,
    /// A [`WcOpcode`]. Receives have the bit of [`WcOpcode::Recv`].
    pub opcode: u32,
    /// More about a failure.
    pub vendor_err: u32,
    /// Bytes received.
    pub byte_len: u32,
    /// [`Ended::immediate`], or [`Ended::invalidated_rkey`].
    pub imm_data: u32,
    /// The QPN.
    pub qp_num: u32,
    /// That of a datagram's sender.
    pub src_qp: u32,
    /// A message's [`wc_flag`]s. Those of other requests don't count.
    pub wc_flags: u32,
    /// Not read: the index of a partition key, and a local identifier.
    pub indices: [u16; 2],
    /// Not read: a service level, and bits of a local identifier.
    pub levels: [u8; 2],
}

impl Ended {
    /// What of the transport's completion counts.
    #[must_use]
    #[inline(always)]
    pub fn of(completion: &Completion) -> Self {
        let Completion { wr_id, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, .. } = *completion;
        let (status, opcode) = (completion.status as u32, completion.opcode as u32);
        Self {
            wr_id,
            status,
            opcode,
            vendor_err,
            byte_len,
            imm_data,
            qp_num,
            src_qp,
            wc_flags,
            ..Self::default()
        }
    }

    /// What counts of a failure, also for the requests before it that end with it.
    #[must_use]
    #[cold]
    pub fn of_failure(&self) -> Self {
        let Self { wr_id, status, vendor_err, qp_num, .. } = *self;
        Self { wr_id, status, vendor_err, qp_num, ..Self::default() }
    }

    #[inline]
    const fn has_failed(&self) -> bool {
        self.status != WcStatus::Success as u32
    }

    /// It may have failed, or may have invalidated a key.
    #[inline(always)]
    const fn is_unusual(&self) -> bool {
        (self.status | self.wc_flags & wc_flag::WITH_INV) != 0
    }

    /// The value of a message with this flag.
    #[inline]
    fn value(&self, flag: u32) -> Option<u32> {
        let has = self.opcode & WcOpcode::Recv as u32 != 0 && self.wc_flags & flag != 0;
        has.then_some(self.imm_data)
    }

    /// The 32 bits that came with a message, in network byte order.
    #[must_use]
    #[inline]
    pub fn immediate(&self) -> Option<[u8; 4]> {
        self.value(wc_flag::WITH_IMM).map(u32::to_ne_bytes)
    }

    /// The key that a message has invalidated.
    #[must_use]
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        self.value(wc_flag::WITH_INV)
    }

    /// A GRH precedes a datagram.
    #[must_use]
    #[inline]
    pub const fn has_grh(&self) -> bool {
        self.wc_flags & wc_flag::GRH != 0
    }
}

/// Completions that were taken from an adapter together, the oldest first.
#[derive(Debug, Default)]
pub struct Polled {
    ended: Box<[Ended; Polled::MOST]>,
    len: usize,
    /// When they ended; empty if the completion queue wasn't made for that.
    stamps: Vec<Stamp>,
    /// Why requests have failed, by their places in `ended`.
    faults: Vec<(usize, Fault)>,
    /// One may have failed, has invalidated a key, or has a time.
    is_unusual: bool,
}

impl Polled {
    /// Completions that are taken together, at most.
    pub const MOST: usize = 32;

    /// Forgets them.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        if self.is_unusual {
            self.stamps.clear();
            self.faults.clear();
            self.is_unusual = false;
        }
    }

    /// Adds one, of [`Polled::MOST`]. If the request has failed, [`Polled::fail`] or [`Polled::explain`] follows.
    #[inline(always)]
    pub fn push(&mut self, ended: Ended) {
        debug_assert!(self.len < Self::MOST, "more completions than were asked for");
        self.is_unusual |= ended.is_unusual();
        self.ended[self.len % Self::MOST] = ended;
        self.len += 1;
    }

    /// When the last one ended. All of a queue have this, or none.
    #[inline]
    pub fn stamp(&mut self, stamp: Stamp) {
        self.is_unusual = true;
        self.stamps.push(stamp);
    }

    /// Where there are none: has `poll` write up to [`Polled::MOST`], and adds as many as it returns. [`Polled::explain`] follows.
    ///
    /// # Errors
    /// What it returns is negative, or more.
    #[inline(always)]
    pub fn fill(&mut self, poll: impl FnOnce(&mut [Ended; Self::MOST]) -> i32) -> Result<(), i32> {
        let returned = poll(&mut self.ended);
        let written =
            usize::try_from(returned).ok().and_then(|count| self.ended.get(..count)).ok_or(returned)?;
        self.is_unusual = written.iter().any(Ended::is_unusual);
        self.len = written.len();
        Ok(())
    }

    /// The last one has failed.
    pub fn fail(&mut self, fault: Fault) {
        self.is_unusual = true;
        self.faults.push((self.len - 1, fault));
    }

    /// Adds the faults of all with a bad status.
    #[inline]
    pub fn explain(&mut self, fault: impl FnMut(&Ended) -> Fault) {
        if self.is_unusual {
            self.explain_each(fault);
        }
    }

    #[cold]
    fn explain_each(&mut self, mut fault: impl FnMut(&Ended) -> Fault) {
        let Self { ended, len, faults, .. } = self;
        for (place, ended) in ended[..*len].iter().enumerate() {
            if ended.has_failed() {
                faults.push((place, fault(ended)));
            }
        }
    }

    /// Whether one may have failed, has invalidated a key, or has a time.
    #[must_use]
    #[inline]
    pub const fn is_unusual(&self) -> bool {
        self.is_unusual
    }

    /// The one at this place.
    #[must_use]
    #[inline]
    pub fn get(&self, place: usize) -> Option<&Ended> {
        if place < self.len { Some(&self.ended[place % Self::MOST]) } else { None }
    }

    /// When the request of the one at this place ended, if the queue was made for that.
    #[must_use]
    #[inline]
    pub fn stamp_of(&self, place: usize) -> Option<Stamp> {
        self.stamps.get(place).copied()
    }

    /// Why the request of the one at this place has failed, if it has.
    #[must_use]
    #[inline]
    pub fn fault(&self, place: usize) -> Option<&Fault> {
        if self.is_unusual { self.find_fault(place) } else { None }
    }

    #[cold]
    fn find_fault(&self, place: usize) -> Option<&Fault> {
        self.faults.iter().find(|(of, _)| *of == place).map(|(_, fault)| fault)
    }

    /// Number of completions.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// There are none.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}
