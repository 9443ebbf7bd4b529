//! The contents of the entries: the files of a kernel RoCE or InfiniBand device, with the values of ours.
//!
//! A device `D` is below its parent device `/sys/devices/virtual/ferroce/D`, to which `device` and `../..`
//! lead; `/sys/class/infiniband/D` is a link.

use ferroce_netdev::{DeviceInfo, GID_TABLE_LEN, LinkLayer, LinkSpeed, PortState};
use ferroce_netdev::{VENDOR_ID, VENDOR_PART_ID};

use ferroce_watch::{Counters, PORT_COUNTERS};

use super::{CounterSet, Node, Tree};

/// The verbs ABI of the kernel whose files these are.
const VERBS_ABI: u32 = 6;
/// Character devices of verbs: the major number that the kernel has for them, and the first minor number of uverbs.
const MAJOR: u32 = 231;
const FIRST_UVERBS_MINOR: u32 = 192;
/// The minor number of `rdma_cm` among the miscellaneous devices is given out as they come.
const RDMA_CM: (u32, u32) = (10, 122);

/// What the tree is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeSource {
    /// The devices, in the library's order.
    pub devices: Vec<DeviceInfo>,
    /// Processors of the machine.
    pub processors: u32,
}

impl TreeSource {
    /// These devices on this machine.
    #[must_use]
    pub fn with(devices: Vec<DeviceInfo>) -> Self {
        // SAFETY: takes no pointer.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        Self { devices, processors: u32::try_from(processors).unwrap_or(1) }
    }
}

fn directory(entries: impl IntoIterator<Item = (impl Into<String>, Node)>) -> Node {
    Node::Directory(entries.into_iter().map(|(name, node)| (name.into(), node)).collect())
}

fn passage<const N: usize>(entries: [(&str, Node); N]) -> Node {
    Node::Passage(entries.into_iter().map(|(name, node)| (name.to_owned(), node)).collect())
}

fn file(text: impl std::fmt::Display) -> Node {
    Node::File(format!("{text}\n"))
}

fn link(target: impl Into<String>) -> Node {
    Node::Link(target.into())
}

impl From<&TreeSource> for Tree {
    fn from(host: &TreeSource) -> Self {
        let numbered = || host.devices.iter().enumerate();
        let class = numbered().map(|(_, device)| {
            let name = &device.name;
            (name.clone(), link(format!("../../devices/virtual/ferroce/{name}/infiniband/{name}")))
        });
        let verbs = numbered().map(|(number, device)| {
            let target =
                format!("../../devices/virtual/ferroce/{}/infiniband_verbs/uverbs{number}", device.name);
            (format!("uverbs{number}"), link(target))
        });
        let verbs = verbs.chain([("abi_version".to_owned(), file(VERBS_ABI))]);
        let parents =
            numbered().map(|(number, device)| (device.name.clone(), parent(device, number, host.processors)));
        let sys = passage([
            ("class", passage([("infiniband", directory(class)), ("infiniband_verbs", directory(verbs))])),
            ("devices", passage([("virtual", passage([("ferroce", directory(parents))]))])),
        ]);
        let dev = passage([("infiniband", device_nodes(&host.devices))]);
        Self { root: passage([("sys", sys), ("dev", dev)]) }
    }
}

/// `uverbsN` and, for programs that look for it, the same node by the device's name.
fn device_nodes(devices: &[DeviceInfo]) -> Node {
    let node = |number: usize| {
        let minor = FIRST_UVERBS_MINOR + number as u32;
        Node::Device { major: MAJOR, minor, opens: true }
    };
    let (major, minor) = RDMA_CM;
    // The distribution's librdmacm would take silence for answers of the kernel.
    let mut entries = vec![("rdma_cm".to_owned(), Node::Device { major, minor, opens: false })];
    entries.extend((0..devices.len()).map(|number| (format!("uverbs{number}"), node(number))));
    for (number, device) in devices.iter().enumerate() {
        if entries.iter().all(|(name, _)| *name != device.name) {
            entries.push((device.name.clone(), node(number)));
        }
    }
    Node::Directory(entries)
}

/// The device that a kernel's RDMA device would belong to.
fn parent(device: &DeviceInfo, number: usize, processors: u32) -> Node {
    let name = device.name.as_str();
    directory([
        ("infiniband", directory([(name, rdma_device(device))])),
        ("infiniband_verbs", directory([(format!("uverbs{number}"), uverbs(name, number))])),
        ("net", directory([(device.netdev.name.as_str(), interface(device))])),
        ("numa_node", file(-1)),
        ("local_cpus", file(processor_mask(processors))),
        ("local_cpulist", file(format_args!("0-{}", processors.max(1) - 1))),
        ("vendor", file(format_args!("{:#06x}", VENDOR_ID & 0xffff))),
        ("device", file(format_args!("{VENDOR_PART_ID:#06x}"))),
    ])
}

