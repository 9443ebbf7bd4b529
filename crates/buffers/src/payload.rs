//! What requests carry, and how the slots own it.

use crate::mapping::Loan;
use crate::{Buffer, Frozen, Segments};
use smallvec::SmallVec;
use std::fmt;
use std::mem::ManuallyDrop;

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// The data of a request: `()`, [`Inline`], [`Buffer`], [`Frozen`], several buffers, or a header buffer with a frozen body.
pub trait Payload: Sealed + Send + Sized + 'static {
    /// The memory that is read.
    #[doc(hidden)]
    fn segments(&self) -> Segments;
    /// The bytes of that memory.
    #[doc(hidden)]
    fn bytes(&self) -> u64 {
        self.segments().bytes()
    }
    /// Bytes that are copied into the request instead.
    #[doc(hidden)]
    fn inline(&self) -> Option<&[u8]> {
        None
    }
    /// Lends the memory for reading: adds it to what a slot owns. Returns the bytes that are copied instead.
    #[doc(hidden)]
    fn hold(self, into: &mut Held) -> Option<Inline>;
}

/// A [`Payload`] that a receive or a READ can write.
pub trait PayloadMut: Payload {
    /// The memory that is written.
    #[doc(hidden)]
    fn room(&self) -> Segments;
    /// The bytes of that memory.
    #[doc(hidden)]
    fn room_bytes(&self) -> u64 {
        self.room().bytes()
    }
    /// Lends the memory for writing.
    #[doc(hidden)]
    fn hold_for_writing(self, into: &mut Held);
}

/// A [`Payload`] that a window can be bound to.
pub trait Lendable: PayloadMut {
    /// The region, for the adapter.
    fn handle(&self) -> u64;
    /// Lends the memory to peers.
    fn hold_for_peers(self, into: &mut Held);
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
    #[inline]
    fn buffer(&self) -> &Buffer {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Frozen(frozen) => frozen.whole(),
        }
    }
}

/// A piece of memory that is lent to the adapter.
struct Lent {
    /// Until the loan has ended.
    part: ManuallyDrop<Part>,
    loan: u32,
    /// The memory is the program's by a borrow, and doesn't come back by value.
    borrowed: bool,
}

impl Lent {
    #[inline(always)]
    const fn new(part: Part, loan: u32) -> Self {
        Self { part: ManuallyDrop::new(part), loan, borrowed: false }
    }

    #[inline(always)]
    fn end(&self) {
        self.part.buffer().settle(self.loan);
    }

    /// Ends the loan, and returns the memory, unless it was borrowed.
    fn finish(self) -> Option<Part> {
        if self.borrowed {
            return None;
        }
        self.end();
        let mut this = ManuallyDrop::new(self);
        // SAFETY: it wasn't taken before, and isn't dropped.
        Some(unsafe { ManuallyDrop::take(&mut this.part) })
    }
}

impl Drop for Lent {
    #[inline]
    fn drop(&mut self) {
        self.end();
        // SAFETY: it wasn't taken, and isn't used after this.
        unsafe { ManuallyDrop::drop(&mut self.part) };
    }
}

/// What a slot owns while a request is outstanding: memory that is lent to the adapter. Dropping it ends the loan, so it must not be
/// dropped before the adapter has ended the request.
#[derive(Default)]
pub struct Held(Pieces);

/// Most requests name one piece of memory, or two, which need no vector.
// The tag is a word of its own: a piece is put in and taken out in place.
#[derive(Default)]
#[repr(usize)]
enum Pieces {
    #[default]
    None,
    One(Lent),
    Two(Lent, Lent),
    /// The last first.
    More(Vec<Lent>),
}

