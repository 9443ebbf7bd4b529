//! What a peer may do with exposed memory, and the token that names it.

use crate::Error;
use crate::rights::Right;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

/// Rights of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// It may read.
    pub read: bool,
    /// It may write.
    pub write: bool,
    /// It may carry out atomics.
    pub atomic: bool,
}

impl Rights {
    const fn bits(self) -> u8 {
        self.read as u8 | (self.write as u8) << 1 | (self.atomic as u8) << 2
    }

    /// Everything that `other` permits is permitted.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        other.bits() & !self.bits() == 0
    }
}

/// Rights as types: a request to a peer's memory compiles only if the token has the right.
pub mod rights {
    use super::Rights;

    /// A set of rights.
    pub trait Right: Copy + Send + Sync + 'static {
        /// The rights as a value.
        const RIGHTS: Rights;
    }

    /// A set of rights with reading.
    pub trait Reads: Right {}
    /// A set of rights with writing.
    pub trait Writes: Right {}
    /// A set of rights with atomics.
    pub trait Atomics: Right {}

    macro_rules! right {
        ($(#[$about:meta])* $name:ident: $($has:ident $field:ident),*) => {
            $(#[$about])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub struct $name;
            impl Right for $name {
                const RIGHTS: Rights = {
                    let mut rights = Rights { read: false, write: false, atomic: false };
                    $(rights.$field = true;)*
                    rights
                };
            }
            $(impl $has for $name {})*
        };
    }
    right!(
        /// The peer may read.
        Read: Reads read
    );
    right!(
        /// The peer may write.
        Write: Writes write
    );
    right!(
        /// The peer may read and write.
        ReadWrite: Reads read, Writes write
    );
    right!(
        /// The peer may carry out atomics.
        Atomic: Atomics atomic
    );
    right!(
        /// The peer may read, write, and carry out atomics.
        All: Reads read, Writes write, Atomics atomic
    );
}

const VERSION: u8 = 1;

/// A peer's token of memory that it exposes: key, address, length, and the rights `A`. It can be sent as 24 bytes.
///
/// A token that is stale or invented leads to a failed request, never to wrong memory: the peer's adapter checks it.
pub struct Remote<A> {
    key: u32,
    address: u64,
    len: u64,
    rights: PhantomData<A>,
}

impl<A> Clone for Remote<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Remote<A> {}

impl<A: Right> Remote<A> {
    /// A token of a window.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(key: u32, address: u64, len: u64) -> Self {
        Self { key, address, len, rights: PhantomData }
    }

    /// The token as bytes, for the peer.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[0] = VERSION;
        bytes[1] = A::RIGHTS.bits();
        bytes[4..8].copy_from_slice(&self.key.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_be_bytes());
        bytes[16..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// A token that a peer has sent.
    ///
    /// # Errors
    /// The bytes aren't a token of this version, or it lacks a right of `A`.
    pub fn from_bytes(bytes: [u8; 24]) -> Result<Self, Error> {
        let [version, rights, _, _, token @ ..] = bytes;
        if version != VERSION {
            return Err(Error::invalid("token", format!("unknown version {version}")));
        }
        if A::RIGHTS.bits() & !rights != 0 {
            return Err(Error::denied("token", "it lacks a right that is needed"));
        }
        let [k0, k1, k2, k3, numbers @ ..] = token;
        let number = |at: usize| numbers[at..at + 8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        let (address, len) = (number(0), number(8));
        if address.checked_add(len).is_none() {
            return Err(Error::invalid("token", "the memory ends beyond the last address"));
        }
        Ok(Self::new(u32::from_be_bytes([k0, k1, k2, k3]), address, len))
    }

    /// Bytes of the memory.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// The memory has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of the memory.
    ///
    /// # Panics
    /// The range isn't within it.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = crate::range::limits(&range, usize::try_from(self.len).unwrap_or(usize::MAX));
        Self::new(self.key, self.address + start as u64, (end - start) as u64)
    }

    /// The remote key.
    #[must_use]
    pub const fn key(&self) -> u32 {
        self.key
    }

    /// The address of the first byte, as the peer's adapter knows it.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }
}

impl<A: Right> fmt::Debug for Remote<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({:#x}, {:?}, {} bytes at {:#x})", self.key, A::RIGHTS, self.len, self.address)
    }
}
