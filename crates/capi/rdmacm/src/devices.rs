//! Devices, which stay open once they are: rdma_get_devices(3), and the default protection domain of each.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::offset_of;
use std::net::IpAddr;
use std::ptr::{self, null_mut};
use std::sync::{Arc, Weak};

use ferroce_abi::verbs::{IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS};
use ferroce_abi::verbs::{ibv_context, ibv_device, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr, verbs_context};
use ferroce_check as check;
use ferroce_entry::call::{Outcome, Refusal, last_errno};
use ferroce_entry::entry;
use ferroce_ibverbs::calls;
use ferroce_netdev::GidEntry;
use ferroce_nic::{self as nic, DeviceNews};
use ferroce_os::sync::{Mutex, class};

/// A device that was opened for ids.
struct OpenedDevice {
    device: *mut ibv_device,
    /// Of the open device. It is where the block begins that has been allocated: that of `ibv_context` is in the middle, and a block to
    /// whose beginning no pointer leads is "possibly lost" to valgrind.
    context: *mut verbs_context,
    /// The default domain, and how many ids have it.
    pd: *mut ibv_pd,
    pd_users: usize,
    /// The anonymous XRC domain.
    xrcd: *mut ibv_xrcd,
}

// SAFETY: pointers to objects of the library, which any thread may use.
unsafe impl Send for OpenedDevice {}

impl OpenedDevice {
    fn verbs(&self) -> *mut ibv_context {
        // SAFETY: only an address is computed, of a field of an open context.
        unsafe { &raw mut (*self.context).context }
    }
}

static OPENED: Mutex<class::CmDevices, Vec<OpenedDevice>> = Mutex::new(Vec::new());

/// An id that is bound to a device.
pub(crate) trait DeviceUser: Send + Sync {
    /// The device has changed.
    fn device_changed(self: Arc<Self>, news: &DeviceNews);
}

/// Users of devices, by their addresses.
type DeviceUsers = BTreeMap<usize, (SharedDevice, Weak<dyn DeviceUser>)>;

static ATTACHED: Mutex<class::CmAttached, DeviceUsers> = Mutex::new(BTreeMap::new());

/// An open device, for as long as the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SharedDevice {
    pub(crate) verbs: *mut ibv_context,
}

// SAFETY: a pointer to an object of the library, which any thread may use.
unsafe impl Send for SharedDevice {}
// SAFETY: as above.
unsafe impl Sync for SharedDevice {}

impl SharedDevice {
    /// The adapter's object.
    pub(crate) fn nic(self) -> &'static Arc<nic::Context> {
        // SAFETY: an open context, which is never closed.
        unsafe { calls::context_of(self.verbs) }.expect("an open context")
    }

    /// The node GUID as a number.
    pub(crate) fn guid(self) -> u64 {
        u64::from_be_bytes(self.nic().device().info().node_guid)
    }

    /// The GID of an address and its place in the table.
    pub(crate) fn gid_of(self, ip: IpAddr, scope_id: u32) -> Option<(usize, GidEntry)> {
        self.nic().gids().into_iter().find(|(_, entry)| is_at(entry, ip, scope_id))
    }

    /// Takes the default protection domain, which is made for its first user.
    pub(crate) fn take_pd(self) -> Outcome<*mut ibv_pd> {
        let mut opened = OPENED.lock();
        let found = opened.iter_mut().find(|opened| opened.verbs() == self.verbs).expect("an opened device");
        if found.pd.is_null() {
            // SAFETY: an open context.
            found.pd = made(unsafe { calls::ibv_alloc_pd(self.verbs) }, "the default protection domain")?;
            check::own(found.pd);
        }
        found.pd_users += 1;
        Ok(found.pd)
    }

    /// Reports changes of the device to `user` from now on.
    pub(crate) fn attach<T: DeviceUser + 'static>(self, user: &Arc<T>) {
        let weak: Weak<dyn DeviceUser> = Arc::downgrade(user) as _;
        ATTACHED.lock().insert(Arc::as_ptr(user).addr(), (self, weak));
    }

    /// Ends the reports to `user`.
    pub(crate) fn detach<T: DeviceUser>(user: &Arc<T>) {
        ATTACHED.lock().remove(&Arc::as_ptr(user).addr());
    }

    /// Reports a change of the device to its users.
    fn report(self, news: &DeviceNews) {
        let users: Vec<Arc<dyn DeviceUser>> = {
            let attached = ATTACHED.lock();
            let own = attached.values().filter(|(device, _)| *device == self);
            own.filter_map(|(_, user)| user.upgrade()).collect()
        };
        users.into_iter().for_each(|user| user.device_changed(news));
    }

    /// Gives it back; the last one frees it.
    pub(crate) fn give_pd(self) {
        let mut opened = OPENED.lock();
        let found = opened.iter_mut().find(|opened| opened.verbs() == self.verbs).expect("an opened device");
        found.pd_users -= 1;
        if found.pd_users == 0 {
            // SAFETY: made above. A program that has objects in it keeps it: the next id gets it then.
            if unsafe { calls::ibv_dealloc_pd(found.pd) } == 0 {
                found.pd = null_mut();
            }
        }
    }

    /// The XRC domain for queues and targets that name none.
    pub(crate) fn xrcd(self) -> Outcome<*mut ibv_xrcd> {
        let mut opened = OPENED.lock();
        let found = opened.iter_mut().find(|opened| opened.verbs() == self.verbs).expect("an opened device");
        if found.xrcd.is_null() {
            let mut attr = ibv_xrcd_init_attr {
                comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            // SAFETY: an open context and attributes.
            found.xrcd = made(unsafe { calls::open_xrcd(self.verbs, &raw mut attr) }, "an XRC domain")?;
            check::own(found.xrcd);
        }
        Ok(found.xrcd)
    }
}