impl Pieces {
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Two(..) => 2,
            Self::More(pieces) => pieces.len(),
        }
    }

    /// Takes the first one.
    #[inline(always)]
    fn take(&mut self) -> Option<Part> {
        match self {
            Self::None | Self::One(Lent { borrowed: true, .. }) => None,
            Self::One(only) => {
                only.end();
                // SAFETY: the memory is moved out here, and `None` is left of the piece.
                unsafe {
                    let part = std::ptr::read(&raw const *only.part);
                    std::ptr::write(self, Self::None);
                    Some(part)
                }
            }
            Self::Two(..) | Self::More(_) => self.take_of_several(),
        }
    }

    #[inline(never)]
    fn take_of_several(&mut self) -> Option<Part> {
        match std::mem::take(self) {
            Self::Two(first, second) => {
                *self = Self::One(second);
                first.finish().or_else(|| self.take())
            }
            Self::More(mut pieces) => {
                let part = std::iter::from_fn(|| pieces.pop()).find_map(Lent::finish);
                *self = Self::More(pieces);
                part
            }
            fewer => {
                *self = fewer;
                None
            }
        }
    }

    /// These, and then another one.
    fn then(self, last: Lent) -> Self {
        match self {
            Self::None => Self::One(last),
            Self::One(first) => Self::Two(first, last),
            Self::Two(first, second) => Self::More(vec![last, second, first]),
            Self::More(mut pieces) => {
                pieces.insert(0, last);
                Self::More(pieces)
            }
        }
    }
}

impl Held {
    /// Memory that doesn't come back.
    pub(crate) fn borrowed(part: Part, loan: Loan) -> Self {
        let loan = part.buffer().lend(loan);
        let mut lent = Lent::new(part, loan);
        lent.borrowed = true;
        Self(Pieces::One(lent))
    }

    /// Adds a piece of memory, after those that are here.
    #[inline(always)]
    fn add(&mut self, part: Part, loan: u32) {
        if self.is_empty() {
            self.set(Pieces::One(Lent::new(part, loan)));
        } else {
            self.add_another(Lent::new(part, loan));
        }
    }

    /// Puts pieces where there are none.
    #[inline(always)]
    const fn set(&mut self, pieces: Pieces) {
        // SAFETY: a place that is borrowed exclusively. `None` needs no drop.
        unsafe { std::ptr::write(&raw mut self.0, pieces) };
    }

    #[inline(never)]
    fn add_another(&mut self, lent: Lent) {
        self.0 = std::mem::take(&mut self.0).then(lent);
    }

    /// Takes the first piece of memory, whose loan ends. `written` is how many bytes were written to the pieces that are left: it
    /// sets the lengths of buffers.
    #[inline(always)]
    pub fn take(&mut self, written: &mut Option<usize>) -> Option<Part> {
        let mut part = self.0.take()?;
        if let (Part::Buffer(buffer), Some(left)) = (&mut part, written) {
            buffer.set_len((*left).min(buffer.capacity()));
            *left -= buffer.length();
        }
        Some(part)
    }

    /// As [`Held::take`], if the only piece of memory is a buffer.
    #[inline(always)]
    pub fn take_buffer(&mut self, written: &mut Option<usize>) -> Option<Buffer> {
        let Pieces::One(lent) = &mut self.0 else { return None };
        if lent.borrowed || matches!(*lent.part, Part::Frozen(_)) {
            return None;
        }
        lent.end();
        let Part::Buffer(buffer) = &mut *lent.part else { return None };
        if let Some(left) = written {
            buffer.set_len((*left).min(buffer.capacity()));
            *left -= buffer.length();
        }
        // SAFETY: the buffer is moved out here, and `None` is left of the piece.
        unsafe {
            let buffer = std::ptr::read(buffer);
            std::ptr::write(&raw mut self.0, Pieces::None);
            Some(buffer)
        }
    }

    /// Pieces of memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// There is no memory here.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        matches!(self.0, Pieces::None)
    }

    /// Puts memory here. What was here before is dropped.
    #[inline(always)]
    pub fn put(&mut self, held: Self) {
        self.clear();
        self.set(held.0);
    }

    /// Ends the loans, and drops the memory.
    #[inline(always)]
    pub fn clear(&mut self) {
        if !self.is_empty() {
            self.drop_pieces();
        }
    }

    #[inline(never)]
    fn drop_pieces(&mut self) {
        self.0 = Pieces::None;
    }

    /// All of it, as the program gets it.
    #[must_use]
    #[inline]
    pub const fn settle(self, written: Option<usize>) -> Parts {
        Parts { held: self, written }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.0.len()).finish()
    }
}

/// The memory of a request that has ended, in the order of the request.
#[derive(Default)]
pub struct Parts {
    held: Held,
    /// Bytes that were written to what is left.
    written: Option<usize>,
}

impl Parts {
    /// The memory, lent no longer than before.
    #[must_use]
    pub fn into_held(self) -> Held {
        self.held
    }

