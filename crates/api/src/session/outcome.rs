//! What a request returns when it has ended.

use crate::verbs::{CompareSwap, Completion, FetchAdd, Operation, Read, Reliable, Send, Write};
use ferroce_buffers::{Buffer, Error, Failed, Fault, Frozen, Inline, Part, Parts, Payload, PayloadMut};

/// A request that has ended.
#[derive(Debug, Default)]
pub struct Ending {
    pub(crate) fault: Option<Fault>,
    pub(crate) parts: Parts,
    pub(crate) value: Option<u64>,
}

impl Ending {
    #[inline]
    pub(crate) fn of(completion: &mut Completion<'_>) -> Self {
        Self { fault: completion.result().err(), value: completion.value(), parts: completion.take() }
    }

    pub(crate) const fn flushed(fault: Fault, parts: Parts) -> Self {
        Self { fault: Some(fault), parts, value: None }
    }
}

/// A payload that comes back when its request has ended.
pub trait ReturnedPayload: Payload {
    /// What comes back: the payload itself, or `()` for [`Inline`] data.
    type Back: std::marker::Send + 'static;

    /// Of a request that has ended.
    #[doc(hidden)]
    fn of_parts(parts: &mut Parts) -> Self::Back;

    /// Of a request that wasn't posted.
    #[doc(hidden)]
    fn back(self) -> Self::Back;
}

#[inline]
fn buffer(parts: &mut Parts) -> Buffer {
    match parts.only_buffer() {
        Some(buffer) => buffer,
        None => next_buffer(parts),
    }
}

#[inline(never)]
fn next_buffer(parts: &mut Parts) -> Buffer {
    match parts.next() {
        Some(Part::Buffer(buffer)) => buffer,
        // A slot returns what was posted.
        other => unreachable!("a request with {other:?} instead of a buffer"),
    }
}

fn frozen(parts: &mut Parts) -> Frozen {
    match parts.next() {
        Some(Part::Frozen(frozen)) => frozen,
        other => unreachable!("a request with {other:?} instead of a frozen buffer"),
    }
}

macro_rules! comes_back {
    ($([$($generics:tt)*] $payload:ty => $parts:ident, $back:expr;)*) => {
        $(
            impl<$($generics)*> ReturnedPayload for $payload {
                type Back = Self;

                #[inline]
                fn of_parts($parts: &mut Parts) -> Self {
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
    [] Buffer => parts, buffer(parts);
    [] Frozen => parts, frozen(parts);
    [] (Buffer, Frozen) => parts, (buffer(parts), frozen(parts));
    [const N: usize] [Buffer; N] => parts, std::array::from_fn(|_| buffer(parts));
    [] Vec<Buffer> => parts, {
        let count = parts.len();
        (0..count).map(|_| buffer(parts)).collect()
    };
}

macro_rules! comes_back_as_nothing {
    ($($payload:ty),*) => {
        $(
            impl ReturnedPayload for $payload {
                type Back = ();

                fn of_parts(_: &mut Parts) {}

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
                    let back = P::of_parts(&mut ending.parts);
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
                        None => Ok(ending.value.unwrap_or_default()),
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
