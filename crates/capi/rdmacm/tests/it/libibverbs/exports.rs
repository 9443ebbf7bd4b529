//! The linked library exports every name at every version that programs may ask for, and depends on the C library only.

use std::collections::{BTreeMap, BTreeSet};

use super::library::{engine, ibverbs, library};
use crate::symbols::{exports, installed, output};

/// What rdma-core v65 exports in its public nodes, `name@@version` or `name@version`.
const V65: &str = include_str!("data/exports-v65.txt");

/// What rdma-core v19, v22, v25 to v32, and v33 export in their private nodes, `name@version`, by their version scripts, and v56 (Debian 13)
/// in its own.
const OLDER_PRIVATE: &str = include_str!("data/private-nodes.txt");

#[test]
fn the_table_has_a_known_state_and_users_for_every_symbol() {
    for symbol in ibverbs::parse(ibverbs::TABLE) {
        let (name, state) = (&symbol.name, symbol.state.as_str());
        assert!(["yes", "no", "ignored", "data"].contains(&state), "{name}: {state}");
        assert!(!symbol.users.is_empty() && !symbol.code.is_empty(), "{name}");
        let defaults = symbol.versions.iter().filter(|version| version.default).count();
        assert!(defaults <= 1, "{name} has {defaults} default versions");
    }
}

#[test]
fn the_table_of_inline_functions_has_a_known_state_for_every_function_of_the_header() {
    let table = ibverbs::parse_inline(ibverbs::INLINE);
    for function in &table {
        let partial = function.state == "part";
        assert!(partial || ["yes", "no"].contains(&function.state.as_str()), "{}", function.name);
        assert_eq!(partial, function.remark != "-", "{}: what there is of it", function.name);
    }
    let Ok(header) = std::fs::read_to_string("/usr/include/infiniband/verbs.h") else {
        println!("no header here; nothing to compare with");
        return;
    };
    // Those that need neither a device nor a queue are complete in the header.
    let complete = [
        "cq_ex_to_cq",
        "inc_rkey",
        "is_qpt_supported",
        "flow_label_to_udp_sport",
        "reg_mr",
        "reg_mr_iova",
        "get_device_list",
    ];
    let inline: BTreeSet<String> = header
        .split("static inline ")
        .skip(1)
        .filter_map(|text| {
            text.split('(').next()?.split(['*', ' ', '\n', '\t']).rfind(|word| !word.is_empty())
        })
        .map(|name| format!("ibv_{}", name.trim_start_matches('_').trim_start_matches("ibv_")))
        .filter(|name| {
            !complete.iter().any(|known| name == &format!("ibv_{known}")) && name != "ibv_verbs_get_ctx"
        })
        .collect();
    let listed: BTreeSet<String> = table.into_iter().map(|function| function.name).collect();
    let missing: Vec<_> = inline.difference(&listed).collect();
    assert!(
        inline.len() > 50 && missing.is_empty(),
        "{} in the header, not listed: {missing:?}",
        inline.len()
    );
}

#[test]
fn exports_are_those_of_the_table_and_nothing_else() {
    let expected: BTreeSet<String> = ibverbs::parse(ibverbs::TABLE)
        .iter()
        .chain(&engine::engine().symbols)
        .flat_map(|s| {
            s.versions.iter().map(|v| format!("{}{}{}", s.name, if v.default { "@@" } else { "@" }, v.node))
        })
        .collect();
    // Version nodes are symbols too.
    let found: BTreeSet<String> =
        exports(library()).into_iter().filter(|s| !s.starts_with("IBVERBS_")).collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    let surplus: Vec<_> = found.difference(&expected).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing {missing:?}, not in the table {surplus:?}");
}

#[test]
fn exports_include_those_of_v65() {
    let found = exports(library());
    let missing: Vec<_> = V65.lines().filter(|symbol| !found.contains(*symbol)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// An export. Which version of a name a new program gets is compared for the public nodes; a private name is in several nodes here,
/// and only one can be the default.
fn key(symbol: String) -> String {
    if symbol.contains("PRIVATE") { symbol.replace("@@", "@") } else { symbol }
}

/// Programs of these releases are linked to vendors' libraries, whose private names have to be there when they are loaded.
#[test]
fn exports_include_the_private_nodes_of_older_releases() {
    let found: BTreeSet<String> = exports(library()).into_iter().map(key).collect();
    let missing: Vec<_> = OLDER_PRIVATE.lines().filter(|symbol| !found.contains(*symbol)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn exports_include_those_of_the_distribution() {
    let Some(installed) = installed("libibverbs.so.1") else { return };
    let found: BTreeSet<String> = exports(library()).into_iter().map(key).collect();
    let theirs: BTreeSet<String> = exports(&installed).into_iter().map(key).collect();
    assert!(theirs.len() > 100, "{} exports in {}", theirs.len(), installed.display());
    let missing: Vec<_> = theirs.difference(&found).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_library_needs_the_c_library_only() {
    let dynamic = output("readelf", &["--dynamic", "--wide"], library());
    let entries = |tag: &str| -> Vec<String> {
        dynamic
            .lines()
            .filter(|line| line.contains(&format!("({tag})")))
            .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned()))
            .collect()
    };
    for needed in entries("NEEDED") {
        // Older systems have its threads and its loading of libraries in files of their own.
        let of_libc =
            ["libc.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"]
                .contains(&needed.as_str());
        assert!(of_libc, "needs {needed}");
    }
    assert_eq!(entries("SONAME"), ["libibverbs.so.1"]);
    let flags = dynamic.lines().find(|line| line.contains("(FLAGS_1)")).expect("flags");
    assert!(flags.contains("NODELETE") && flags.contains("NOW"), "{flags}");
}

/// The loader of glibc 2.28 and 2.29 wants each symbol in the file that is named.
#[test]
fn what_older_systems_have_in_the_file_of_threads_is_named_there() {
    let listing = output("readelf", &["--version-info", "--dyn-syms", "--wide"], library());
    let after = |line: &str, label: &str| {
        let (_, rest) = line.split_once(label)?;
        Some(rest.split_whitespace().next()?.to_owned())
    };
    // The number of each version, with the file that is named for it.
    let (mut files, mut file) = (BTreeMap::new(), String::new());
    for line in listing.lines() {
        if let Some(name) = after(line, "  File: ") {
            file = name;
        } else if let (Some(number), false) = (after(line, "  Version: "), file.is_empty()) {
            files.insert(number, file.clone());
        }
    }
    let mut found = 0;
    for line in listing.lines().filter(|line| line.contains(" UND ") && line.contains("pthread_")) {
        let number = line.rsplit_once('(').expect("a version").1.trim_end().trim_end_matches(')');
        assert_eq!(files.get(number).map(String::as_str), Some("libpthread.so.0"), "{line}");
        found += 1;
    }
    assert!(found > 2, "{listing}");
}
