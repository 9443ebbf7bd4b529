//! What a device, its port and its tables are.

mod device;
mod gid;
mod port;

pub(crate) use device::{query_device_ex, query_rt_values};
pub(crate) use port::query_port_sized;

use std::ptr;

use libc::size_t;

use ferroce_entry::call::{Outcome, Refusal};

/// Writes as much of `value` as the caller has room for, and zeros behind it.
///
/// # Safety
/// `to` is valid for `room` bytes. `T` is plain data.
unsafe fn write_prefix<T: Copy>(to: *mut u8, value: &T, room: size_t) {
    let n = room.min(size_of::<T>());
    // SAFETY: `n` bytes are within both, and the rest within `room`.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to, n);
        ptr::write_bytes(to.add(n), 0, room - n);
    }
}

fn check_port(port_num: u32) -> Outcome<()> {
    match port_num {
        1 => Ok(()),
        other => Err(Refusal::invalid(format!("port {other}: the device has port 1"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_structure_is_written_to_its_end_and_no_further() {
        let mut room = [0xaau8; 8];
        // SAFETY: five of eight bytes.
        unsafe { write_prefix(room.as_mut_ptr(), &0x0807_0605_0403_0201u64.to_le(), 5) };
        assert_eq!(room, [1, 2, 3, 4, 5, 0xaa, 0xaa, 0xaa]);
    }

    #[test]
    fn a_longer_structure_ends_in_zeros() {
        let mut room = [0xaau8; 8];
        // SAFETY: eight bytes.
        unsafe { write_prefix(room.as_mut_ptr(), &0x0201u16.to_le(), 8) };
        assert_eq!(room, [1, 2, 0, 0, 0, 0, 0, 0]);
    }
}
