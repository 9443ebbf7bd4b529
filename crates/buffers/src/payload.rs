//! What requests carry, and how the slots own it.

use crate::mapping::Loan;
use crate::{Buffer, Frozen, Segments};
use smallvec::SmallVec;
use std::fmt;

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// The data of a request: `()`, [`Inline`], [`Buffer`], [`Frozen`], several buffers, or a header buffer with a frozen body.
pub trait Payload: Sealed + Send + Sized + 'static {
    /// The memory that is read.
    #[doc(hidden)]
    fn segments(&self, into: &mut Segments);
    /// Bytes that are copied into the request instead.
    #[doc(hidden)]
    fn inline(&self) -> Option<&[u8]> {
        None
    }
    /// Lends the memory for reading.
    #[doc(hidden)]
    fn hold(self) -> Held;
}

/// A [`Payload`] that a receive or a READ can write.
pub trait PayloadMut: Payload {
    /// The memory that is written.
    #[doc(hidden)]
    fn room(&self, into: &mut Segments);
    /// Lends the memory for writing.
    #[doc(hidden)]
    fn hold_for_writing(self) -> Held;
}

/// A [`Payload`] that a window can be bound to.
pub trait Lendable: PayloadMut {
    /// The region, for the adapter.
    fn handle(&self) -> u64;
    /// Lends the memory to peers.
    fn hold_for_peers(self) -> Held;
}

/// A piece of memory that comes back with a completion.
#[derive(Debug)]
#[non_exhaustive]
pub enum Part {
    /// A buffer.
    Buffer(Buffer),
    /// A frozen buffer.
    Frozen(Frozen),
}

impl Part {
    fn buffer(&self) -> &Buffer {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Frozen(frozen) => frozen.whole(),
        }
    }
}

/// A piece of memory that is lent to the adapter.
struct Lent {
    /// `None` after the loan.
    part: Option<Part>,
    loan: u32,
    /// The memory is the program's by a borrow, and doesn't come back by value.
    borrowed: bool,
}

impl Lent {
    fn new(part: Part, loan: Loan) -> Self {
        let loan = part.buffer().lend(loan);
        Self { part: Some(part), loan, borrowed: false }
    }

    /// Ends the loan.
    fn settle(mut self) -> Option<Part> {
        self.end();
        self.part.take().filter(|_| !self.borrowed)
    }

    fn end(&mut self) {
        if let Some(part) = &self.part {
            part.buffer().settle(self.loan);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a slot owns while a request is outstanding: memory that is lent to the adapter. Dropping it ends the loan, so it must not be
/// dropped before the adapter has ended the request.
#[derive(Default)]
pub struct Held {
    lent: SmallVec<[Lent; 2]>,
}

impl Held {
    fn one(part: Part, loan: Loan) -> Self {
        Self::default().and(part, loan)
    }

    /// Memory that doesn't come back.
    pub(crate) fn borrowed(part: Part, loan: Loan) -> Self {
        let mut held = Self::one(part, loan);
        held.lent[0].borrowed = true;
        held
    }

    fn and(mut self, part: Part, loan: Loan) -> Self {
        self.lent.push(Lent::new(part, loan));
        self
    }

    /// This memory, and then that of another part of the request.
    #[must_use]
    pub fn then(mut self, mut after: Self) -> Self {
        self.lent.append(&mut after.lent);
        self
    }

    /// Ends the loans, and returns the memory. `received` is how many bytes were written: it sets the lengths of the buffers.
    #[must_use]
    pub fn settle(self, received: Option<usize>) -> Parts {
        let mut parts: SmallVec<[Part; 2]> = self.lent.into_iter().filter_map(Lent::settle).collect();
        if let Some(mut left) = received {
            for part in &mut parts {
                if let Part::Buffer(buffer) = part {
                    buffer.set_len(left.min(buffer.capacity()));
                    left -= buffer.len();
                }
            }
        }
        parts.reverse();
        Parts(parts)
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.lent.len()).finish()
    }
}

/// The memory of a request that has ended, in the order of the request.
#[derive(Debug, Default)]
pub struct Parts(SmallVec<[Part; 2]>);

impl Parts {
    /// The first buffer.
    #[must_use]
    pub fn buffer(mut self) -> Option<Buffer> {
        self.find_map(|part| match part {
            Part::Buffer(buffer) => Some(buffer),
            Part::Frozen(_) => None,
        })
    }
}

impl Iterator for Parts {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        self.0.pop()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl ExactSizeIterator for Parts {}

/// Bytes that are copied into the request: they need no registered memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inline(SmallVec<[u8; 32]>);

impl From<&[u8]> for Inline {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl<const N: usize> From<&[u8; N]> for Inline {
    fn from(bytes: &[u8; N]) -> Self {
        Self(bytes[..].into())
    }
}

impl Sealed for () {}

impl Payload for () {
    fn segments(&self, _: &mut Segments) {}

    fn hold(self) -> Held {
        Held::default()
    }
}

impl PayloadMut for () {
    fn room(&self, _: &mut Segments) {}

    fn hold_for_writing(self) -> Held {
        Held::default()
    }
}

impl Sealed for Inline {}

impl Payload for Inline {
    fn segments(&self, _: &mut Segments) {}

    fn inline(&self) -> Option<&[u8]> {
        Some(&self.0)
    }

    fn hold(self) -> Held {
        Held::default()
    }
}

impl Sealed for Buffer {}

impl Payload for Buffer {
    fn segments(&self, into: &mut Segments) {
        into.push(self.segment(self.len()));
    }

    fn hold(self) -> Held {
        Held::one(Part::Buffer(self), Loan::Read)
    }
}

impl PayloadMut for Buffer {
    fn room(&self, into: &mut Segments) {
        into.push(self.segment(self.capacity()));
    }

    fn hold_for_writing(self) -> Held {
        Held::one(Part::Buffer(self), Loan::Write)
    }
}

impl Lendable for Buffer {
    fn handle(&self) -> u64 {
        self.region().registration().handle()
    }

    fn hold_for_peers(self) -> Held {
        Held::one(Part::Buffer(self), Loan::Shared)
    }
}

impl Sealed for Frozen {}

impl Payload for Frozen {
    fn segments(&self, into: &mut Segments) {
        into.push(self.segment());
    }

    fn hold(self) -> Held {
        Held::one(Part::Frozen(self), Loan::Read)
    }
}

impl Sealed for (Buffer, Frozen) {}

impl Payload for (Buffer, Frozen) {
    fn segments(&self, into: &mut Segments) {
        self.0.segments(into);
        self.1.segments(into);
    }

    fn hold(self) -> Held {
        self.0.hold().and(Part::Frozen(self.1), Loan::Read)
    }
}

macro_rules! several {
    ([$($generics:tt)*] $several:ty) => {
        impl<$($generics)*> Sealed for $several {}

        impl<$($generics)*> Payload for $several {
            fn segments(&self, into: &mut Segments) {
                self.iter().for_each(|buffer| buffer.segments(into));
            }

            fn hold(self) -> Held {
                self.into_iter().fold(Held::default(), |held, buffer| held.and(Part::Buffer(buffer), Loan::Read))
            }
        }

        impl<$($generics)*> PayloadMut for $several {
            fn room(&self, into: &mut Segments) {
                self.iter().for_each(|buffer| buffer.room(into));
            }

            fn hold_for_writing(self) -> Held {
                self.into_iter().fold(Held::default(), |held, buffer| held.and(Part::Buffer(buffer), Loan::Write))
            }
        }
    };
}
several!([const N: usize] [Buffer; N]);
several!([] Vec<Buffer>);
