//! One GID table for all processes of a host: an index keeps its GID for as long as any process has the device open.
//!
//! A table has a history (an address that went leaves a hole), which the kernel keeps for its devices. Here every process
//! that has a device open keeps it, by following the news of the network; who comes later asks one of them.

use crate::net::{DeviceInfo, GidTable};
use crate::{engine, rendezvous};

/// The table of a device as the host's processes see it; from the interface's addresses alone where none has it open.
#[must_use]
pub fn gid_table(device: &DeviceInfo) -> GidTable {
    let interface = device.netdev.ifindex;
    let known =
        own(interface).or_else(|| GidTable::from_bytes(&rendezvous::ask_for_gids(interface)?, interface));
    match known {
        Some(mut table) => {
            table.update(&device.netdev);
            table
        }
        None => device.gid_table(),
    }
}

/// The table of an interface whose device is open in this process.
pub(crate) fn own(interface: u32) -> Option<GidTable> {
    let open = engine::contexts();
    open.iter()
        .find(|context| context.device().info().netdev.ifindex == interface)
        .map(|context| context.gid_table())
}
