//! What the calling thread may do.

/// Raw sockets, and what is as privileged (capabilities(7)).
pub const CAP_NET_RAW: u32 = 13;

/// Whether the calling thread has a capability in effect.
#[must_use]
pub fn has_capability(capability: u32) -> bool {
    /// `_LINUX_CAPABILITY_VERSION_3`: two sets of three words.
    const VERSION: u32 = 0x2008_0522;
    let mut header = [VERSION, 0];
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: `header` is two words, and the sets are the two that this version has.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    let effective = sets[capability as usize / 32 % 2][0];
    got == 0 && effective & 1 << (capability % 32) != 0
}
