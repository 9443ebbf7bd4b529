//! Devices, and domains on them.

use crate::library;
use ferroce_buffers::{Error, Kind};
use ferroce_netdev as net;
use ferroce_nic as nic;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// A device of this process's network namespace. Clones are handles of the same device.
#[derive(Clone)]
pub struct NativeDevice(Arc<Inner>);

struct Inner {
    device: Arc<nic::Device>,
    /// Open as soon as there was a domain.
    context: Mutex<Option<Arc<nic::Context>>>,
}

impl NativeDevice {
    /// All devices, as the system lists its interfaces.
    ///
    /// # Errors
    /// The system's interfaces can't be read, or FERROCE_DEVICES is wrong.
    pub fn all() -> Result<Vec<Self>, Error> {
        ferroce_os::fork::install();
        let _inside = library::enter("devices")?;
        let devices = nic::devices().map_err(|error| library::error("devices", &error))?;
        Ok(devices
            .into_iter()
            .map(|device| Self(Arc::new(Inner { device, context: Mutex::default() })))
            .collect())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.device.info().name
    }

    /// Makes a protection domain. The first one opens the device.
    ///
    /// # Errors
    /// UDP port 4791 belongs to another program, or a limit is reached.
    pub fn open(&self) -> Result<NativeDomain, Error> {
        let _inside = library::enter("open")?;
        let refused = |error: ferroce_types::Error| library::error("open", &error);
        let mut context = self.0.context.lock().unwrap_or_else(PoisonError::into_inner);
        let context = match &*context {
            Some(context) => context.clone(),
            None => context.insert(self.0.device.open().map_err(refused)?).clone(),
        };
        let pd = ferroce_mem::Pd::alloc(&context).map_err(refused)?;
        Ok(NativeDomain(Arc::new(DomainInner { device: self.clone(), context, pd })))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let context = self.context.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(context), Ok(_inside)) = (context, library::enter("close")) {
            context.close();
        }
    }
}

impl fmt::Debug for NativeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NativeDevice").field(&self.name()).finish()
    }
}

struct DomainInner {
    device: NativeDevice,
    context: Arc<nic::Context>,
    pd: Arc<ferroce_mem::Pd>,
}

/// A protection domain. Clones are handles of the same domain.
#[derive(Clone)]
pub struct NativeDomain(Arc<DomainInner>);

impl NativeDomain {
    pub(crate) fn pd(&self) -> &Arc<ferroce_mem::Pd> {
        &self.0.pd
    }

    pub(crate) fn context(&self) -> &Arc<nic::Context> {
        &self.0.context
    }

    /// Whether both are handles of the same domain.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether objects of both work together.
    pub(crate) fn shares_device_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.context, &other.0.context)
    }

    /// Bytes of payload in the largest packet.
    pub(crate) fn mtu(&self) -> u32 {
        self.0.context.port().active_mtu
    }

    /// The address that peers reach the device at, and its place in the GID table: an IPv4 address if there is one, a link-local one
    /// only if there is no other.
    ///
    /// # Errors
    /// The interface has no address.
    pub(crate) fn gid(&self) -> Result<(u8, [u8; 16]), Error> {
        let rank = |entry: &net::GidEntry| match entry.ip {
            _ if entry.scope_id != 0 => 2,
            IpAddr::V4(_) => 0,
            IpAddr::V6(_) => 1,
        };
        let gids = self.0.context.gids();
        let best = gids.iter().min_by_key(|(index, entry)| (rank(entry), *index));
        let best = best.and_then(|(index, entry)| Some((u8::try_from(*index).ok()?, entry.gid)));
        best.ok_or_else(|| {
            Error::new(Kind::NotFound, "build", format!("{} has no address", self.0.device.name()))
        })
    }
}

impl fmt::Debug for NativeDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NativeDomain").field(&self.0.device).finish()
    }
}
