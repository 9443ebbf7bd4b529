//! Requests as values.

use crate::verbs::address::Address;
use crate::verbs::cq::Operated;
use crate::verbs::{Datagram, Reliable, Transport, Unreliable};
use ferroce_buffers::rights::{Atomics, Reads, Right, Writes};
use ferroce_buffers::{
    Buffer, Error, Held, Inline, Kind, Lendable as _, Payload, PayloadMut, Remote, Rights, Segments,
};
use ferroce_proto::SendOp;
use ferroce_types::{Access, BindMw, Sge};
use sealed::{Described, Flags, Request};
use std::marker::PhantomData;

/// A request that a transport can carry out.
pub trait Operation<T: Transport>: Request + std::marker::Send + 'static {}

pub(crate) mod sealed {
    use super::{Address, Error, Held, Inline, Operated, Segments, SendOp};

    /// Flags of a request.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Flags {
        pub quiet: bool,
        pub fence: bool,
        pub solicited: bool,
    }

    /// What a request asks for.
    #[derive(Debug)]
    pub struct Described<'a> {
        pub op: SendOp,
        pub flags: Flags,
        pub what: Operated,
        /// Bytes that are copied into the request.
        pub inline: Option<&'a [u8]>,
        /// The region of memory that is lent.
        pub region: u64,
        /// Why it can't be posted.
        pub error: Option<Error>,
    }

    /// A request, as a queue pair sees it.
    pub trait Request: Sized {
        fn describe(&self) -> Described<'_>;
        /// Where a datagram goes.
        #[inline]
        fn to(&self) -> Option<&Address> {
            None
        }
        /// The memory that the request names.
        fn segments(&self) -> Segments;
        /// Lends the memory to the adapter, and returns the inline data.
        fn hold(self, into: &mut Held) -> Option<Inline>;
    }
}

/// A peer's memory, without its type.
#[derive(Clone, Copy, Debug)]
struct Token {
    key: u32,
    address: u64,
    len: u64,
}

impl Token {
    const fn of<A: Right>(remote: Remote<A>) -> Self {
        Self { key: remote.key(), address: remote.address(), len: remote.len() }
    }

    #[inline]
    fn check(&self, len: u64) -> Option<Error> {
        (len > self.len).then(|| token_error(len, self.len))
    }
}

/// A message of `len` bytes doesn't fit.
#[cold]
pub(crate) fn token_error(len: u64, room: u64) -> Error {
    Error::new(Kind::TooLong, "post", format!("{len} bytes; the memory for them has {room}"))
}

const fn message(immediate: Option<u32>) -> SendOp {
    match immediate {
        Some(immediate) => SendOp::SendWithImmediate { immediate: immediate.to_be_bytes() },
        None => SendOp::Send,
    }
}

/// The flags that all requests have.
macro_rules! flags {
    () => {
        /// Reports the completion together with that of the next request that isn't quiet, which spares the adapter work. If none
        /// follows, no completion comes: the last request of a series isn't quiet. After half a queue of quiet requests one is
        /// reported as if it weren't quiet.
        pub const fn quiet(mut self) -> Self {
            self.flags.quiet = true;
            self
        }

        /// Begins after all READs and atomics that were posted before have ended.
        pub const fn fence(mut self) -> Self {
            self.flags.fence = true;
            self
        }
    };
}

/// What messages have that take a receive of the peer.
macro_rules! message {
    () => {
        /// Adds 32 bits, which the completion of the peer's receive contains.
        pub const fn imm(mut self, immediate: u32) -> Self {
            self.immediate = Some(immediate);
            self
        }

        /// Marks the message as solicited, for a C program that has called `ibv_req_notify_cq` with `solicited_only`. Queues of this crate
        /// report all messages.
        pub const fn solicited(mut self) -> Self {
            self.flags.solicited = true;
            self
        }

        flags!();

        /// The payload of a request that was refused.
        pub fn into_payload(self) -> P {
            self.payload
        }
    };
}

/// A message, which takes a receive of the peer.
#[derive(Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct Send<P> {
    payload: P,
    immediate: Option<u32>,
    returns: Option<u32>,
    flags: Flags,
}

impl<P: Payload> Send<P> {
    /// A message with this payload.
    pub fn new(payload: P) -> Self {
        Self { payload, immediate: None, returns: None, flags: Flags::default() }
    }

    /// Returns a [`Loan`](crate::verbs::Loan) to the peer: its token is invalid when the message is received. For reliable
    /// connections, and without [`Send::imm`].
    pub const fn returning<A: Right>(mut self, token: Remote<A>) -> Self {
        self.returns = Some(token.key());
        self
    }

    message!();
}

