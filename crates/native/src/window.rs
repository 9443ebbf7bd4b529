//! Memory windows.

use crate::device::NativeDomain;
use crate::library;
use ferroce_buffers::Error;
use ferroce_mem::{Mw, MwKind};
use ferroce_types::Access;
use std::sync::Arc;

/// A memory window of type 2B. Nothing is reached through it once it is dropped.
pub struct NativeWindow {
    mw: Arc<Mw>,
    number: u64,
    key: u32,
    _domain: NativeDomain,
}

impl NativeDomain {
    /// Makes a memory window.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn window(&self) -> Result<NativeWindow, Error> {
        let _inside = library::enter("post")?;
        let refused = |error: ferroce_types::Error| library::error("post", &error);
        let mw = Mw::alloc(self.pd(), MwKind::Two).map_err(refused)?;
        let (key, number) = match mw.bind_request(0, None, (0, 0), Access::default(), false) {
            Ok(request) => (mw.rkey(), request.window),
            Err(error) => return Err(refused(error)),
        };
        Ok(NativeWindow { mw, number, key, _domain: self.clone() })
    }
}

impl NativeWindow {
    /// A key of which a request that binds the window may change the low 8 bits.
    #[must_use]
    pub const fn key(&self) -> u32 {
        self.key
    }

    /// Its number in requests.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for NativeWindow {
    fn drop(&mut self) {
        library::until_done("recall", || self.mw.dealloc());
    }
}
