use super::*;
use ferroce_netdev::{Address, DeviceInfo, Netdev};

const PARENT: &str = "/sys/devices/virtual/ferroce/mlx5_0";

fn device(name: &str, interface: &str, addresses: &[&str]) -> DeviceInfo {
    let address = |text: &&str| Address { ip: text.parse().unwrap(), prefix_len: 24, scope: 0, flags: 0 };
    let netdev = Netdev {
        name: interface.into(),
        ifindex: 7,
        mtu: 1500,
        flags: (libc::IFF_UP | libc::IFF_RUNNING) as u32,
        operstate: libc::IF_OPER_UP as u8,
        hardware: libc::ARPHRD_ETHER,
        mac: Some([2, 0, 0, 0, 0, 9]),
        master: None,
        port_kind: None,
        kind: None,
        addresses: addresses.iter().map(address).collect(),
        speed_mbps: Some(100_000),
    };
    DeviceInfo { name: name.into(), netdev, node_guid: [0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56] }
}

fn tree() -> Tree {
    let devices =
        vec![device("mlx5_0", "eth0", &["10.0.0.1", "fe80::1"]), device("uverbs0", "eth1", &["10.0.1.1"])];
    Tree::from(&TreeSource { devices, processors: 2 })
}

/// What a path leads to, in words.
fn leads(tree: &Tree, path: &str, last: Last) -> String {
    match tree.walk(path.as_bytes(), last) {
        Ok(PathTarget::Ours(path, node)) => {
            let path = String::from_utf8(path).unwrap();
            let kind = match node {
                Node::File(text) => format!("={text}"),
                Node::NoValue => "=?".into(),
                Node::Counter { name, .. } => format!("={name}"),
                Node::Link(_) => "@".into(),
                Node::Device { .. } => "%".into(),
                Node::Directory(_) | Node::Passage(_) => "/".into(),
            };
            path + &kind
        }
        Ok(PathTarget::Elsewhere(path)) => format!("elsewhere {}", String::from_utf8(path).unwrap()),
        Err(errno) => format!("errno {errno}"),
    }
}