impl<P: Payload> Request for Send<P> {
    #[inline]
    fn describe(&self) -> Described<'_> {
        let op = match self.returns {
            Some(rkey) => SendOp::SendWithInvalidate { rkey },
            None => message(self.immediate),
        };
        let inline = self.payload.inline();
        let both = self.returns.is_some() && self.immediate.is_some();
        let error = both.then(|| Error::invalid("post", "a message returns a loan or has 32 bits, not both"));
        Described { op, flags: self.flags, what: Operated::Sent, inline, region: 0, error }
    }

    #[inline]
    fn segments(&self) -> Segments {
        self.payload.segments()
    }

    #[inline]
    fn hold(self, into: &mut Held) -> Option<Inline> {
        self.payload.hold(into)
    }
}

impl<P: Payload> Operation<Reliable> for Send<P> {}
impl<P: Payload> Operation<Unreliable> for Send<P> {}

/// A message to any queue pair for datagrams, which takes a receive there. It may be lost.
///
/// ```compile_fail,E0277
/// # use ferroce::verbs::{Address, RcQp, SendTo};
/// fn send(connected: &mut RcQp, to: &Address) {
///     let _ = connected.post(1, SendTo::new((), to));
/// }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct SendTo<P> {
    payload: P,
    to: Address,
    immediate: Option<u32>,
    flags: Flags,
}

impl<P: Payload> SendTo<P> {
    /// A message with this payload, which fits into a packet.
    pub fn new(payload: P, to: &Address) -> Self {
        Self { payload, to: to.clone(), immediate: None, flags: Flags::default() }
    }

    message!();
}

impl<P: Payload> Request for SendTo<P> {
    fn describe(&self) -> Described<'_> {
        let (op, inline) = (message(self.immediate), self.payload.inline());
        Described { op, flags: self.flags, what: Operated::Sent, inline, region: 0, error: None }
    }

    fn to(&self) -> Option<&Address> {
        Some(&self.to)
    }

    fn segments(&self) -> Segments {
        self.payload.segments()
    }

    fn hold(self, into: &mut Held) -> Option<Inline> {
        self.payload.hold(into)
    }
}

impl<P: Payload> Operation<Datagram> for SendTo<P> {}

/// Writes to a peer's memory. The peer's program isn't involved.
///
/// ```compile_fail,E0277
/// # use ferroce::{Buffer, Remote, rights, verbs::Write};
/// fn overwrite(payload: Buffer, readable: Remote<rights::Read>) {
///     let _ = Write::new(payload, readable);
/// }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct Write<P> {
    payload: P,
    to: Token,
    immediate: Option<u32>,
    flags: Flags,
}

impl<P: Payload> Write<P> {
    /// Writes the payload to the beginning of the peer's memory.
    pub fn new<A: Writes>(payload: P, to: Remote<A>) -> Self {
        Self { payload, to: Token::of(to), immediate: None, flags: Flags::default() }
    }

    /// Takes a receive of the peer, whose completion contains these 32 bits.
    pub const fn imm(mut self, immediate: u32) -> Self {
        self.immediate = Some(immediate);
        self
    }

    flags!();

    /// The payload of a request that was refused.
    pub fn into_payload(self) -> P {
        self.payload
    }
}

impl<P: Payload> Request for Write<P> {
    #[inline]
    fn describe(&self) -> Described<'_> {
        let Token { address: va, key: rkey, .. } = self.to;
        let op = match self.immediate {
            Some(immediate) => SendOp::WriteWithImmediate { va, rkey, immediate: immediate.to_be_bytes() },
            None => SendOp::Write { va, rkey },
        };
        let inline = self.payload.inline();
        let error = self.to.check(self.payload.bytes() + inline.map_or(0, |bytes| bytes.len() as u64));
        Described { op, flags: self.flags, what: Operated::Written, inline, region: 0, error }
    }

    #[inline]
    fn segments(&self) -> Segments {
        self.payload.segments()
    }

    #[inline]
    fn hold(self, into: &mut Held) -> Option<Inline> {
        self.payload.hold(into)
    }
}

impl<P: Payload> Operation<Reliable> for Write<P> {}
impl<P: Payload> Operation<Unreliable> for Write<P> {}

/// Reads a peer's memory. The peer's program isn't involved.
#[derive(Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct Read<P> {
    into: P,
    from: Token,
    flags: Flags,
}

impl<P: PayloadMut> Read<P> {
    /// Reads all of `from` into the beginning of the memory, and sets the length.
    pub fn new<A: Reads>(into: P, from: Remote<A>) -> Self {
        Self { into, from: Token::of(from), flags: Flags::default() }
    }

    flags!();

    /// The memory of a request that was refused.
    pub fn into_payload(self) -> P {
        self.into
    }
}

impl<P: PayloadMut> Request for Read<P> {
    #[inline]
    fn describe(&self) -> Described<'_> {
        let Token { address: va, key: rkey, len } = self.from;
        let room = self.into.room_bytes();
        let error = (len > room).then(|| token_error(len, room));
        Described {
            op: SendOp::Read { va, rkey },
            flags: self.flags,
            what: Operated::Read,
            inline: None,
            region: 0,
            error,
        }
    }

    #[inline]
    fn segments(&self) -> Segments {
        let mut segments = self.into.room();
        segments.truncate(self.from.len);
        segments
    }

    #[inline]
    fn hold(self, into: &mut Held) -> Option<Inline> {
        self.into.hold_for_writing(into);
        None
    }
}

