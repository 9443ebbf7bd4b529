//! `ferroce devices`: the devices that programs see here.

use std::net::IpAddr;
use std::process::ExitCode;

use ferroce_netdev::{DeviceInfo, LinkLayer, PortAttributes, PortState, discover};
use serde_json::{Value, json};

use crate::table::aligned;

/// Prints the devices. A wrong FERROCE_DEVICES is exit status 1.
pub fn devices(as_json: bool) -> ExitCode {
    let devices = match discover() {
        Ok(devices) => devices,
        Err(error) => {
            eprintln!("ferroce devices: {error}");
            return ExitCode::FAILURE;
        }
    };
    if as_json {
        println!("{:#}", Value::from(devices.iter().map(to_json).collect::<Vec<_>>()));
    } else if devices.is_empty() {
        eprintln!(
            "ferroce devices: no network interface here is up and has an address (see `ferroce doctor`)"
        );
    } else {
        print!("{}", table(&devices));
    }
    ExitCode::SUCCESS
}

/// `active` or `down`, as programs see the port.
pub fn state_name(device: &DeviceInfo) -> &'static str {
    match device.port().state {
        PortState::Active => "active",
        PortState::Down => "down",
    }
}

/// The way sysfs and the RDMA tools write a GID.
fn gid_text(gid: [u8; 16]) -> String {
    let groups: Vec<_> = gid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}

/// The same for GUIDs.
pub fn guid_text(guid: [u8; 8]) -> String {
    let groups: Vec<_> = guid.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}

/// The port's state, and its LID where there are LIDs.
fn state(device: &DeviceInfo, port: &PortAttributes) -> String {
    let state = state_name(device);
    match (port.link_layer, port.lid()) {
        (LinkLayer::Ethernet, _) => state.to_owned(),
        (LinkLayer::InfiniBand, 0) => format!("{state}, no LID"),
        (LinkLayer::InfiniBand, lid) => format!("{state}, LID {lid}"),
    }
}

fn table(devices: &[DeviceInfo]) -> String {
    let mut rows = vec![["DEVICE", "INTERFACE", "STATE", "MTU", "GID", "", "ADDRESS"].map(str::to_owned)];
    for device in devices {
        let port = device.port();
        let mut first = [
            device.name.clone(),
            device.netdev.name.clone(),
            state(device, &port),
            format!("{} of {}", port.active_mtu, device.netdev.mtu),
        ];
        let gids = ferroce_nic::gid_table(device);
        for (index, entry) in gids.iter() {
            let [name, interface, state, mtu] = std::mem::take(&mut first);
            let address = entry.address_name(&device.netdev.name);
            rows.push([name, interface, state, mtu, index.to_string(), gid_text(entry.gid), address]);
        }
        if gids.iter().next().is_none() {
            let [name, interface, state, mtu] = first;
            rows.push([name, interface, state, mtu, "-".into(), "no address".into(), String::new()]);
        }
    }
    aligned(&rows)
}

fn to_json(device: &DeviceInfo) -> Value {
    let port = device.port();
    let addresses: Vec<IpAddr> = device.netdev.usable_addresses().map(|address| address.ip).collect();
    let gids: Vec<Value> = ferroce_nic::gid_table(device)
        .iter()
        .map(|(index, entry)| {
            json!({
                "index": index,
                "gid": gid_text(entry.gid),
                "address": entry.address_name(&device.netdev.name),
                "type": port.link_layer.gid_type_name(),
            })
        })
        .collect();
    json!({
        "name": device.name,
        "interface": device.netdev.name,
        "ifindex": device.netdev.ifindex,
        "state": state_name(device),
        "link_layer": port.link_layer.name(),
        "lid": port.lid(),
        "sm_lid": port.sm_lid(),
        "active_mtu": port.active_mtu,
        "interface_mtu": device.netdev.mtu,
        "node_guid": guid_text(device.node_guid),
        "addresses": addresses,
        "gids": gids,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_netdev::GidEntry;

    #[test]
    fn gids_are_written_as_sysfs_does() {
        let ip: std::net::Ipv6Addr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(gid_text(ip.octets()), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!(guid_text([2, 0, 0, 0xff, 0xfe, 0, 0, 1]), "0200:00ff:fe00:0001");
    }

    #[test]
    fn link_local_addresses_name_their_interface() {
        let entry = GidEntry { gid: [0; 16], ip: "fe80::1".parse().unwrap(), scope_id: 3, ifindex: 3 };
        assert_eq!(entry.address_name("eth0"), "fe80::1%eth0");
        let entry = GidEntry { ip: "10.0.0.1".parse().unwrap(), scope_id: 0, ..entry };
        assert_eq!(entry.address_name("eth0"), "10.0.0.1");
    }
}
