//! Ranges of memory and the rights to them, by which registrations, keys and lists for other processes describe regions.

use ferroce_types::Placement;

/// Bytes of the longest region, but for the whole address space.
pub const MAX_MR_SIZE: u64 = 1 << 47;

/// What may be done with a region (IBV_ACCESS_*).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // ibv_reg_mr(3)
pub struct MrAccess {
    pub local_write: bool,
    pub remote_write: bool,
    pub remote_read: bool,
    pub remote_atomic: bool,
    pub flush: Placement,
    /// IBV_ACCESS_MW_BIND: windows may be bound to it.
    pub bind_windows: bool,
    /// IBV_ACCESS_ON_DEMAND: its pages may come and go.
    pub on_demand: bool,
}

impl MrAccess {
    /// All that a peer or a work request can do with memory that is there.
    pub const ALL: Self = Self {
        local_write: true,
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        flush: Placement { global: true, persistent: false },
        bind_windows: true,
        on_demand: false,
    };
}

/// What to register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrInit {
    /// First byte in the program's memory.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Address of the first byte in work requests and RETHs; `addr` unless set by ibv_reg_mr_iova(3).
    pub iova: u64,
    /// Rights.
    pub access: MrAccess,
}

/// The user of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyUser {
    /// The protection domain's number.
    pub pd: u32,
    /// The QP's, unlike that of any other QP of the process's life.
    pub qp: u64,
}

/// Key, protection domain, range or rights don't allow what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied;

/// The program address of `len` bytes at `va` of a region, by its address, the address in requests and its length, if they lie
/// inside it.
#[inline]
pub(crate) fn translate_in((addr, iova, length): (u64, u64, u64), va: u64, len: u64) -> Option<u64> {
    let offset = va.checked_sub(iova)?;
    (offset.checked_add(len)? <= length).then(|| addr + offset)
}

/// The program address of `len` bytes at `va` of the region, if they lie inside it.
#[inline]
pub(crate) fn translate(init: &MrInit, va: u64, len: u64) -> Option<u64> {
    translate_in((init.addr, init.iova, init.length), va, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_outside_the_region_have_no_address() {
        let i = MrInit { addr: 0x1000, length: 0x100, iova: 0x8000, access: MrAccess::ALL };
        assert_eq!(translate(&i, 0x8000, 0x100), Some(0x1000));
        assert_eq!(translate(&i, 0x80ff, 1), Some(0x10ff));
        assert_eq!(translate(&i, 0x80ff, 2), None);
        assert_eq!(translate(&i, 0x7fff, 1), None);
        assert_eq!(translate(&i, u64::MAX, u64::MAX), None);
    }
}