/// The object that a verbs call returned, or its errno, which the call has logged.
pub(crate) fn made<T>(object: *mut T, what: &str) -> Outcome<*mut T> {
    if object.is_null() {
        return Err(Refusal::new(last_errno(), format!("{what} can't be made")));
    }
    Ok(object)
}

/// Whether `entry` is the GID of an address. `scope_id` 0: that of any interface.
fn is_at(entry: &GidEntry, ip: IpAddr, scope_id: u32) -> bool {
    entry.ip == ip.to_canonical() && (scope_id == 0 || entry.scope_id == 0 || entry.scope_id == scope_id)
}

/// The device that was made of a network interface, opened.
fn open(device: Arc<nic::Device>) -> Outcome<SharedDevice> {
    let mut opened = OPENED.lock();
    let pointer = calls::device_pointer(device);
    if let Some(found) = opened.iter().find(|opened| opened.device == pointer) {
        return Ok(SharedDevice { verbs: found.verbs() });
    }
    // SAFETY: a device of the list.
    let verbs = made(unsafe { calls::ibv_open_device(pointer) }, "a device context").map_err(usable)?;
    let device = SharedDevice { verbs };
    device.nic().listen(move |news| device.report(news));
    // SAFETY: an open context is this field of a `verbs_context`.
    let context = unsafe { verbs.byte_sub(offset_of!(verbs_context, context)) }.cast::<verbs_context>();
    opened.push(OpenedDevice { device: pointer, context, pd: null_mut(), pd_users: 0, xrcd: null_mut() });
    Ok(device)
}

/// ENODEV for a device whose UDP port another program has: to programs of librdmacm, EADDRINUSE is a port of theirs.
fn usable(refusal: Refusal) -> Refusal {
    match refusal.errno {
        libc::EADDRINUSE => Refusal::new(libc::ENODEV, refusal.why),
        _ => refusal,
    }
}

fn listed() -> Outcome<Vec<Arc<nic::Device>>> {
    Ok(nic::devices()?)
}

/// ENODEV where there is no device: the programs of librdmacm know that errno.
pub(crate) fn need_one() -> Outcome<()> {
    if listed()?.is_empty() {
        return Err(Refusal::new(
            libc::ENODEV,
            "there is no network interface that could be a device; `ferroce doctor` prints the reason",
        ));
    }
    Ok(())
}

/// The device that has an address, opened.
///
/// # Errors
/// What kept it from being opened.
pub(crate) fn with_address(ip: IpAddr, scope_id: u32) -> Outcome<Option<SharedDevice>> {
    // Other processes, which may be stopped, know the indices of the GIDs. The addresses are the interface's.
    let has = |device: &Arc<nic::Device>| {
        device.info().gid_table().iter().any(|(_, entry)| is_at(entry, ip, scope_id))
    };
    listed()?.into_iter().find(has).map(open).transpose()
}

/// The first device that can be used, with an address of it: of the family of `like` if it has one.
pub(crate) fn first_usable(like: IpAddr) -> Outcome<Option<(SharedDevice, GidEntry)>> {
    for device in all()? {
        let gids = device.nic().gids();
        let of_family =
            gids.iter().find(|(_, entry)| entry.ip.is_ipv4() == like.is_ipv4() && entry.scope_id == 0);
        if let Some((_, entry)) = of_family.or_else(|| gids.first()) {
            return Ok(Some((device, *entry)));
        }
    }
    Ok(None)
}

/// All devices, opened. One that can't be opened is left out, unless that is so for all.
pub(crate) fn all() -> Outcome<Vec<SharedDevice>> {
    let (mut found, mut refusal) = (Vec::new(), None);
    for device in listed()? {
        match open(device) {
            Ok(device) => found.push(device),
            Err(why) => refusal = Some(why),
        }
    }
    match refusal {
        Some(refusal) if found.is_empty() => Err(refusal),
        _ => Ok(found),
    }
}

entry! {
    fn rdma_get_devices(num_devices: *mut c_int) -> pointer *mut ibv_context, {
        if !num_devices.is_null() {
            // SAFETY: not null, and by the man page the caller's own variable.
            unsafe { *num_devices = 0 };
        }
        need_one()?;
        let mut list: Vec<*mut ibv_context> = all()?.into_iter().map(|device| device.verbs).collect();
        if !num_devices.is_null() {
            // SAFETY: as above.
            unsafe { *num_devices = list.len() as c_int };
        }
        list.push(null_mut());
        // SAFETY: calloc has no precondition.
        let array: *mut *mut ibv_context = unsafe { libc::calloc(list.len(), size_of::<*mut ibv_context>()) }.cast();
        if array.is_null() {
            return Err(Refusal::new(libc::ENOMEM, "no memory for the list of devices"));
        }
        // SAFETY: `array` has room for `list.len()` pointers and was just made.
        unsafe { ptr::copy_nonoverlapping(list.as_ptr(), array, list.len()) };
        Ok(array)
    }
}

entry! {
    fn rdma_free_devices(list: *mut *mut ibv_context) -> value () = (), {
        // SAFETY: null, or made by `rdma_get_devices` with calloc; the caller gives it up.
        unsafe { libc::free(list.cast()) };
    }
}
