//! Devices, and domains on them.

use crate::failures::Failures;
use crate::library::{self, Library, Maker, library};
use ferroce_abi::verbs::*;
use ferroce_buffers::{Error, Kind};
use std::ffi::{CStr, c_int};
use std::fmt;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// The kernel has no RDMA, so no device.
const NO_DEVICE: &str = "the kernel offers no RDMA device to libibverbs (ib_uverbs isn't loaded)";

/// The vendor of `rdma_rxe`, 0 in older kernels. Its completions don't contain the key that a message has invalidated, so no
/// loan would return.
const RXE_VENDOR: u32 = 0xff_ffff;

/// The number of the only port that is used.
const PORT: u8 = 1;

/// A device of the library. Clones are handles of the same device.
#[derive(Clone)]
pub struct SystemDevice(Arc<NamedDevice>);

struct NamedDevice {
    name: String,
    /// Open as soon as there was a domain.
    context: Mutex<Option<Arc<SystemContext>>>,
}

impl SystemDevice {
    /// All devices, in the library's order.
    ///
    /// # Errors
    /// There is no library ([`Kind::NotFound`]), or it can't list the devices.
    pub fn all() -> Result<Vec<Self>, Error> {
        let devices = List::new("system")?;
        let named = |name| Self(Arc::new(NamedDevice { name, context: Mutex::default() }));
        Ok(devices.names().map(named).collect())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Makes a protection domain. The first one opens the device.
    ///
    /// # Errors
    /// The device is gone, its link layer isn't Ethernet ([`Kind::Unsupported`]), or a limit is reached.
    pub fn open(&self) -> Result<SystemDomain, Error> {
        let mut context = self.0.context.lock().unwrap_or_else(PoisonError::into_inner);
        let context = match &*context {
            Some(context) if context.maker.is_here() => context.clone(),
            _ => context.insert(Arc::new(SystemContext::open(&self.0.name)?)).clone(),
        };
        // SAFETY: an open device.
        let pd = unsafe { (context.library.ibv_alloc_pd)(context.get()) };
        let pd = NonNull::new(pd).ok_or_else(|| library::last_error("open", "ibv_alloc_pd"))?;
        Ok(SystemDomain(Arc::new(DomainInner { device: self.clone(), pd, context })))
    }
}

impl fmt::Debug for SystemDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SystemDevice").field(&self.0.name).finish()
    }
}

/// A list of the library's devices, which are valid as long as it is.
struct List {
    library: &'static Library,
    first: NonNull<*mut ibv_device>,
    len: usize,
}

impl List {
    fn new(verb: &'static str) -> Result<Self, Error> {
        let library = library()?;
        let mut len = 0;
        // SAFETY: a place for the number of devices.
        let first = unsafe { (library.ibv_get_device_list)(&raw mut len) };
        let first = NonNull::new(first).ok_or_else(|| {
            let error = library::last_error(verb, "ibv_get_device_list");
            match error.kind() {
                Kind::Unsupported => Error::new(Kind::NotFound, verb, NO_DEVICE),
                _ => error,
            }
        })?;
        Ok(Self { library, first, len: usize::try_from(len).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: so many entries, which stay until the list is freed.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }.iter().copied()
    }

    fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: a device of the list, whose name stays as long.
        unsafe { CStr::from_ptr((self.library.ibv_get_device_name)(device)) }.to_string_lossy().into_owned()
    }

    fn names(&self) -> impl Iterator<Item = String> {
        self.devices().map(|device| self.name(device))
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: made by the library, and freed once.
        unsafe { (self.library.ibv_free_device_list)(self.first.as_ptr()) };
    }
}

/// An open device.
pub(crate) struct SystemContext {
    pub(crate) library: &'static Library,
    pub(crate) maker: Maker,
    pub(crate) failures: Failures,
    /// Of type 2B, whose invalidation is reported.
    pub(crate) has_windows: bool,
    context: NonNull<ibv_context>,
}

// SAFETY: the library's objects may be used by any thread.
unsafe impl Send for SystemContext {}
// SAFETY: ibv_open_device(3): the library's calls may run in several threads at once.
unsafe impl Sync for SystemContext {}

impl SystemContext {
    fn open(name: &str) -> Result<Self, Error> {
        let list = List::new("open")?;
        let device = list.devices().find(|&device| list.name(device) == name);
        let gone = || Error::new(Kind::NotFound, "open", format!("the device {name} is gone"));
        let library = list.library;
        // SAFETY: a device of the list. The context outlives the list.
        let context = unsafe { (library.ibv_open_device)(device.ok_or_else(gone)?) };
        let context = NonNull::new(context).ok_or_else(|| library::last_error("open", "ibv_open_device"))?;
        // SAFETY: plain numbers, for which zero is a value.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open device, and a place for its attributes.
        let known = unsafe { (library.ibv_query_device)(context.as_ptr(), &raw mut attr) } == 0;
        let has_windows = known
            && attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B != 0
            && ![0, RXE_VENDOR].contains(&attr.vendor_id);
        let (maker, failures) = (Maker::this(), Failures::default());
        let open = Self { library, maker, failures, has_windows, context };
        if open.port()?.link_layer == IBV_LINK_LAYER_INFINIBAND as u8 {
            let why =
                format!("the link layer of {name} is InfiniBand; this version connects by RoCEv2 addresses");
            return Err(Error::new(Kind::Unsupported, "open", why));
        }
        Ok(open)
    }

