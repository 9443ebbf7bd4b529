//! The table of exports has what the distribution's library has, and what rdma-core has added since.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

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
    let installed = ["x86_64", "aarch64"]
        .map(|arch| PathBuf::from(format!("/usr/lib/{arch}-linux-gnu/librdmacm.so.1")))
        .into_iter()
        .find(|path| path.exists());
    let Some(installed) = installed else {
        println!("no librdmacm.so.1 of a distribution here; nothing to compare with");
        return;
    };
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--with-symbol-versions"])
        .arg(&installed)
        .output()
        .expect("nm");
    let theirs: BTreeMap<String, String> = String::from_utf8(output.stdout)
        .expect("text")
        .lines()
        .filter_map(|line| line.split_whitespace().last()?.split_once("@@"))
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
