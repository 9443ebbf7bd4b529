//! The speed of an interface, by the ethtool ioctl: sysfs may show another network namespace, the ioctl can't.

use ferroce_os::sys;

/// `SPEED_UNKNOWN`.
const SPEED_UNKNOWN: u32 = u32::MAX;

/// Mbit/s, or `None` where the driver reports no speed (most virtual interfaces, links that are down).
pub(super) fn speed_mbps(interface: &str) -> Option<u32> {
    let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM).ok()?;
    let speed = sys::interface_speed(socket.raw(), interface).ok()?;
    Some(speed).filter(|&speed| speed != 0 && speed != SPEED_UNKNOWN)
}
