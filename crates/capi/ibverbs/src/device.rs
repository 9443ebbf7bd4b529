//! The list of devices and what can be known without opening one: ibv_get_device_list(3), ibv_get_device_name(3),
//! ibv_get_device_guid(3), ibv_get_device_index(3).

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;

use ferroce_nic as nic;
use ferroce_os::sync::{Mutex, class};

use ferroce_abi::verbs::{_ibv_device_ops, IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device};
use ferroce_entry::call::{Outcome, Refusal, at, entry};
use ferroce_entry::log;

/// A device as programs hold it. Once listed it stays: the same device has the same address in every list, and a
/// pointer that outlives its list leads to valid memory.
#[repr(C)]
pub(crate) struct DeviceBlock {
    c: ibv_device,
    /// Distribution builds of libmlx5 and libefa check here whether a device is one of theirs: with 48 zero bytes behind an
    /// `ibv_device` it isn't.
    foreign: [u64; 8],
    /// As it was when it was last listed.
    nic: Mutex<class::DeviceView, Arc<nic::Device>>,
}

const _: () = assert!(offset_of!(DeviceBlock, foreign) == 664 && offset_of!(DeviceBlock, nic) >= 712);

/// A device's address; the block is never freed.
struct Listed(*mut DeviceBlock);

// SAFETY: the block behind it is never freed or moved, and what changes in it is behind a mutex.
unsafe impl Send for Listed {}

static KNOWN: Mutex<class::KnownDevices, Vec<Listed>> = Mutex::new(Vec::new());

/// Copies a name into a C array, cut to leave room for the terminator.
fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, from) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    array
}

impl DeviceBlock {
    fn new(device: Arc<nic::Device>) -> Self {
        let name = &device.info().name;
        let uverbs = format!("uverbs{}", device.index());
        Self {
            c: ibv_device {
                _ops: _ibv_device_ops { _dummy1: None, _dummy2: None },
                node_type: IBV_NODE_CA,
                transport_type: IBV_TRANSPORT_IB,
                name: c_text(name),
                dev_name: c_text(&uverbs),
                dev_path: c_text(&format!("/sys/class/infiniband_verbs/{uverbs}")),
                ibdev_path: c_text(&format!("/sys/class/infiniband/{name}")),
            },
            foreign: [0; 8],
            nic: Mutex::new(device),
        }
    }

    /// The block behind a program's pointer.
    ///
    /// # Safety
    /// `device` is null or came from a list of ours.
    pub(crate) unsafe fn of<'a>(device: *mut ibv_device) -> Outcome<&'a Self> {
        // SAFETY: `ibv_device` is the head of every block, and blocks are never freed.
        unsafe { at(device.cast::<Self>(), "device") }
    }

    pub(crate) fn nic(&self) -> Arc<nic::Device> {
        self.nic.lock().clone()
    }
}

/// The address of `device`: that of an earlier listing, or a new one.
fn address_of(device: Arc<nic::Device>, known: &mut Vec<Listed>) -> *mut ibv_device {
    for Listed(block) in known.iter() {
        // SAFETY: blocks in the list are never freed.
        let block_ref = unsafe { &**block };
        let mut nic = block_ref.nic.lock();
        let same = |a: &nic::Device, b: &nic::Device| {
            (&a.info().name, a.info().netdev.ifindex, a.index())
                == (&b.info().name, b.info().netdev.ifindex, b.index())
        };
        if same(&nic, &device) {
            *nic = device;
            return block.cast();
        }
    }
    let block = Box::into_raw(Box::new(DeviceBlock::new(device)));
    known.push(Listed(block));
    block.cast()
}

/// The device as programs hold it, whether it was listed before or not.
pub(crate) fn listed(device: Arc<nic::Device>) -> *mut ibv_device {
    address_of(device, &mut KNOWN.lock())
}

entry! {
    pub fn ibv_get_device_list(num_devices: *mut c_int) -> pointer *mut ibv_device, {
        log::start();
        let devices = nic::devices()?;
        let mut known = KNOWN.lock();
        let mut list: Vec<*mut ibv_device> =
            devices.into_iter().map(|device| address_of(device, &mut known)).collect();
        if !num_devices.is_null() {
            // SAFETY: not null, and by the man page the caller's own variable.
            unsafe { *num_devices = list.len() as c_int };
        }
        list.push(ptr::null_mut());
        // C arrays don't know their length, so this one is made and freed as C does.
        // SAFETY: calloc has no precondition.
        let array: *mut *mut ibv_device = unsafe { libc::calloc(list.len(), size_of::<*mut ibv_device>()) }.cast();
        if array.is_null() {
            return Err(Refusal::new(libc::ENOMEM, "no memory for the list of devices"));
        }
        // SAFETY: `array` has room for `list.len()` pointers and was just made.
        unsafe { ptr::copy_nonoverlapping(list.as_ptr(), array, list.len()) };
        Ok(array)
    }
}

entry! {
    pub fn ibv_free_device_list(list: *mut *mut ibv_device) -> value () = (), {
        // SAFETY: null, or made by `ibv_get_device_list` with calloc; the caller gives it up.
        unsafe { libc::free(list.cast()) };
    }
}

entry! {
    fn ibv_get_device_name(device: *mut ibv_device) -> pointer c_char, {
        // SAFETY: by the man page a device from a list.
        let block = unsafe { DeviceBlock::of(device) }?;
        Ok(block.c.name.as_ptr().cast_mut())
    }
}

entry! {
    fn ibv_get_device_guid(device: *mut ibv_device) -> value u64 = 0, {
        // SAFETY: by the man page a device from a list.
        unsafe { DeviceBlock::of(device) }.map_or(0, |block| u64::from_ne_bytes(block.nic().info().node_guid))
    }
}

entry! {
    // The kernel has given our devices no index. A program with an index would ask the kernel about it: UCX does, by RDMA netlink, and
    // would get an error, or another device.
    fn ibv_get_device_index(_device: *mut ibv_device) -> value c_int = -1, { -1 }
}