impl<P: PayloadMut> Operation<Reliable> for Read<P> {}

/// Adds to a word of a peer's memory. [`Completion::value`](crate::verbs::Completion::value) is the word before.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct FetchAdd {
    at: Token,
    add: u64,
    flags: Flags,
}

impl FetchAdd {
    /// Adds to the first 8 bytes of the peer's memory, which are aligned to 8.
    pub fn new<A: Atomics>(at: Remote<A>, add: u64) -> Self {
        Self { at: Token::of(at), add, flags: Flags::default() }
    }

    flags!();
}

/// Compares a word of a peer's memory, and replaces it if it is equal.
/// [`Completion::value`](crate::verbs::Completion::value) is the word before.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct CompareSwap {
    at: Token,
    compare: u64,
    swap: u64,
    flags: Flags,
}

impl CompareSwap {
    /// Replaces the first 8 bytes of the peer's memory, which are aligned to 8, by `swap` if they are `compare`.
    pub fn new<A: Atomics>(at: Remote<A>, compare: u64, swap: u64) -> Self {
        Self { at: Token::of(at), compare, swap, flags: Flags::default() }
    }

    flags!();
}

#[inline]
fn atomic(at: Token, op: SendOp, flags: Flags) -> Described<'static> {
    let aligned = at.address.is_multiple_of(8);
    let error = (at.len < 8 || !aligned).then(|| {
        Error::invalid("post", "an atomic needs 8 bytes of the peer's memory that are aligned to 8")
    });
    Described { op, flags, what: Operated::Atomic, inline: None, region: 0, error }
}

impl Request for FetchAdd {
    #[inline]
    fn describe(&self) -> Described<'_> {
        let Token { address: va, key: rkey, .. } = self.at;
        atomic(self.at, SendOp::FetchAdd { va, rkey, add: self.add }, self.flags)
    }

    #[inline]
    fn segments(&self) -> Segments {
        Segments::new()
    }

    #[inline]
    fn hold(self, _: &mut Held) -> Option<Inline> {
        None
    }
}

impl Operation<Reliable> for FetchAdd {}

impl Request for CompareSwap {
    #[inline]
    fn describe(&self) -> Described<'_> {
        let Token { address: va, key: rkey, .. } = self.at;
        let (compare, swap) = (self.compare, self.swap);
        atomic(self.at, SendOp::CompareSwap { va, rkey, compare, swap }, self.flags)
    }

    #[inline]
    fn segments(&self) -> Segments {
        Segments::new()
    }

    #[inline]
    fn hold(self, _: &mut Held) -> Option<Inline> {
        None
    }
}

impl Operation<Reliable> for CompareSwap {}

/// Lends a buffer's capacity to the peer, by a memory window. The completion has the [`Loan`](crate::verbs::Loan).
///
/// The peer may use the token as soon as it has it, so what contains the token is sent after the completion.
///
/// Posting it fails as [`Kind::Unsupported`](crate::Kind::Unsupported) on a device of the system that has no memory windows of type 2B, or that
/// doesn't report the key that a peer returns (`rdma_rxe`). [`Buffer::expose`](crate::Buffer::expose) works on all devices.
#[derive(Debug)]
#[must_use = "a request does nothing before it is posted"]
pub struct Lend<A> {
    buffer: Buffer,
    rights: PhantomData<A>,
    flags: Flags,
}

impl<A: Right> Lend<A> {
    /// Lends the buffer with these rights.
    pub fn new(buffer: Buffer, _rights: A) -> Self {
        Self { buffer, rights: PhantomData, flags: Flags::default() }
    }

    flags!();

    /// The buffer of a request that was refused.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl<A: Right> Request for Lend<A> {
    fn describe(&self) -> Described<'_> {
        let segments = self.buffer.room();
        let whole = segments.first().copied().unwrap_or(Sge { addr: 0, length: 0, lkey: 0 });
        let Rights { read, write, atomic } = A::RIGHTS;
        let access =
            Access { remote_read: read, remote_write: write, remote_atomic: atomic, ..Access::default() };
        // The queue pair chooses the window and the key.
        let op = SendOp::BindMw(BindMw {
            window: 0,
            rkey: 0,
            lkey: whole.lkey,
            va: whole.addr,
            length: u64::from(whole.length),
            access,
            zero_based: false,
        });
        let error = (whole.length == 0).then(|| Error::invalid("post", "an empty buffer can't be lent"));
        let region = self.buffer.handle();
        Described { op, flags: self.flags, what: Operated::Lent, inline: None, region, error }
    }

    fn segments(&self) -> Segments {
        Segments::new()
    }

    fn hold(self, into: &mut Held) -> Option<Inline> {
        self.buffer.hold_for_peers(into);
        None
    }
}

impl<A: Right> Operation<Reliable> for Lend<A> {}
