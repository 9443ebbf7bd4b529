//! What a request returns when it has ended.

use crate::verbs::{CompareSwap, Completion, Entry, FetchAdd, Operation, Read, Reliable, Send, Write};
use ferroce_buffers::{Buffer, Error, Failed, Fault, Frozen, Inline, Part, Parts, Payload, PayloadMut};
use std::fmt;

/// A request that has ended.
#[derive(Default)]
pub struct Ending {
    fault: Option<Fault>,
    /// Has the memory of the request. The slot of a queue pair gets it in exchange for that of a later request.
    entry: Box<Entry>,
    /// Bytes that were written to the memory.
    written: Option<usize>,
    /// Of an atomic that has succeeded: the word before.
    value: u64,
}

impl Ending {
    /// Takes what a completion has. This is what `end` of an [`Outcome`] has left, or new.
    #[inline]
    pub(crate) fn take(&mut self, completion: &mut Completion<'_>) {
        // The entry has what the request was, so this is first.
        if let Some(value) = completion.value() {
            self.value = value;
        }
        self.written = completion.exchange(&mut self.entry);
        if let Err(fault) = completion.result() {
            self.fault = Some(fault);
        }
    }

    /// The request has no completion.
    pub(crate) fn flush(&mut self, fault: Fault, parts: Parts) {
        self.entry.held.put(parts.into_held());
        (self.written, self.fault) = (None, Some(fault));
    }

    /// The memory that is left. It is as before a request after this.
    pub(crate) fn parts(&mut self) -> Parts {
        self.fault = None;
        std::mem::take(&mut self.entry.held).settle(self.written)
    }

    fn next(&mut self) -> Option<Part> {
        self.entry.held.take(&mut self.written)
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ending").field("fault", &self.fault).finish_non_exhaustive()
    }
}

/// A payload that comes back when its request has ended.
pub trait ReturnedPayload: Payload {
    /// What comes back: the payload itself, or `()` for [`Inline`] data.
    type Back: std::marker::Send + 'static;

    /// Of a request that has ended.
    #[doc(hidden)]
    fn of(ending: &mut Ending) -> Self::Back;

    /// Of a request that wasn't posted.
    #[doc(hidden)]
    fn back(self) -> Self::Back;
}

#[inline]
fn buffer(ending: &mut Ending) -> Buffer {
    match ending.entry.held.take_buffer(&mut ending.written) {
        Some(buffer) => buffer,
        None => next_buffer(ending),
    }
}

#[inline(never)]
fn next_buffer(ending: &mut Ending) -> Buffer {
    match ending.next() {
        Some(Part::Buffer(buffer)) => buffer,
        // A slot returns what was posted.
        other => unreachable!("a request with {other:?} instead of a buffer"),
    }
}

fn frozen(ending: &mut Ending) -> Frozen {
    match ending.next() {
        Some(Part::Frozen(frozen)) => frozen,
        other => unreachable!("a request with {other:?} instead of a frozen buffer"),
    }
}

macro_rules! comes_back {
    ($([$($generics:tt)*] $payload:ty => $ending:ident, $back:expr;)*) => {
        $(
            impl<$($generics)*> ReturnedPayload for $payload {
                type Back = Self;

                #[inline]
                fn of($ending: &mut Ending) -> Self {
                    $back
                }

                fn back(self) -> Self {
                    self
                }
            }
        )*
    };
}

comes_back! {
    [] Buffer => ending, buffer(ending);
    [] Frozen => ending, frozen(ending);
    [] (Buffer, Frozen) => ending, (buffer(ending), frozen(ending));
    [const N: usize] [Buffer; N] => ending, std::array::from_fn(|_| buffer(ending));
    [] Vec<Buffer> => ending, {
        let count = ending.entry.held.len();
        (0..count).map(|_| buffer(ending)).collect()
    };
}

macro_rules! comes_back_as_nothing {
    ($($payload:ty),*) => {
        $(
            impl ReturnedPayload for $payload {
                type Back = ();

                fn of(_: &mut Ending) {}

                fn back(self) {}
            }
        )*
    };
}

comes_back_as_nothing!((), Inline);

/// A request, and what it returns when it has ended.
pub trait Outcome: Operation<Reliable> {
    /// Of a request that has succeeded: its payload, or the word before an atomic.
    type Done: std::marker::Send + 'static;
    /// Of one that has failed: why, and its payload.
    type Lost: Into<Error> + std::marker::Send + 'static;

    /// It has ended.
    ///
    /// # Errors
    /// It has failed.
    #[doc(hidden)]
    fn end(ending: &mut Ending) -> Result<Self::Done, Self::Lost>;

    /// It wasn't posted.
    #[doc(hidden)]
    fn refused(self, error: Error) -> Self::Lost;
}

macro_rules! returns_its_payload {
    ($($operation:ident: $bound:ident),*) => {
        $(
            impl<P: $bound + ReturnedPayload> Outcome for $operation<P> {
                type Done = P::Back;
                type Lost = Failed<P::Back>;

                #[inline]
                fn end(ending: &mut Ending) -> Result<P::Back, Failed<P::Back>> {
                    let back = P::of(ending);
                    match ending.fault.take() {
                        None => Ok(back),
                        Some(fault) => Err(Failed { error: fault.into(), back }),
                    }
                }

                fn refused(self, error: Error) -> Failed<P::Back> {
                    Failed { error, back: self.into_payload().back() }
                }
            }
        )*
    };
}

returns_its_payload!(Send: Payload, Write: Payload, Read: PayloadMut);

macro_rules! returns_the_word_before {
    ($($operation:ident),*) => {
        $(
            impl Outcome for $operation {
                type Done = u64;
                type Lost = Error;

                #[inline]
                fn end(ending: &mut Ending) -> Result<u64, Error> {
                    match ending.fault.take() {
                        None => Ok(ending.value),
                        Some(fault) => Err(fault.into()),
                    }
                }

                fn refused(self, error: Error) -> Error {
                    error
                }
            }
        )*
    };
}

returns_the_word_before!(FetchAdd, CompareSwap);
