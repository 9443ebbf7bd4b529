//! GUIDs of devices: from the MAC address where there is one, else from what identifies the host.

use super::interface::Netdev;

/// Identifies this host: the machine ID and the host name (containers often share the machine ID).
pub(super) struct HostIdentity {
    bytes: Vec<u8>,
}

impl HostIdentity {
    pub(super) fn of_this_host() -> Self {
        let mut bytes = Vec::new();
        for file in ["/etc/machine-id", "/proc/sys/kernel/hostname"] {
            bytes.extend(std::fs::read(file).unwrap_or_default());
            bytes.push(0);
        }
        Self { bytes }
    }
}

/// The node GUID of the device on `netdev`, in network order: never zero, and none of those `taken` (interfaces
/// such as VLANs share their parent's MAC).
pub(super) fn node_guid(netdev: &Netdev, identity: &HostIdentity, taken: &[[u8; 8]]) -> [u8; 8] {
    let from_mac = netdev.mac.map(eui64).filter(|guid| !taken.contains(guid));
    from_mac.unwrap_or_else(|| {
        let hashed = |salt| derived(netdev, identity, salt);
        (0u8..=u8::MAX).map(hashed).find(|guid| !taken.contains(guid)).unwrap_or_else(|| hashed(0))
    })
}

/// Modified EUI-64 (RFC 4291, appendix A), as kernel RoCE devices use it.
fn eui64(mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// A GUID with the "locally administered" bit inverted as EUI-64 demands, so that no manufacturer's can equal it.
/// FNV-1a: the same on every build and machine, unlike the standard library's hashes.
fn derived(netdev: &Netdev, identity: &HostIdentity, salt: u8) -> [u8; 8] {
    let parts =
        [b"ferroce", &identity.bytes[..], netdev.name.as_bytes(), &netdev.mac.unwrap_or_default(), &[salt]];
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.concat() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let mut guid = hash.to_be_bytes();
    // Not universal (bit 1), not a group (bit 0); the third and fourth byte aren't those of a MAC.
    guid[0] &= !3;
    guid[3] = 0;
    guid[4] = 1;
    guid
}

#[cfg(test)]
mod tests {
    use super::super::interface::tests::netdev;
    use super::*;

    #[test]
    fn mac_gives_the_modified_eui64() {
        let mut eth0 = netdev("eth0", 2, &[]);
        eth0.mac = Some([0x52, 0x54, 0x00, 0x12, 0x34, 0x56]);
        let host = HostIdentity { bytes: b"a".to_vec() };
        assert_eq!(node_guid(&eth0, &host, &[]), [0x50, 0x54, 0x00, 0xff, 0xfe, 0x12, 0x34, 0x56]);
    }

    #[test]
    fn guid_without_mac_depends_on_host_and_interface_only() {
        let (one, two) = (HostIdentity { bytes: b"one".to_vec() }, HostIdentity { bytes: b"two".to_vec() });
        let lo = netdev("lo", 1, &[]);
        assert_eq!(node_guid(&lo, &one, &[]), node_guid(&lo, &one, &[]));
        assert_ne!(node_guid(&lo, &one, &[]), node_guid(&lo, &two, &[]));
        assert_ne!(node_guid(&lo, &HostIdentity { bytes: Vec::new() }, &[]), [0; 8]);
    }

    #[test]
    fn shared_mac_still_gives_different_guids() {
        let (mut eth0, mut vlan) = (netdev("eth0", 2, &[]), netdev("eth0.7", 3, &[]));
        (eth0.mac, vlan.mac) = (Some([2, 0, 0, 0, 0, 1]), Some([2, 0, 0, 0, 0, 1]));
        let host = HostIdentity { bytes: Vec::new() };
        let first = node_guid(&eth0, &host, &[]);
        let second = node_guid(&vlan, &host, &[first]);
        let third = node_guid(&vlan, &host, &[first, second]);
        assert!(first != second && second != third && first != third);
    }
}
