//! Memory as work requests name it: elements, rights, windows, and what a peer asks of a region.

use smallvec::SmallVec;

/// A scatter/gather element: `length` bytes at `addr` of the memory region with local key `lkey`. It has the layout of `struct ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Sge {
    /// Address in the region's address space.
    pub addr: u64,
    /// Bytes. (The C ABI's "0 means 2 GiB" is resolved by the caller.)
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

/// The elements of one work request.
pub type SgeList = SmallVec<[Sge; 2]>;

/// A list of these elements.
#[must_use]
#[inline]
pub fn sge_list(sges: &[Sge]) -> SgeList {
    match sges {
        &[sge] => one_sge(sge),
        _ => sges.into(),
    }
}

/// A list of one element, as most are.
#[must_use]
#[inline]
pub fn one_sge(sge: Sge) -> SgeList {
    SgeList::from_buf_and_len([sge; 2], 1)
}

/// A receive work request taken from an RQ or SRQ.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RecvWqe {
    /// The program's number.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: SgeList,
}

impl RecvWqe {
    /// Bytes that fit.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|s| u64::from(s.length)).sum()
    }
}

/// Where a flush has data placed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Placement {
    /// All of the responder's system sees it.
    pub global: bool,
    /// It outlives a loss of power.
    pub persistent: bool,
}

impl Placement {
    /// The bits of a FETH.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.global as u8 | (self.persistent as u8) << 1
    }

    /// From the bits of a FETH; `None` for none at all and unknown ones.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            1..=3 => Some(Self { global: bits & 1 != 0, persistent: bits & 2 != 0 }),
            _ => None,
        }
    }

    /// Nothing is asked that isn't allowed.
    #[must_use]
    pub const fn is_within(self, allowed: Self) -> bool {
        self.bits() & !allowed.bits() == 0
    }
}

/// What the responder allows (IBV_ACCESS_REMOTE_* of the QP).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Access {
    pub remote_write: bool,
    pub remote_read: bool,
    pub remote_atomic: bool,
    pub flush: Placement,
}

impl Access {
    /// All rights.
    pub const ALL: Self = Self {
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        flush: Placement { global: true, persistent: true },
    };
}

/// What binding a memory window asks for (IBTA 10.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BindMw {
    /// The environment's number of the window.
    pub window: u64,
    /// The window's key from then on.
    pub rkey: u32,
    /// Local key of the region.
    pub lkey: u32,
    /// First byte, in the region's address space.
    pub va: u64,
    /// Bytes; 0 unbinds.
    pub length: u64,
    /// Rights of the peer.
    pub access: Access,
    /// Addresses in RETHs count from the window's first byte.
    pub zero_based: bool,
}

/// What an atomic does to the 8 bytes, in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum AtomicOp {
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// An atomic write, which needs the right to write.
    Store {
        value: u64,
    },
}

/// What a remote peer asks of a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum RemoteAccess {
    Read,
    Write,
    Atomic,
    /// An atomic write.
    Store,
    Flush(Placement),
}

/// Why a remote peer's access was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RemoteError {
    /// Key, protection domain, range or rights: NAK remote access error.
    Access,
    /// The memory was there when it was registered and is gone: NAK remote operational error.
    Operational,
}
