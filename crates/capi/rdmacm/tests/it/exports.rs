//! The table of exports has what the distribution's library has, and what rdma-core has added since.

use std::collections::{BTreeMap, BTreeSet};

use crate::symbols::{exports, installed};
use crate::table;

/// Since v44: name and version node.
const NEWER: [(&str, &str); 6] = [
    ("rdma_query_addrinfo", "RDMACM_1.4"),
    ("rdma_resolve_addrinfo", "RDMACM_1.4"),
    ("rdma_write_cm_event", "RDMACM_1.4"),
    ("repoll_create", "RDMACM_1.5"),
    ("repoll_ctl", "RDMACM_1.5"),
    ("repoll_wait", "RDMACM_1.5"),
];

fn table() -> BTreeMap<String, String> {
    table::parse(table::TABLE).into_iter().map(|export| (export.name, export.node)).collect()
}

#[test]
fn names_since_the_distributions_library_are_in_the_table() {
    let table = table();
    for (name, node) in NEWER {
        assert_eq!(table.get(name).map(String::as_str), Some(node), "{name}");
    }
}

#[test]
fn the_table_has_what_the_distribution_exports_and_what_is_newer() {
    let Some(installed) = installed("librdmacm.so.1") else { return };
    let theirs: BTreeMap<String, String> = exports(&installed)
        .iter()
        .filter_map(|symbol| symbol.split_once("@@"))
        .map(|(name, node)| (name.to_owned(), node.to_owned()))
        .collect();
    assert!(theirs.len() > 60, "{} exports in {}", theirs.len(), installed.display());
    let ours = table();
    let missing: Vec<_> = theirs.iter().filter(|(name, node)| ours.get(*name) != Some(*node)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let newer: BTreeSet<&str> = NEWER.iter().map(|(name, _)| *name).collect();
    let surplus: Vec<_> =
        ours.keys().filter(|name| !theirs.contains_key(*name) && !newer.contains(name.as_str())).collect();
    assert!(surplus.is_empty(), "{surplus:?}");
}
