//! What the transport, the wire formats and the ring of a queue are made of: nothing of the operating system.

use std::fs;
use std::path::{Path, PathBuf};

/// What the sources may use of the standard library.
const ALLOWED: [&str; 19] = [
    "std::collections::",
    "std::error::",
    "std::fmt",
    "std::mem",
    "std::ptr::",
    "std::slice",
    "std::ops::",
    "core::cell::",
    "core::error::Error",
    "core::fmt",
    "core::mem::",
    // Addresses, without sockets.
    "core::net::",
    "core::num::",
    "core::ops::",
    "core::time::Duration",
    "core::array::",
    "core::iter::",
    "core::cmp::",
    "core::hint::",
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry")) {
        if entry.path().is_dir() {
            sources(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
}

#[test]
fn wire_and_proto_use_nothing_of_the_system() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&own.join("src"), &mut files);
    sources(&own.join("../qp-context/src"), &mut files);
    sources(&own.join("../wire/src"), &mut files);
    files.push(own.join("../ring/src/lib.rs"));
    assert!(files.len() > 20, "{}", files.len());
    for file in files {
        let text = fs::read_to_string(&file).expect("a source");
        assert!(!text.contains("extern \"C\""), "{}", file.display());
        for (number, line) in (1..).zip(text.lines()) {
            for (at, _) in line.match_indices("std::").chain(line.match_indices("core::")) {
                let used = &line[at..];
                let allowed = ALLOWED.iter().any(|allowed| used.starts_with(allowed));
                assert!(allowed, "{}:{number}: {used}", file.display());
            }
        }
    }
    for manifest in ["Cargo.toml", "../qp-context/Cargo.toml", "../wire/Cargo.toml", "../ring/Cargo.toml"] {
        let text = fs::read_to_string(own.join(manifest)).expect("a manifest");
        // The ring has none.
        let (_, dependencies) = text.split_once("[dependencies]").unwrap_or_default();
        let (dependencies, _) = dependencies.split_once("\n[").unwrap_or((dependencies, ""));
        for name in dependencies
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|n| !n.is_empty())
        {
            let known = [
                "ferroce-qp-context",
                "ferroce-ring",
                "ferroce-wire",
                "ferroce-types",
                "smallvec",
                "crc32fast",
                "thiserror",
            ]
            .contains(&name);
            assert!(known, "{manifest}: {name}");
        }
    }
}
