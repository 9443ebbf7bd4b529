//! Registered memory. The unsafe code of this crate is here.

use crate::device::NativeDomain;
use crate::library;
use ferroce_buffers::{Error, Exposure, Registration, Rights, Tap};
use ferroce_mem::{Mr, MrAccess, MrInit};
use ferroce_types::Placement;
use std::sync::Arc;

/// A region of the adapter, which ends with this.
struct Registered {
    domain: NativeDomain,
    mr: Arc<Mr>,
    address: u64,
}

/// A local region has no rights of peers. A window that is bound to a part of it may have some.
const LOCAL: MrAccess = MrAccess {
    local_write: true,
    remote_write: false,
    remote_read: false,
    remote_atomic: false,
    flush: Placement { global: false, persistent: false },
    bind_windows: true,
    on_demand: false,
};

impl NativeDomain {
    /// Registers memory for local use.
    ///
    /// # Errors
    /// It is empty, or the adapter refuses.
    pub fn register(&self, memory: &Tap) -> Result<Box<dyn Registration>, Error> {
        Ok(Box::new(self.region("register", memory, LOCAL)?))
    }

    /// Registers memory that is only read.
    ///
    /// # Errors
    /// As [`NativeDomain::register`].
    pub fn register_for_reading(&self, memory: &Tap) -> Result<Box<dyn Registration>, Error> {
        let access = MrAccess { local_write: false, bind_windows: false, ..LOCAL };
        Ok(Box::new(self.region("register", memory, access)?))
    }

    fn region(&self, verb: &'static str, memory: &Tap, access: MrAccess) -> Result<Registered, Error> {
        if memory.is_empty() {
            return Err(Error::invalid(verb, "a region of 0 bytes"));
        }
        let address = memory.start().as_ptr().expose_provenance() as u64;
        let init = MrInit { addr: address, length: memory.len() as u64, iova: address, access };
        let _inside = library::enter(verb)?;
        // `ferroce_buffers` drops a registration before the memory is released, moved or given back, and the drop below waits until the
        // region has ended. Until then the adapter accesses the memory for requests that name it, whose memory is in their slots: it has
        // no `&mut` while it is read, and no reference while it is written. With rights of peers, the memory is exposed: it has no
        // reference, but for those whose creation is unsafe.
        // SAFETY: so the memory outlives the region, and no reference is in the way of an access. It is initialised, and any bytes are
        // valid for it.
        #[allow(unsafe_code)]
        let mr = unsafe { Mr::register(self.pd(), init) };
        let mr = mr.map_err(|error| library::error(verb, &error))?;
        Ok(Registered { domain: self.clone(), mr, address })
    }
}

impl Registration for Registered {
    fn key(&self) -> u32 {
        self.mr.key()
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn expose(&self, part: Tap, _address: u64, rights: Rights) -> Result<Box<dyn Exposure>, Error> {
        let Rights { read, write, atomic } = rights;
        let access = MrAccess {
            remote_read: read,
            remote_write: write,
            remote_atomic: atomic,
            bind_windows: false,
            ..LOCAL
        };
        Ok(Box::new(self.domain.region("expose", &part, access)?))
    }
}

impl Exposure for Registered {
    fn key(&self) -> u32 {
        self.mr.rkey()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        library::until_done("deregister", || self.mr.deregister());
    }
}
