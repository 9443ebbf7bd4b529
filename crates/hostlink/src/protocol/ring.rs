//! Positions of a ring between one producer and one consumer: which bytes belong to whom.
//!
//! Positions count bytes since the beginning and never wrap; records are contiguous, and their lengths are multiples
//! of [`RingWords::GRAIN`]. Neither side believes the other: a position that can't be right is [`Broken`].

use crate::sync::{AtomicU64, Ordering, fence, shared_words};

/// The words of a ring.
#[derive(Default, Debug)]
#[repr(C)]
pub(crate) struct RingWords {
    producer: ProducerLine,
    consumer: ConsumerLine,
}

/// Written by the producer's process only.
#[derive(Default, Debug)]
#[repr(C, align(128))]
struct ProducerLine {
    /// The end of what has been published.
    tail: AtomicU64,
    /// Counts how often the producer has begun to wait for room.
    waits: AtomicU64,
    /// So that a reader which has read all before it needs no other line of memory.
    last: LastRecord,
}

/// Words of a record that are copied beside the position of its end.
pub(crate) const COPIED_WORDS: usize = 5;

/// A copy of the last record that was published, if that is short.
#[derive(Default, Debug)]
#[repr(C)]
struct LastRecord {
    /// Where that record ends; another position where there is no copy, or it is being made.
    end: AtomicU64,
    words: [AtomicU64; COPIED_WORDS],
}

/// Written by the consumer's process only.
#[derive(Default, Debug)]
#[repr(C, align(128))]
struct ConsumerLine {
    /// The end of what has been dealt with.
    head: AtomicU64,
    /// Up to here, whatever was to be acknowledged by position has been executed, or disowned.
    executed: AtomicU64,
    /// How many records have been disowned so far.
    disowned: AtomicU64,
}

shared_words!(RingWords { producer, consumer } ProducerLine { tail, waits, last } LastRecord { end, words } ConsumerLine { head, executed, disowned });

/// The other side has written something that can't be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

/// Where a record of the asked length goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordSpace {
    /// Bytes to be skipped first, at the ring's end, and where they begin: they need a record of their own.
    pub(crate) padding: Option<(usize, usize)>,
    /// Offset in the ring.
    pub(crate) at: usize,
    /// The tail with this record published.
    tail: u64,
}

impl RecordSpace {
    /// The position of the record's end.
    pub(crate) const fn end(&self) -> u64 {
        self.tail
    }
}

impl RingWords {
    /// Records begin and end at multiples of this.
    pub(crate) const GRAIN: usize = 64;

    /// Whether a published record hasn't been consumed.
    #[inline]
    pub(crate) fn has_records(&self) -> bool {
        self.producer.tail.load(Ordering::Acquire) != self.consumer.head.load(Ordering::Relaxed)
    }

    /// As [`RingWords::has_records`], of a ring that threads of one process read, of which one at a time holds the consumer. To be asked by a
    /// thread that has published a record, which then takes it if no other thread holds the consumer; and by a thread that has freed the
    /// consumer.
    #[inline]
    pub(crate) fn has_unclaimed_records(&self) -> bool {
        // SYNC: pairs with itself in another thread (store buffering): either the thread that has published finds the consumer free, or the
        // thread that has freed the consumer finds the record. Model: `a_record_that_finds_the_consumer_held_is_taken`.
        fence(Ordering::SeqCst);
        self.has_records()
    }

    /// By the producer, before it publishes the record that ends at `end`: these are its words.
    #[inline]
    pub(crate) fn copy_last(&self, end: u64, words: [u64; COPIED_WORDS]) {
        let last = &self.producer.last;
        last.end.store(0, Ordering::Relaxed);
        // SYNC: pairs with the fence in `RingWords::last` (seqlock): a reader that sees a new word sees `end` 0 or the new `end`.
        // Model: `a_copy_of_the_last_record_is_of_that_record_or_is_not_there`.
        fence(Ordering::Release);
        last.words.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        last.end.store(end, Ordering::Release);
    }

