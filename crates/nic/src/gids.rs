//! One GID table for all processes of a host: an index keeps its GID for as long as any process has the device open.
//!
//! A table has a history (an address that was removed leaves a hole), which the kernel keeps for its devices. Here every process
//! that has a device open keeps it, by following the news of the network. A process that opens the device later asks one of them.

use crate::adapter;
use ferroce_host::{self, GidTables, KIND_GIDS, Services};
use ferroce_netdev::{DeviceInfo, GidTable};
use std::sync::Arc;

/// The table of a device as the host's processes see it; from the interface's addresses alone where none has it open.
#[must_use]
pub fn gid_table(device: &DeviceInfo) -> GidTable {
    match own(device.netdev.ifindex) {
        Some(mut table) => {
            table.update(&device.netdev);
            table
        }
        None => ferroce_host::gid_table(device),
    }
}

/// Answers other processes that ask for the table of a device that this one has open.
pub(crate) fn register(services: &Services) {
    services.register(KIND_GIDS, Arc::new(GidTables(own)));
}

/// The table of an interface whose device is open in this process.
fn own(interface: u32) -> Option<GidTable> {
    let open = adapter::contexts();
    open.iter()
        .find(|context| context.device().info().netdev.ifindex == interface)
        .map(|context| context.gid_table())
}
