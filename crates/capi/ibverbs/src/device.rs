//! The list of devices: ibv_get_device_list(3).

use std::ptr;

use libc::c_int;

use crate::call::entry;
use crate::log;

entry! {
    fn ibv_get_device_list(num_devices: *mut c_int) -> pointer *mut u8, {
        log::start();
        let list: Box<[*mut u8; 1]> = Box::new([ptr::null_mut()]);
        if !num_devices.is_null() {
            // SAFETY: not null, and by the man page the caller's own variable.
            unsafe { *num_devices = 0 };
        }
        Ok(Box::into_raw(list).cast())
    }
}

entry! {
    fn ibv_free_device_list(list: *mut *mut u8) -> value () = (), {
        if !list.is_null() {
            // SAFETY: made by `ibv_get_device_list`, which the caller may give back once.
            drop(unsafe { Box::from_raw(list.cast::<[*mut u8; 1]>()) });
        }
    }
}
