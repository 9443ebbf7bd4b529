//! An interface's attributes from the kernel, by ioctl(2) on any socket (netdevice(7)).

use super::check;
use std::io;
use std::os::fd::RawFd;

/// `ETHTOOL_GLINKSETTINGS` (linux/ethtool.h).
const GET_LINK_SETTINGS: u32 = 0x4c;
/// Words of a link mode mask: 127 at most, three masks follow the settings.
const MASK_WORDS: usize = 3 * 127;

/// `struct ethtool_link_settings`, as far as it is read here, and room for the masks.
#[repr(C)]
struct LinkSettings {
    command: u32,
    speed: u32,
    duplex: u8,
    port: u8,
    phy_address: u8,
    autoneg: u8,
    mdio_support: u8,
    tp_mdix: u8,
    tp_mdix_control: u8,
    mask_words: i8,
    transceiver: u8,
    reserved1: [u8; 3],
    reserved: [u32; 7],
    masks: [u32; MASK_WORDS],
}

/// The MTU of an interface.
///
/// # Errors
/// That of `ioctl(2)`.
pub fn interface_mtu(fd: RawFd, ifindex: u32) -> io::Result<u32> {
    // SAFETY: numbers only.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = ifindex as i32;
    for ask in [libc::SIOCGIFNAME, libc::SIOCGIFMTU] {
        // SAFETY: the kernel reads and writes a `struct ifreq`.
        check(unsafe { libc::syscall(libc::SYS_ioctl, fd, ask, &raw mut request) })?;
    }
    // SAFETY: SIOCGIFMTU sets this member.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).map_err(|_| io::Error::from_raw_os_error(libc::EIO))
}

/// The speed of an interface in Mbit/s as its driver reports it: 0 or all ones if the driver doesn't know it.
///
/// # Errors
/// That of `ioctl(2)`; ENAMETOOLONG for a name that no interface can have, EPROTO if the kernel doesn't return the length of the
/// masks.
pub fn interface_speed(fd: RawFd, interface: &str) -> io::Result<u32> {
    // SAFETY: LinkSettings consists of integers, for which all zeros is a value.
    let mut settings: LinkSettings = unsafe { std::mem::zeroed() };
    // The first call returns the length of the masks (as a negative number), the second the settings.
    for _ in 0..2 {
        settings.command = GET_LINK_SETTINGS;
        settings.mask_words = settings.mask_words.saturating_neg();
        // SAFETY: ifreq consists of integers and a union of plain data, for which all zeros is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if interface.len() >= request.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (to, &from) in request.ifr_name.iter_mut().zip(interface.as_bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut settings).cast();
        // SAFETY: `request` and the settings it points to live across the call; the kernel writes at most the
        // settings and three masks of the length announced, which `masks` holds even at its maximum.
        check(unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::SIOCETHTOOL, &raw mut request) })?;
        if settings.mask_words >= 0 {
            return Ok(settings.speed);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EPROTO))
}
