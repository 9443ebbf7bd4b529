//! Are there libraries and devices, and what are the devices worth?

use ferroce_netdev::{DeviceInfo, NetError, PortState, discover};

use super::diagnosis::Diagnosis;
use crate::install;

/// What scripts and examples ask for most.
const COMMON_PATH_MTU: u32 = 1024;

/// Looks at the installation and the devices; returns the latter for the other checks.
pub fn check(findings: &mut Vec<Diagnosis>) -> Vec<DeviceInfo> {
    findings.push(match install::library_directory() {
        Ok(directory) => {
            Diagnosis::ok("libraries", format!("Ferroce's libraries are in {}.", directory.display()))
        }
        Err(missing) => Diagnosis::error(
            "libraries",
            format!("`ferroce run` cannot start anything: {}.", missing.says),
            missing.fix,
        ),
    });
    let found = discover();
    judge(&found, findings);
    found.unwrap_or_default()
}

fn judge(found: &Result<Vec<DeviceInfo>, NetError>, findings: &mut Vec<Diagnosis>) {
    let devices = match found {
        Ok(devices) => devices,
        Err(error @ NetError::Netlink { .. }) => {
            findings.push(Diagnosis::error(
                "netlink",
                format!("The network interfaces cannot be read: {error}."),
                "allow AF_NETLINK sockets in the sandbox or seccomp profile that this runs in",
            ));
            return;
        }
        Err(error) => {
            findings.push(Diagnosis::error(
                "devices-setting",
                format!("{error}."),
                "correct FERROCE_DEVICES, or unset it",
            ));
            return;
        }
    };
    if devices.is_empty() {
        findings.push(Diagnosis::error(
            "no-device",
            "There is no device: no network interface, not even lo, is up and has an address.",
            "bring one up (`ip link set lo up` is enough for programs on one host)",
        ));
    }
    for device in devices {
        judge_device(device, findings);
    }
    if !devices.is_empty() && devices.iter().all(|device| device.netdev.is_loopback()) {
        findings.push(Diagnosis::warning(
            "loopback-only",
            "The only device is lo: programs on this host reach each other, other hosts can't be reached.",
        ));
    }
}

fn judge_device(device: &DeviceInfo, findings: &mut Vec<Diagnosis>) {
    let (netdev, port) = (&device.netdev, device.port());
    let gids = device.gid_table();
    let name = format!("{} (interface {})", device.name, netdev.name);
    if gids.iter().next().is_none() {
        findings.push(Diagnosis::error(
            "no-address",
            format!("{name} has no address, so no GID."),
            format!("give it one: `ip address add ADDRESS/PREFIX dev {}`", netdev.name),
        ));
        return;
    }
    if port.state == PortState::Down {
        findings.push(Diagnosis::error(
            "device-down",
            format!("{name} is down."),
            format!(
                "`ip link set {} up`, and check the cable or the virtual interface's other end",
                netdev.name
            ),
        ));
        return;
    }
    let mut addresses: Vec<String> = Vec::new();
    for (_, entry) in gids.iter() {
        let address = entry.address_name(&netdev.name);
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    findings.push(Diagnosis::ok(
        "device",
        format!("{name} is active with path MTU {} at {}.", port.active_mtu, addresses.join(", ")),
    ));
    if port.active_mtu < COMMON_PATH_MTU {
        findings.push(
            Diagnosis::warning("small-mtu", format!(
                "{name} has an MTU of only {}: programs that ask for a path MTU above {} fail towards other hosts.",
                netdev.mtu, port.active_mtu
            ))
            .with_fix(format!(
                "`ip link set {} mtu 1500` if the network supports it, or set the program's path MTU (`-m {}`)",
                netdev.name, port.active_mtu
            )),
        );
    }
    if port.link_layer.is_infiniband() {
        findings.extend(ferroce_netdev::why_no_lid(netdev).map(|why| {
            Diagnosis::warning("no-lid", format!("{why}."))
                .with_fix("have programs use a GRH, or give the interface another address")
        }));
    } else if gids.get(1).is_none() {
        findings.push(
            Diagnosis::warning(
                "no-ipv4",
                format!("{name} has no IPv4 address: GID index 1, which most scripts ask for, is empty."),
            )
            .with_fix("give the interface an IPv4 address, or use index 0"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Severity;
    use ferroce_netdev::{Address, Netdev};

    fn device(mtu: u32, addresses: &[&str]) -> DeviceInfo {
        let address =
            |text: &&str| Address { ip: text.parse().unwrap(), prefix_len: 24, scope: 0, flags: 0x80 };
        let netdev = Netdev {
            name: "eth0".into(),
            ifindex: 2,
            mtu,
            flags: (libc::IFF_UP | libc::IFF_RUNNING) as u32,
            operstate: 6,
            hardware: 1,
            mac: None,
            master: None,
            port_kind: None,
            kind: None,
            addresses: addresses.iter().map(address).collect(),
            speed_mbps: None,
        };
        DeviceInfo { name: "ferroce0".into(), netdev, node_guid: [1; 8] }
    }

    fn judged(found: &Result<Vec<DeviceInfo>, NetError>) -> Vec<Diagnosis> {
        let mut findings = Vec::new();
        judge(found, &mut findings);
        findings
    }

    #[test]
    fn no_device_would_stop_a_program() {
        let findings = judged(&Ok(Vec::new()));
        assert_eq!(findings[0].level, Severity::Error);
        let findings = judged(&Err(NetError::Twice { name: "eth0".into() }));
        assert_eq!(findings[0].level, Severity::Error);
        assert!(findings[0].message.contains("FERROCE_DEVICES: \"eth0\" is named twice"), "{findings:?}");
    }

    #[test]
    fn device_that_is_up_is_fine_and_names_each_address_once() {
        let findings = judged(&Ok(vec![device(1500, &["10.0.0.1"])]));
        assert_eq!(
            findings,
            [Diagnosis::ok("device", "ferroce0 (interface eth0) is active with path MTU 1024 at 10.0.0.1.")]
        );
    }

    #[test]
    fn small_mtu_and_missing_ipv4_are_notes() {
        let findings = judged(&Ok(vec![device(1000, &["fe80::1"])]));
        assert_eq!(findings[1].level, Severity::Warning);
        assert!(findings[1].message.contains("above 512"), "{findings:?}");
        assert!(findings[2].message.contains("GID index 1"), "{findings:?}");
    }

    #[test]
    fn named_device_that_is_down_or_has_no_address_would_stop_a_program() {
        let mut down = device(1500, &["10.0.0.1"]);
        down.netdev.flags = 0;
        assert!(judged(&Ok(vec![down]))[0].message.ends_with("is down."));
        assert!(judged(&Ok(vec![device(1500, &[])]))[0].message.contains("no address"));
    }
}
