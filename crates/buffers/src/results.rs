//! Memory for the results of atomics.

use crate::mapping::{Loan, Tap};
use crate::{Buffer, Error, Segments};
use std::fmt;

/// The words of a queue to which its adapter writes the results of atomics. They are lent to it for as long as they exist, and the program
/// gets copies.
pub struct Results {
    words: Buffer,
    loan: u32,
    tap: Tap,
    /// The count of words is a power of two: numbers of requests lead to the same words after they wrap.
    mask: u32,
}

impl Results {
    /// Bytes of a word.
    pub const SIZE: usize = 8;

    /// Bytes of the words for a queue of `depth` requests. There is one word more: a request that has ended has left the queue before its result is
    /// loaded.
    #[must_use]
    pub const fn bytes(depth: u32) -> usize {
        (depth as usize + 1).next_power_of_two() * Self::SIZE
    }

    /// Makes words of memory of [`Results::bytes`].
    ///
    /// # Errors
    /// It has another size, or its address isn't a multiple of 8.
    pub fn new(words: Buffer) -> Result<Self, Error> {
        let (count, rest) = (words.capacity() / Self::SIZE, words.capacity() % Self::SIZE);
        let tap = words.region().tap(words.start(), words.capacity());
        if rest != 0 || !count.is_power_of_two() || tap.misalignment() != 0 {
            return Err(Error::invalid("build", format!("{} bytes for results", words.capacity())));
        }
        let loan = words.lend(Loan::Shared);
        Ok(Self { words, loan, tap, mask: count as u32 - 1 })
    }

    #[inline]
    const fn at(&self, number: u32) -> usize {
        (number & self.mask) as usize * Self::SIZE
    }

    /// The word of the request with this number, as the request names it.
    #[must_use]
    #[inline]
    pub fn segments(&self, number: u32) -> Segments {
        let first = self.words.segment(Self::SIZE);
        Segments::one(ferroce_types::Sge { addr: first.addr + self.at(number) as u64, ..first })
    }

    /// The result of the request with this number, in the byte order of the host.
    #[must_use]
    #[inline]
    pub fn load(&self, number: u32) -> u64 {
        self.tap.update_word(self.at(number), |_| None).expect("a word within the memory, which is lent")
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        self.words.settle(self.loan);
    }
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results").field("words", &(self.mask as usize + 1)).finish()
    }
}