fn text(tree: &Tree, path: &str) -> String {
    match tree.walk(path.as_bytes(), Last::Follow) {
        Ok(PathTarget::Ours(_, Node::File(text))) => text.clone(),
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn attributes_read_as_those_of_a_kernel_device() {
    let tree = tree();
    let device = "/sys/class/infiniband/mlx5_0";
    for (file, says) in [
        ("node_type", "1: CA\n"),
        ("node_guid", "5054:00ff:fe12:3456\n"),
        ("sys_image_guid", "5054:00ff:fe12:3456\n"),
        ("ports/1/state", "4: ACTIVE\n"),
        ("ports/1/phys_state", "5: LinkUp\n"),
        ("ports/1/rate", "100 Gb/sec (4X EDR)\n"),
        ("ports/1/link_layer", "Ethernet\n"),
        ("ports/1/lid", "0x0\n"),
        ("ports/1/cap_mask", "0x04010000\n"),
        ("ports/1/pkeys/0", "0xffff\n"),
        ("ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
        ("ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
        ("ports/1/gids/63", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
        ("ports/1/gid_attrs/types/1", "RoCE v2\n"),
        ("ports/1/gid_attrs/ndevs/0", "eth0\n"),
        ("ports/1/net/eth0/ifindex", "7\n"),
        ("device/numa_node", "-1\n"),
        ("device/local_cpus", "3\n"),
        ("device/vendor", "0xf0ce\n"),
        ("device/net/eth0/address", "02:00:00:00:00:09\n"),
    ] {
        assert_eq!(text(&tree, &format!("{device}/{file}")), says, "{file}");
    }
    assert_eq!(text(&tree, "/sys/class/infiniband_verbs/abi_version"), "6\n");
    assert_eq!(text(&tree, "/sys/class/infiniband_verbs/uverbs1/ibdev"), "uverbs0\n");
    assert_eq!(text(&tree, "/sys/class/infiniband_verbs/uverbs1/dev"), "231:193\n");
    assert_eq!(text(&tree, "/sys/class/infiniband_verbs/uverbs0/device/vendor"), "0xf0ce\n");
}

#[test]
fn counters_have_the_names_of_the_kernel() {
    let tree = tree();
    let port = format!("{PARENT}/infiniband/mlx5_0/ports/1");
    for name in ["counters/port_xmit_data", "hw_counters/rdma_sends", "hw_counters/out_of_seq_request"] {
        let said = name.split_once('/').expect("a directory").1;
        assert_eq!(leads(&tree, &format!("{port}/{name}"), Last::Follow), format!("{port}/{name}={said}"));
    }
}

#[test]
fn empty_gid_entries_have_no_type_and_no_interface() {
    let tree = tree();
    for attribute in ["types", "ndevs"] {
        let path = format!("{PARENT}/infiniband/mlx5_0/ports/1/gid_attrs/{attribute}/2");
        assert_eq!(leads(&tree, &path, Last::Follow), format!("{path}=?"));
    }
}

#[test]
fn paths_are_walked_as_the_kernel_does() {
    let tree = tree();
    let both = |path: &str| leads(&tree, path, Last::Follow);
    let device = format!("{PARENT}/infiniband/mlx5_0");
    assert_eq!(both("/sys/class/infiniband/mlx5_0"), format!("{device}/"));
    assert_eq!(leads(&tree, "/sys/class/infiniband/mlx5_0", Last::Keep), "/sys/class/infiniband/mlx5_0@");
    assert_eq!(leads(&tree, "/sys/class/infiniband/mlx5_0/", Last::Keep), format!("{device}/"));
    assert_eq!(both("/sys//class/./infiniband///mlx5_0/device"), format!("{PARENT}/"));
    assert_eq!(both("/sys/class/infiniband/mlx5_0/../.."), format!("{PARENT}/"));
    assert_eq!(both("/sys/class/infiniband/mlx5_0/subsystem"), "/sys/class/infiniband/");
    assert_eq!(both("/sys/class/infiniband_verbs/uverbs0/subsystem"), "/sys/class/infiniband_verbs/");
    assert_eq!(both("/sys/class/infiniband/mlx5_1"), format!("errno {}", libc::ENOENT));
    assert_eq!(both(&format!("{device}/node_type/x")), format!("errno {}", libc::ENOTDIR));
    assert_eq!(both(&format!("{device}/node_type/")), format!("errno {}", libc::ENOTDIR));
    assert_eq!(both("/dev/infiniband/rdma_cm"), "/dev/infiniband/rdma_cm%");
}

#[test]
fn paths_that_leave_the_tree_go_to_the_system() {
    let tree = tree();
    let both = |path: &str| leads(&tree, path, Last::Follow);
    assert_eq!(both("/sys/class/infiniband/../net/eth0/"), "elsewhere /sys/class/net/eth0/");
    assert_eq!(
        both("/sys/class/infiniband_mad/abi_version"),
        "elsewhere /sys/class/infiniband_mad/abi_version"
    );
    assert_eq!(both("/sys/class/infiniband/.."), "elsewhere /sys/class");
    assert_eq!(both("/dev/infiniband/../../.."), "elsewhere /");
    assert_eq!(both("/usr/lib/infiniband"), "elsewhere /usr/lib/infiniband");
}

#[test]
fn every_device_has_a_node_by_number_and_by_name() {
    let tree = tree();
    let names: Vec<&str> = tree
        .get("/dev/infiniband")
        .unwrap()
        .entries()
        .unwrap()
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["rdma_cm", "uverbs0", "uverbs1", "mlx5_0"], "a name that is taken isn't given twice");
    let minor = |name: &str| match tree.get(&format!("/dev/infiniband/{name}")) {
        Some(Node::Device { major: 231, minor, opens: true }) => *minor,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!((minor("uverbs0"), minor("mlx5_0"), minor("uverbs1")), (192, 192, 193));
}

#[test]
fn no_link_leads_nowhere() {
    fn check(tree: &Tree, path: &str, node: &Node, links: &mut usize) {
        if let Node::Link(_) = node {
            *links += 1;
            assert!(matches!(tree.walk(path.as_bytes(), Last::Follow), Ok(PathTarget::Ours(..))), "{path}");
        }
        for (name, child) in node.entries().unwrap_or_default() {
            check(tree, &format!("{path}/{name}"), child, links);
        }
    }
    let tree = tree();
    let mut links = 0;
    check(&tree, "", &tree.root, &mut links);
    assert_eq!(links, 14);
}

#[test]
fn without_devices_the_directories_are_there_and_empty() {
    let tree = Tree::from(&TreeSource { devices: Vec::new(), processors: 1 });
    assert_eq!(tree.get("/sys/class/infiniband").unwrap().entries(), Some(&[][..]));
    assert!(tree.get("/dev/infiniband/uverbs0").is_none());
}

#[test]
fn links_in_a_circle_are_an_error() {
    let links = vec![("a".to_owned(), Node::Link("b".into())), ("b".to_owned(), Node::Link("/a".into()))];
    let tree = Tree { root: Node::Passage(links) };
    assert_eq!(tree.walk(b"/a", Last::Follow), Err(libc::ELOOP));
}
