//! Memory windows.

use crate::device::SystemDomain;
use crate::library;
use ferroce_abi::verbs::*;
use ferroce_buffers::{Error, Kind};
use std::ptr::NonNull;

/// A memory window of type 2B. Nothing is reached through it once it is dropped.
pub struct SystemWindow {
    mw: NonNull<ibv_mw>,
    key: u32,
    domain: SystemDomain,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for SystemWindow {}
// SAFETY: its members are only read.
unsafe impl Sync for SystemWindow {}

impl SystemDomain {
    /// Makes a memory window.
    ///
    /// # Errors
    /// The device has none ([`Kind::Unsupported`]), or a limit is reached.
    pub fn window(&self) -> Result<SystemWindow, Error> {
        let context = self.context();
        context.maker.check("post")?;
        // SAFETY: an open device, whose functions the library has set.
        let alloc = unsafe { (*context.get()).ops.alloc_mw };
        let Some(alloc) = alloc.filter(|_| context.has_windows) else {
            let why = "the device has no memory windows of type 2B, or doesn't report that a peer returns one: use `Buffer::expose`";
            return Err(Error::new(Kind::Unsupported, "post", why));
        };
        // SAFETY: a domain.
        let mw = unsafe { alloc(self.pd(), IBV_MW_TYPE_2) };
        let mut mw = NonNull::new(mw).ok_or_else(|| library::last_error("post", "ibv_alloc_mw"))?;
        // SAFETY: the provider has made it, and nothing else refers to it.
        let key = unsafe { mw.as_mut() }.rkey;
        Ok(SystemWindow { mw, key, domain: self.clone() })
    }
}

impl SystemWindow {
    /// A key of which a request that binds the window may change the low 8 bits.
    #[must_use]
    pub const fn key(&self) -> u32 {
        self.key
    }

    /// Its number in requests: the address of the library's object.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.mw.as_ptr().expose_provenance() as u64
    }
}

impl Drop for SystemWindow {
    fn drop(&mut self) {
        let context = self.domain.context();
        if context.maker.is_here() {
            // SAFETY: it exists until the call succeeds, after which there is no other.
            library::end("ibv_dealloc_mw", || unsafe {
                let dealloc = (*context.get()).ops.dealloc_mw;
                dealloc.map_or(libc::ENOSYS, |dealloc| dealloc(self.mw.as_ptr()))
            });
        }
    }
}