    /// The words of the record that ends at `end`, if there is a copy of them.
    #[inline]
    fn last(&self, end: u64) -> Option<[u64; COPIED_WORDS]> {
        let last = &self.producer.last;
        if last.end.load(Ordering::Acquire) != end {
            return None;
        }
        let words = std::array::from_fn(|i| last.words[i].load(Ordering::Relaxed));
        // SYNC: pairs with the fence in `RingWords::copy_last`.
        fence(Ordering::Acquire);
        (last.end.load(Ordering::Relaxed) == end).then_some(words)
    }

    /// The end of the published records, unless all are consumed.
    pub(crate) fn unread(&self) -> Option<u64> {
        let tail = self.producer.tail.load(Ordering::Acquire);
        (!self.is_consumed(tail)).then_some(tail)
    }

    /// Called by the consumer after it has published the records that disown, `disowned` so far: everything
    /// else up to `position` that was to be acknowledged by position has been executed.
    pub(crate) fn acknowledge(&self, position: u64, disowned: u64) {
        // A producer that reads this count finds the counted records in its ring.
        self.consumer.disowned.store(disowned, Ordering::Release);
        self.consumer.executed.store(position, Ordering::Release);
    }

    /// The position up to which the consumer has executed, by its word.
    #[inline]
    pub(crate) fn executed(&self) -> u64 {
        self.consumer.executed.load(Ordering::Acquire)
    }

    /// How many records the consumer has disowned, at least, of those before a position that [`RingWords::executed`] gave.
    #[inline]
    pub(crate) fn disowned(&self) -> u64 {
        self.consumer.disowned.load(Ordering::Acquire)
    }

    /// Everything up to `position` has been dealt with by the consumer.
    pub(crate) fn is_consumed(&self, position: u64) -> bool {
        self.consumer.head.load(Ordering::Acquire) >= position
    }
}

/// Where a position is in a ring of `size` bytes, a power of two: a division costs as much as all else that is done for a record.
#[inline]
const fn offset(position: u64, size: u64) -> u64 {
    position & (size - 1)
}

/// The producer's side.
#[derive(Debug)]
pub(crate) struct Producer {
    size: u64,
    tail: u64,
    head: u64,
}

impl Producer {
    /// At the beginning of a ring of `size` bytes, a power of two.
    pub(crate) const fn new(size: usize) -> Self {
        assert!(size.is_power_of_two());
        Self { size: size as u64, tail: 0, head: 0 }
    }

    /// The end of what has been published.
    pub(crate) const fn tail(&self) -> u64 {
        self.tail
    }

    /// Finds room for a record of `len` bytes, a multiple of the grain and at most a quarter of the ring; `None` when
    /// there isn't any now.
    #[inline]
    pub(crate) fn reserve(&mut self, lines: &RingWords, len: usize) -> Result<Option<RecordSpace>, Broken> {
        let at = offset(self.tail, self.size);
        let rest = self.size - at;
        let (padding, start) = if rest < len as u64 {
            (Some((at as usize, rest as usize)), self.tail + rest)
        } else {
            (None, self.tail)
        };
        let tail = start + len as u64;
        if tail - self.head > self.size {
            self.look(lines)?;
            if tail - self.head > self.size {
                return Ok(None);
            }
        }
        Ok(Some(RecordSpace { padding, at: offset(start, self.size) as usize, tail }))
    }

    /// Looks how far the consumer is.
    fn look(&mut self, lines: &RingWords) -> Result<(), Broken> {
        let head = lines.consumer.head.load(Ordering::Acquire);
        if head < self.head || head > self.tail || !head.is_multiple_of(RingWords::GRAIN as u64) {
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }

    /// Gives the record (and the padding before it) to the consumer, and returns the position of its end.
    #[inline]
    pub(crate) fn publish(&mut self, lines: &RingWords, place: RecordSpace) -> u64 {
        self.tail = place.tail;
        lines.producer.tail.store(place.tail, Ordering::Release);
        place.tail
    }

    /// Announces that a QP waits for room: the consumer rings for room that it frees from now on. Call [`Producer::has_room`] afterwards:
    /// it sees the room that was freed before.
    pub(crate) fn wait(&mut self, lines: &RingWords) {
        let waits = lines.producer.waits.load(Ordering::Relaxed);
        // The consumer is to see what has been published up to here; the peer may have written any value.
        lines.producer.waits.store(waits.wrapping_add(1), Ordering::Release);
        // SYNC: pairs with `Consumer::release` (store buffering): either `has_room` sees the new head, or `release` sees the new `waits`.
        // Model: `a_producer_that_fills_the_ring_more_than_once_is_told_of_room`.
        fence(Ordering::SeqCst);
    }

    /// At least half of the ring is free: any record fits, and the padding before it.
    pub(crate) fn has_room(&mut self, lines: &RingWords) -> Result<bool, Broken> {
        self.look(lines)?;
        Ok(self.tail - self.head <= self.size / 2)
    }
}

/// The consumer's side.
#[derive(Debug)]
pub(crate) struct Consumer {
    size: u64,
    head: u64,
    tail: u64,
    /// The producer's wait that was last answered.
    answered: u64,
    /// The head when it was last asked whether the producer waits.
    asked: u64,
}

impl Consumer {
    /// At the beginning of a ring of `size` bytes, a power of two.
    pub(crate) const fn new(size: usize) -> Self {
        assert!(size.is_power_of_two());
        Self { size: size as u64, head: 0, tail: 0, answered: 0, asked: 0 }
    }