    pub(crate) const fn get(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// Its extended form, if its structure reaches as far as the member at `offset`.
    pub(crate) fn extended(&self, offset: usize) -> Option<&verbs_context> {
        // SAFETY: the library has initialised it.
        let is_extended = unsafe { (*self.get()).abi_compat } as usize == usize::MAX;
        if !is_extended {
            return None;
        }
        // SAFETY: by the mark, the context is the last member of an extended one.
        let whole =
            unsafe { &*self.get().byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>() };
        // Older libraries have fewer members, which lie at the end.
        (whole.sz >= size_of::<verbs_context>() - offset).then_some(whole)
    }

    fn port(&self) -> Result<ibv_port_attr, Error> {
        // SAFETY: plain numbers, for which zero is a value.
        let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
        let place = &raw mut attr;
        let extended = self.extended(offset_of!(verbs_context, query_port)).and_then(|it| it.query_port);
        // SAFETY: an open device, and a place for its attributes. The older function writes a shorter structure.
        let returned = unsafe {
            match extended {
                Some(query) => query(self.get(), PORT, place, size_of::<ibv_port_attr>()),
                None => (self.library.ibv_query_port)(self.get(), PORT, place),
            }
        };
        library::check("open", "ibv_query_port", returned)?;
        Ok(attr)
    }

    /// The GIDs of RoCEv2 with their places in the table.
    fn gids(&self) -> Result<Vec<(u8, [u8; 16])>, Error> {
        let len = usize::try_from(self.port()?.gid_tbl_len).unwrap_or(0).min(256);
        let Some(query) = self.library.gid_table else { return Ok(self.gids_one_by_one(len)) };
        let mut entries = vec![ibv_gid_entry::default(); len];
        // SAFETY: an open device, and a place for so many entries of this size.
        let found = unsafe { query(self.get(), entries.as_mut_ptr(), len, 0, size_of::<ibv_gid_entry>()) };
        let Ok(found) = usize::try_from(found) else {
            return Err(library::error("build", "ibv_query_gid_table", (-found) as c_int));
        };
        entries.truncate(found);
        let is_usable = |entry: &ibv_gid_entry| {
            entry.port_num == u32::from(PORT) && entry.gid_type == IBV_GID_TYPE_ROCE_V2 as u32
        };
        let place = |entry: &ibv_gid_entry| Some((u8::try_from(entry.gid_index).ok()?, entry.gid.bytes()));
        Ok(entries.iter().filter(|entry| is_usable(entry)).filter_map(place).collect())
    }

    /// For a library that can't list them: the kernel names the type of each.
    fn gids_one_by_one(&self, len: usize) -> Vec<(u8, [u8; 16])> {
        // SAFETY: a device stays while a context of it is open.
        let name = unsafe { CStr::from_ptr((self.library.ibv_get_device_name)((*self.get()).device)) };
        let types = format!("/sys/class/infiniband/{}/ports/{PORT}/gid_attrs/types", name.to_string_lossy());
        let is_v2 = |index: usize| {
            let text = std::fs::read_to_string(format!("{types}/{index}"));
            text.is_ok_and(|text| text.trim() == "RoCE v2")
        };
        let gid = |index: usize| {
            let mut gid = ibv_gid::default();
            // SAFETY: an open device, and a place for a GID.
            let returned =
                unsafe { (self.library.ibv_query_gid)(self.get(), PORT, index as c_int, &raw mut gid) };
            (returned == 0).then(|| gid.bytes())
        };
        (0..len).filter(|&index| is_v2(index)).filter_map(|index| Some((index as u8, gid(index)?))).collect()
    }
}

impl Drop for SystemContext {
    fn drop(&mut self) {
        if self.maker.is_here() {
            // SAFETY: open, without objects, and closed once.
            unsafe { (self.library.ibv_close_device)(self.get()) };
        }
    }
}

struct DomainInner {
    device: SystemDevice,
    pd: NonNull<ibv_pd>,
    context: Arc<SystemContext>,
}

// SAFETY: as `SystemContext`.
unsafe impl Send for DomainInner {}
// SAFETY: as `SystemContext`.
unsafe impl Sync for DomainInner {}

impl Drop for DomainInner {
    fn drop(&mut self) {
        if self.context.maker.is_here() {
            // SAFETY: what was made in it has a handle of it, so nothing is left.
            unsafe { (self.context.library.ibv_dealloc_pd)(self.pd.as_ptr()) };
        }
    }
}

/// A protection domain. Clones are handles of the same domain.
#[derive(Clone)]
pub struct SystemDomain(Arc<DomainInner>);

impl SystemDomain {
    pub(crate) fn pd(&self) -> *mut ibv_pd {
        self.0.pd.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<SystemContext> {
        &self.0.context
    }

    /// Whether both are handles of the same domain.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Bytes of payload in the largest packet.
    pub(crate) fn mtu(&self) -> Result<u32, Error> {
        // 1 is 256.
        Ok(128 << self.0.context.port()?.active_mtu.clamp(1, 5))
    }

    /// The address that peers reach the device at, and its place in the GID table: an IPv4 address if there is one, a link-local one
    /// only if there is no other.
    ///
    /// # Errors
    /// The device has no address of RoCEv2.
    pub(crate) fn gid(&self) -> Result<(u8, [u8; 16]), Error> {
        let rank = |gid: &[u8; 16]| match gid {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => 0,
            [0xfe, 0x80, ..] => 2,
            _ => 1,
        };
        let best = self.0.context.gids()?.into_iter().min_by_key(|(index, gid)| (rank(gid), *index));
        best.ok_or_else(|| {
            Error::new(Kind::NotFound, "build", format!("{} has no RoCEv2 address", self.0.device.name()))
        })
    }
}

impl fmt::Debug for SystemDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SystemDomain").field(&self.0.device).finish()
    }
}