    /// The first buffer.
    #[must_use]
    #[inline]
    pub fn buffer(mut self) -> Option<Buffer> {
        self.find_map(|part| match part {
            Part::Buffer(buffer) => Some(buffer),
            Part::Frozen(_) => None,
        })
    }
}

impl Iterator for Parts {
    type Item = Part;

    #[inline]
    fn next(&mut self) -> Option<Part> {
        self.held.take(&mut self.written)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.held.0.len(), Some(self.held.0.len()))
    }
}

impl ExactSizeIterator for Parts {}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parts").field(&self.held.0.len()).finish()
    }
}

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
    #[inline]
    fn segments(&self) -> Segments {
        Segments::new()
    }

    #[inline]
    fn hold(self, _: &mut Held) -> Option<Inline> {
        None
    }
}

impl PayloadMut for () {
    #[inline]
    fn room(&self) -> Segments {
        Segments::new()
    }

    #[inline]
    fn hold_for_writing(self, _: &mut Held) {}
}

impl Sealed for Inline {}

impl Payload for Inline {
    #[inline]
    fn segments(&self) -> Segments {
        Segments::new()
    }

    #[inline]
    fn inline(&self) -> Option<&[u8]> {
        Some(&self.0)
    }

    #[inline]
    fn hold(self, _: &mut Held) -> Option<Inline> {
        Some(self)
    }
}

impl Sealed for Buffer {}

impl Payload for Buffer {
    #[inline]
    fn segments(&self) -> Segments {
        Segments::one(self.segment(self.length()))
    }

    #[inline]
    fn bytes(&self) -> u64 {
        self.length() as u64
    }

    #[inline]
    fn hold(self, into: &mut Held) -> Option<Inline> {
        let loan = self.lend(Loan::Read);
        into.add(Part::Buffer(self), loan);
        None
    }
}

impl PayloadMut for Buffer {
    #[inline]
    fn room(&self) -> Segments {
        Segments::one(self.segment(self.capacity()))
    }

    #[inline]
    fn room_bytes(&self) -> u64 {
        self.capacity() as u64
    }

    #[inline]
    fn hold_for_writing(self, into: &mut Held) {
        let loan = self.lend(Loan::Write);
        into.add(Part::Buffer(self), loan);
    }
}

impl Lendable for Buffer {
    fn handle(&self) -> u64 {
        self.region().registration().handle()
    }

    fn hold_for_peers(self, into: &mut Held) {
        let loan = self.lend(Loan::Shared);
        into.add(Part::Buffer(self), loan);
    }
}

impl Sealed for Frozen {}

impl Payload for Frozen {
    #[inline]
    fn segments(&self) -> Segments {
        Segments::one(self.segment())
    }

    #[inline]
    fn hold(self, into: &mut Held) -> Option<Inline> {
        let loan = self.whole().lend(Loan::Read);
        into.add(Part::Frozen(self), loan);
        None
    }
}

impl Sealed for (Buffer, Frozen) {}

impl Payload for (Buffer, Frozen) {
    fn segments(&self) -> Segments {
        let (header, body) = self;
        [header.segment(header.length()), body.segment()].into_iter().collect()
    }

    fn hold(self, into: &mut Held) -> Option<Inline> {
        self.0.hold(into);
        self.1.hold(into);
        None
    }
}

macro_rules! several {
    ([$($generics:tt)*] $several:ty) => {
        impl<$($generics)*> Sealed for $several {}

        impl<$($generics)*> Payload for $several {
            #[inline]
            fn segments(&self) -> Segments {
                self.iter().map(|buffer| buffer.segment(buffer.length())).collect()
            }

            #[inline]
            fn hold(self, into: &mut Held) -> Option<Inline> {
                for buffer in self {
                    buffer.hold(into);
                }
                None
            }
        }

        impl<$($generics)*> PayloadMut for $several {
            #[inline]
            fn room(&self) -> Segments {
                self.iter().map(|buffer| buffer.segment(buffer.capacity())).collect()
            }

            #[inline]
            fn hold_for_writing(self, into: &mut Held) {
                self.into_iter().for_each(|buffer| buffer.hold_for_writing(into));
            }
        }
    };
}
several!([const N: usize] [Buffer; N]);
several!([] Vec<Buffer>);
