//! SystemRegion memory.

use crate::device::SystemDomain;
use crate::library;
use ferroce_abi::verbs::*;
use ferroce_buffers::{Error, Exposure, Registration, Rights, Tap};
use std::ptr::NonNull;

/// A region of the adapter, which ends with this.
struct SystemRegion {
    mr: NonNull<ibv_mr>,
    address: u64,
    domain: SystemDomain,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for SystemRegion {}
// SAFETY: its members are only read.
unsafe impl Sync for SystemRegion {}

impl SystemDomain {
    /// Registers memory for local use.
    ///
    /// # Errors
    /// It is empty, the library refuses, or the process may not lock so much memory (`ulimit -l`).
    pub fn register(&self, memory: &Tap) -> Result<Box<dyn Registration>, Error> {
        // A window that is bound to a part of it may have rights of peers.
        let windows = if self.context().has_windows { IBV_ACCESS_MW_BIND } else { 0 };
        Ok(Box::new(self.region("register", memory, IBV_ACCESS_LOCAL_WRITE | windows)?))
    }

    /// Registers memory that is only read.
    ///
    /// # Errors
    /// As [`SystemDomain::register`].
    pub fn register_for_reading(&self, memory: &Tap) -> Result<Box<dyn Registration>, Error> {
        Ok(Box::new(self.region("register", memory, 0)?))
    }

    fn region(&self, verb: &'static str, memory: &Tap, access: u32) -> Result<SystemRegion, Error> {
        let context = self.context();
        context.maker.check(verb)?;
        if memory.is_empty() {
            return Err(Error::invalid(verb, "a region of 0 bytes"));
        }
        let address = memory.start().as_ptr().expose_provenance();
        let start = std::ptr::with_exposed_provenance_mut(address);
        let access = access as i32;
        // SAFETY: `ferroce_buffers` drops a registration before the memory is released, moved or given back, and the drop below waits
        // until the region has ended. Until then the adapter accesses the memory for requests that name it, whose memory is in their
        // slots. With rights of peers, the memory is exposed: it has no reference, but for those whose creation is unsafe.
        let mr = unsafe { (context.library.ibv_reg_mr)(self.pd(), start, memory.len(), access) };
        let mr = NonNull::new(mr).ok_or_else(|| library::last_error(verb, "ibv_reg_mr"))?;
        Ok(SystemRegion { mr, address: address as u64, domain: self.clone() })
    }
}

impl Registration for SystemRegion {
    fn key(&self) -> u32 {
        // SAFETY: it is registered, and the library doesn't change it.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn handle(&self) -> u64 {
        self.mr.as_ptr().expose_provenance() as u64
    }

    fn expose(&self, part: Tap, _address: u64, rights: Rights) -> Result<Box<dyn Exposure>, Error> {
        let Rights { read, write, atomic } = rights;
        let right = |has: bool, flag: u32| if has { flag } else { 0 };
        let access = IBV_ACCESS_LOCAL_WRITE
            | right(read, IBV_ACCESS_REMOTE_READ)
            | right(write, IBV_ACCESS_REMOTE_WRITE)
            | right(atomic, IBV_ACCESS_REMOTE_ATOMIC);
        Ok(Box::new(self.domain.region("expose", &part, access)?))
    }
}

impl Exposure for SystemRegion {
    fn key(&self) -> u32 {
        // SAFETY: it is registered, and the library doesn't change it.
        unsafe { (*self.mr.as_ptr()).rkey }
    }
}

impl Drop for SystemRegion {
    fn drop(&mut self) {
        let context = self.domain.context();
        if context.maker.is_here() {
            // SAFETY: it is registered until the call succeeds, after which there is no other.
            library::end("ibv_dereg_mr", || unsafe { (context.library.ibv_dereg_mr)(self.mr.as_ptr()) });
        }
    }
}
