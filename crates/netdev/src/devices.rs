//! Which interfaces are devices, and under which names.

use super::guid::{HostIdentity, node_guid};
use super::interface::{Netdev, default_route_interface, interfaces_over};
use super::netlink::Netlink;
use super::{GidTable, NetError, PortAttributes};

/// The environment variable that names the devices: `mlx5_0=eth0,mlx5_1=eth1`.
pub const DEVICES_VARIABLE: &str = "FERROCE_DEVICES";
/// IBV_SYSFS_NAME_MAX is 64 with the terminator.
const LONGEST_NAME: usize = 63;

/// An organisationally unique identifier of locally administered kind: programs take 0 and 0xffffff for rxe.
pub const VENDOR_ID: u32 = 0x02_f0ce;
/// The version of the adapter.
pub const VENDOR_PART_ID: u32 = 1;
/// A device: a name and the network interface behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// What ibv_get_device_name(3) returns.
    pub name: String,
    /// The interface, as it was when the devices were listed.
    pub netdev: Netdev,
    /// Node GUID and system image GUID, in network order; no two devices of a list share it.
    pub node_guid: [u8; 8],
}

impl DeviceInfo {
    /// Attributes of the device's one port.
    #[must_use]
    pub fn port(&self) -> PortAttributes {
        PortAttributes::of(&self.netdev)
    }

    /// A new GID table from the interface's addresses. The host's processes use one that has a history.
    #[must_use]
    pub fn gid_table(&self) -> GidTable {
        GidTable::new(&self.netdev)
    }
}

/// The devices of this network namespace, as `FERROCE_DEVICES` names them, or else every usable interface:
/// `ferroce0` is that of the default route, the others follow by index, `lo` is one only when nothing else is.
///
/// The list may be empty.
///
/// # Errors
/// See [`NetError`].
pub fn discover() -> Result<Vec<DeviceInfo>, NetError> {
    let names = ferroce_os::setting(DEVICES_VARIABLE).map(|names| names.to_string_lossy().into_owned());
    discover_as(names.as_deref())
}

/// As [`discover`], with the value of `FERROCE_DEVICES` given. `None` and an empty string leave the choice to
/// the rules.
///
/// # Errors
/// See [`NetError`].
pub fn discover_as(names: Option<&str>) -> Result<Vec<DeviceInfo>, NetError> {
    let names = parse_names(names.unwrap_or_default())?;
    let mut socket = Netlink::open(0).map_err(NetError::asking("for a netlink socket"))?;
    let interfaces = interfaces_over(&mut socket)?;
    let chosen = if names.is_empty() {
        let default_route = default_route_interface(&mut socket)?;
        choose(interfaces, default_route)
    } else {
        pick(interfaces, names)?
    };
    let identity = HostIdentity::of_this_host();
    let mut devices: Vec<DeviceInfo> = Vec::with_capacity(chosen.len());
    for (name, mut netdev) in chosen {
        netdev.read_speed();
        let taken: Vec<_> = devices.iter().map(|device| device.node_guid).collect();
        let node_guid = node_guid(&netdev, &identity, &taken);
        devices.push(DeviceInfo { name, netdev, node_guid });
    }
    Ok(devices)
}

/// The entries of `FERROCE_DEVICES` in their order.
fn parse_names(names: &str) -> Result<Vec<(String, String)>, NetError> {
    let mut entries: Vec<(String, String)> = Vec::new();
    if names.trim().is_empty() {
        return Ok(entries);
    }
    for entry in names.split(',') {
        let wrong = |problem| NetError::Syntax { entry: entry.to_owned(), problem };
        let (device, interface) = entry.split_once('=').ok_or_else(|| wrong("has no \"=\""))?;
        let (device, interface) = (device.trim(), interface.trim());
        if device.is_empty() {
            return Err(wrong("has no device name"));
        }
        if interface.is_empty() {
            return Err(wrong("has no interface"));
        }
        if device.len() > LONGEST_NAME {
            return Err(wrong("has a device name of more than 63 characters"));
        }
        // The name becomes a directory entry in /sys and /dev.
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if !device.chars().all(allowed) || device.starts_with('.') {
            return Err(wrong(
                "has a device name with other characters than letters, digits, \"_\", \"-\" and \".\"",
            ));
        }
        for (known, of) in &entries {
            let twice = [(known, device), (of, interface)].into_iter().find(|(a, b)| a == b);
            if let Some((name, _)) = twice {
                return Err(NetError::Twice { name: name.clone() });
            }
        }
        entries.push((device.to_owned(), interface.to_owned()));
    }
    Ok(entries)
}

/// Exactly the interfaces named, whatever their state.
fn pick(interfaces: Vec<Netdev>, names: Vec<(String, String)>) -> Result<Vec<(String, Netdev)>, NetError> {
    names
        .into_iter()
        .map(|(device, interface)| match interfaces.iter().find(|netdev| netdev.name == interface) {
            Some(netdev) => Ok((device, netdev.clone())),
            None => {
                let known: Vec<_> = interfaces.iter().map(|netdev| netdev.name.as_str()).collect();
                Err(NetError::UnknownInterface { device, interface, known: known.join(", ") })
            }
        })
        .collect()
}