fn uverbs(name: &str, number: usize) -> Node {
    directory([
        ("abi_version", file(1)),
        ("dev", file(format_args!("{MAJOR}:{}", FIRST_UVERBS_MINOR + number as u32))),
        ("device", link(format!("../../../{name}"))),
        ("ibdev", file(name)),
        ("subsystem", link("../../../../../../class/infiniband_verbs")),
    ])
}

/// The interface as the library sees it; `/sys/class/net` may show those of another network namespace.
fn interface(device: &DeviceInfo) -> Node {
    let netdev = &device.netdev;
    let mac = netdev.mac.unwrap_or_default().map(|byte| format!("{byte:02x}")).join(":");
    directory([
        ("address", file(mac)),
        ("dev_id", file("0x0")),
        ("dev_port", file(0)),
        ("flags", file(format_args!("{:#x}", netdev.flags & 0xffff))),
        ("ifindex", file(netdev.ifindex)),
        ("mtu", file(netdev.mtu)),
        ("operstate", file(if netdev.is_up() { "up" } else { "down" })),
        ("type", file(netdev.hardware)),
    ])
}

fn rdma_device(device: &DeviceInfo) -> Node {
    let guid = groups(&device.node_guid);
    directory([
        ("board_id", file("FERROCE")),
        ("device", link(format!("../../../{}", device.name))),
        ("fw_ver", file(env!("CARGO_PKG_VERSION"))),
        ("hca_type", file("ferroce")),
        ("hw_rev", file(0)),
        ("node_desc", file(&device.name)),
        ("node_guid", file(&guid)),
        ("node_type", file("1: CA")),
        ("ports", directory([("1", port(device))])),
        ("subsystem", link("../../../../../../class/infiniband")),
        ("sys_image_guid", file(&guid)),
    ])
}

fn port(device: &DeviceInfo) -> Node {
    let port = device.port();
    let gids = ferroce_host::gid_table(device);
    let each_gid = |entry: &dyn Fn(usize) -> Node| {
        directory((0..GID_TABLE_LEN).map(|index| (index.to_string(), entry(index))))
    };
    let value = |text: &str| each_gid(&|index| gids.get(index).map_or(Node::NoValue, |_| file(text)));
    // A GID of InfiniBand belongs to no interface.
    let interface = match port.link_layer {
        LinkLayer::Ethernet => value(&device.netdev.name),
        LinkLayer::InfiniBand => each_gid(&|_| Node::NoValue),
    };
    let types = value(port.link_layer.gid_type_name());
    let counters = |names: &[&'static str], set: CounterSet| {
        let counter = |name: &'static str| Node::Counter { device: device.name.clone(), set, name };
        directory(names.iter().map(|name| (*name, counter(name))))
    };
    directory([
        ("cap_mask", file(format_args!("{:#010x}", port.capabilities()))),
        ("counters", counters(&PORT_COUNTERS, CounterSet::Port)),
        ("gid_attrs", directory([("ndevs", interface), ("types", types)])),
        ("gids", each_gid(&|index| file(groups(&gids.gid(index).unwrap_or_default())))),
        ("hw_counters", counters(Counters::NAMES, CounterSet::Hardware)),
        ("lid", file(format_args!("{:#x}", port.lid()))),
        ("lid_mask_count", file(0)),
        ("link_layer", file(port.link_layer.name())),
        ("net", link("../../../../net")),
        ("phys_state", file(if port.state == PortState::Active { "5: LinkUp" } else { "3: Disabled" })),
        ("pkeys", directory([("0", file("0xffff"))])),
        ("rate", file(rate(port.speed))),
        ("sm_lid", file(format_args!("{:#x}", port.sm_lid()))),
        ("sm_sl", file(0)),
        ("state", file(if port.state == PortState::Active { "4: ACTIVE" } else { "1: DOWN" })),
    ])
}

/// GUIDs and GIDs: groups of four hexadecimal digits.
pub(crate) fn groups(bytes: &[u8]) -> String {
    let groups: Vec<_> = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    groups.join(":")
}

/// "100 Gb/sec (4X EDR)".
fn rate(speed: LinkSpeed) -> String {
    let lanes = match speed.width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        _ => 2,
    };
    // Tenths of Gbit/s a lane.
    let (tenths, name) = match speed.speed {
        1 => (25, "SDR"),
        2 => (50, "DDR"),
        4 => (100, "QDR"),
        8 => (100, "FDR10"),
        16 => (140, "FDR"),
        32 => (250, "EDR"),
        64 => (500, "HDR"),
        128 => (1000, "NDR"),
        _ => (2000, "XDR"),
    };
    let total = tenths * lanes;
    let fraction = if total % 10 == 0 { "" } else { ".5" };
    format!("{}{fraction} Gb/sec ({lanes}X {name})", total / 10)
}

/// One bit a processor, in groups of 32, the highest first.
fn processor_mask(processors: u32) -> String {
    let words = processors.max(1).div_ceil(32);
    let word = |index: u32| {
        let bits = (processors.max(1) - index * 32).min(32);
        let digits = bits.div_ceil(4) as usize;
        format!("{:0digits$x}", u64::MAX >> (64 - bits))
    };
    (0..words).rev().map(word).collect::<Vec<_>>().join(",")
}
