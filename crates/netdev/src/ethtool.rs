//! The speed of an interface, by the ethtool ioctl: sysfs may show another network namespace, the ioctl can't.

use ferroce_os::sys;

/// `ETHTOOL_GLINKSETTINGS` (linux/ethtool.h).
const GET_LINK_SETTINGS: u32 = 0x4c;
/// `SPEED_UNKNOWN`.
const SPEED_UNKNOWN: u32 = u32::MAX;
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

/// Mbit/s, or `None` where the driver doesn't say (most virtual interfaces, links that are down).
pub(super) fn speed_mbps(interface: &str) -> Option<u32> {
    let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM).ok()?;
    // SAFETY: LinkSettings consists of integers, for which all zeros is a value.
    let mut settings: LinkSettings = unsafe { std::mem::zeroed() };
    // The first call tells how long the masks are (as a negative number), the second the settings.
    for _ in 0..2 {
        settings.command = GET_LINK_SETTINGS;
        settings.mask_words = settings.mask_words.saturating_neg();
        // SAFETY: ifreq consists of integers and a union of plain data, for which all zeros is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if interface.len() >= request.ifr_name.len() {
            return None;
        }
        for (to, &from) in request.ifr_name.iter_mut().zip(interface.as_bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut settings).cast();
        // SAFETY: `request` and the settings it points to live across the call; the kernel writes at most the
        // settings and three masks of the length announced, which `masks` holds even at its maximum.
        if unsafe { libc::ioctl(socket.raw(), libc::SIOCETHTOOL, &raw mut request) } < 0 {
            return None;
        }
        if settings.mask_words >= 0 {
            return Some(settings.speed).filter(|&speed| speed != 0 && speed != SPEED_UNKNOWN);
        }
    }
    None
}