/// The interfaces that are devices by themselves, in their order.
fn choose(interfaces: Vec<Netdev>, default_route: Option<u32>) -> Vec<(String, Netdev)> {
    let (loopback, mut others): (Vec<_>, Vec<_>) =
        interfaces.into_iter().filter(is_usable).partition(Netdev::is_loopback);
    others.sort_by_key(|netdev| (Some(netdev.ifindex) != default_route, netdev.ifindex));
    let chosen = if others.is_empty() { loopback } else { others };
    chosen.into_iter().enumerate().map(|(index, netdev)| (format!("ferroce{index}"), netdev)).collect()
}

fn is_usable(netdev: &Netdev) -> bool {
    netdev.is_up() && !netdev.is_port() && netdev.usable_addresses().next().is_some()
}

#[cfg(test)]
mod tests {
    use super::super::interface::tests::netdev;
    use super::*;

    fn names(chosen: &[(String, Netdev)]) -> Vec<String> {
        chosen.iter().map(|(name, netdev)| format!("{name}={}", netdev.name)).collect()
    }

    #[test]
    fn default_route_comes_first_then_the_others_by_index() {
        let interfaces = vec![
            netdev("lo", 1, &["127.0.0.1", "::1"]),
            netdev("eth0", 2, &["10.0.0.1"]),
            netdev("eth1", 3, &["10.0.1.1"]),
            netdev("eth2", 4, &["fe80::1"]),
        ];
        assert_eq!(
            names(&choose(interfaces.clone(), Some(3))),
            ["ferroce0=eth1", "ferroce1=eth0", "ferroce2=eth2"]
        );
        assert_eq!(names(&choose(interfaces, None)), ["ferroce0=eth0", "ferroce1=eth1", "ferroce2=eth2"]);
    }

    #[test]
    fn ports_and_down_and_addressless_interfaces_are_left_out() {
        let mut port = netdev("veth0", 3, &["fe80::3"]);
        (port.master, port.port_kind) = (Some(9), Some("bridge".into()));
        let mut in_vrf = netdev("eth5", 5, &["10.0.5.1"]);
        (in_vrf.master, in_vrf.port_kind) = (Some(8), Some("vrf".into()));
        let mut down = netdev("eth1", 4, &["10.0.1.1"]);
        down.flags = 0;
        let mut no_carrier = netdev("docker0", 6, &["172.17.0.1"]);
        no_carrier.operstate = libc::IF_OPER_DOWN as u8;
        let mut tentative = netdev("eth7", 7, &["fe80::7"]);
        tentative.addresses[0].flags = libc::IFA_F_TENTATIVE;
        let bridge = netdev("br0", 9, &["10.0.2.1"]);
        let interfaces = vec![netdev("eth0", 2, &[]), port, down, in_vrf, no_carrier, tentative, bridge];
        assert_eq!(names(&choose(interfaces, None)), ["ferroce0=eth5", "ferroce1=br0"]);
    }

    #[test]
    fn loopback_is_a_device_only_when_nothing_else_is() {
        let lo = netdev("lo", 1, &["127.0.0.1", "::1"]);
        assert_eq!(names(&choose(vec![lo.clone()], None)), ["ferroce0=lo"]);
        assert_eq!(
            names(&choose(vec![lo.clone(), netdev("eth0", 2, &["10.0.0.1"])], None)),
            ["ferroce0=eth0"]
        );
        assert_eq!(names(&choose(vec![lo, netdev("eth0", 2, &[])], None)), ["ferroce0=lo"]);
    }

    #[test]
    fn named_devices_are_shown_exactly_and_in_their_order() {
        let interfaces =
            vec![netdev("lo", 1, &["127.0.0.1"]), netdev("eth0", 2, &[]), netdev("eth1", 3, &[])];
        let chosen = pick(interfaces, parse_names("mlx5_0=eth1, mlx5_1=lo").unwrap()).unwrap();
        assert_eq!(names(&chosen), ["mlx5_0=eth1", "mlx5_1=lo"]);
    }

    #[test]
    fn bad_names_are_errors_that_say_what_is_wrong() {
        let long = format!("{}=eth0", "x".repeat(64));
        for (text, says) in [
            ("eth0", "\"eth0\" has no \"=\""),
            ("a=eth0,", "\"\" has no \"=\""),
            ("=eth0", "has no device name"),
            ("a=", "has no interface"),
            ("../x=eth0", "other characters"),
            ("..=eth0", "other characters"),
            (long.as_str(), "more than 63"),
            ("a=eth0,a=eth1", "\"a\" is named twice"),
            ("a=eth0,b=eth0", "\"eth0\" is named twice"),
        ] {
            let error = parse_names(text).expect_err(text).to_string();
            assert!(error.starts_with("FERROCE_DEVICES: "), "{error}");
            assert!(error.contains(says), "{text}: {error}");
        }
        let error = pick(vec![netdev("lo", 1, &[])], vec![("a".into(), "eth9".into())]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "FERROCE_DEVICES: there is no network interface \"eth9\" for \"a\" (there is: lo)"
        );
    }

    #[test]
    fn empty_variable_leaves_the_choice_to_the_rules() {
        assert_eq!(parse_names("").unwrap(), []);
        assert_eq!(parse_names("  ").unwrap(), []);
    }
}