    /// Offset of the oldest record and how many published bytes lie there in a row; `None` when there is nothing.
    #[inline]
    pub(crate) fn peek(&mut self, lines: &RingWords) -> Result<Option<(usize, usize)>, Broken> {
        if self.head == self.tail {
            self.look(lines)?;
            if self.head == self.tail {
                // `RingWords::has_records` compares with this word, which the peer can overwrite: a wrong word would report records for ever.
                let head = lines.consumer.head.load(Ordering::Relaxed);
                return if head == self.head { Ok(None) } else { Err(Broken) };
            }
        }
        Ok(self.ahead_of(self.head))
    }

    /// Looks how far the producer is.
    #[inline]
    pub(crate) fn look(&mut self, lines: &RingWords) -> Result<(), Broken> {
        let tail = lines.producer.tail.load(Ordering::Acquire);
        let ahead = tail.wrapping_sub(self.head);
        if tail < self.tail || ahead > self.size || !tail.is_multiple_of(RingWords::GRAIN as u64) {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(())
    }

    /// As [`Consumer::peek`], of the record that begins at `position`, which hasn't been dealt with: of what the last look has found.
    #[inline]
    pub(crate) fn ahead_of(&self, position: u64) -> Option<(usize, usize)> {
        let ahead = self.tail.checked_sub(position).filter(|&ahead| ahead > 0)?;
        let at = offset(position, self.size);
        Some((at as usize, ahead.min(self.size - at) as usize))
    }

    /// By the last look, one grain has been published that hasn't been dealt with.
    #[inline]
    pub(crate) const fn has_one_grain(&self) -> bool {
        self.tail - self.head == RingWords::GRAIN as u64
    }

    /// The words of the record at the front, if it is the only one by the last look, of one grain, and there is a copy of them.
    #[inline]
    pub(crate) fn copy_of_only(&self, lines: &RingWords) -> Option<[u64; COPIED_WORDS]> {
        if self.has_one_grain() { lines.last(self.tail) } else { None }
    }

    /// The end of what has been dealt with.
    pub(crate) const fn head(&self) -> u64 {
        self.head
    }

    /// Returns `len` bytes to the producer: the record at the front has been consumed. True if the producer waits for room and must be
    /// woken.
    #[inline]
    pub(crate) fn release(&mut self, lines: &RingWords, len: usize) -> bool {
        self.head += (len as u64).min(self.tail - self.head);
        lines.consumer.head.store(self.head, Ordering::Release);
        // Checks `waits` once per quarter of the ring, since that costs a fence. No wakeup is lost: a producer that waits saw more than
        // half of the ring in use, so this consumer passes another quarter before the ring is empty.
        if self.tail - self.head > self.size / 2 || self.head - self.asked < self.size / 4 {
            return false;
        }
        self.asked = self.head;
        // SYNC: pairs with `Producer::wait`.
        fence(Ordering::SeqCst);
        let waits = lines.producer.waits.load(Ordering::Acquire);
        // More may have been published before the wait than `peek` knows of.
        let ahead = lines.producer.tail.load(Ordering::Relaxed).wrapping_sub(self.head);
        if waits == self.answered || ahead > self.size / 2 {
            return false;
        }
        self.answered = waits;
        true
    }
}
