//! Whose work is in the packages: licences for people, and a bill of materials for programs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use serde::Deserialize;
use serde_json::json;

use super::{HOMEPAGE, LICENCE};
use crate::dist::workspace;

/// What is built into the packages.
const ROOTS: [&str; 5] =
    ["ferroce-cli", "ferroce-capi-rdmacm", "ferroce-rsocket", "ferroce-preload", "ferroce-rsocket-preload"];

/// What is linked besides crates: name, licence, where its text is.
const OTHERS: [(&str, &str, &str); 2] = [
    ("The Rust standard library", "MIT OR Apache-2.0", "https://github.com/rust-lang/rust"),
    (
        "libgcc",
        "GPL-3.0-or-later WITH GCC-exception-3.1",
        "https://gcc.gnu.org/onlinedocs/libstdc++/manual/license.html",
    ),
];

/// The parts of `cargo metadata` that are read.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize, Clone)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    manifest_path: PathBuf,
    source: Option<String>,
    targets: Vec<Target>,
}

#[derive(Deserialize, Clone)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Link>,
}

#[derive(Deserialize)]
struct Link {
    pkg: String,
    dep_kinds: Vec<DepKind>,
}

#[derive(Deserialize)]
struct DepKind {
    kind: Option<String>,
}

/// The crates in the packages, ordered by name.
pub struct Inventory {
    crates: Vec<Package>,
}

impl Inventory {
    /// Asks cargo for what is built for an architecture.
    pub fn read(arch: &str) -> io::Result<Self> {
        let target = format!("{arch}-unknown-linux-gnu");
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(workspace()).args([
            "metadata",
            "--format-version",
            "1",
            "--filter-platform",
            &target,
        ]);
        let metadata: Metadata = serde_json::from_str(&super::output(&mut cargo)?)?;
        let packages: HashMap<&str, &Package> =
            metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
        let nodes: HashMap<&str, &Node> =
            metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let mut left: Vec<&str> = metadata
            .packages
            .iter()
            .filter(|package| package.source.is_none() && ROOTS.contains(&package.name.as_str()))
            .map(|package| package.id.as_str())
            .collect();
        if left.len() != ROOTS.len() {
            return Err(io::Error::other(format!("not all of {ROOTS:?} are in the workspace")));
        }
        let mut seen = BTreeSet::new();
        while let Some(id) = left.pop() {
            // A procedural macro runs when the crate is compiled.
            let of_compiler =
                packages[id].targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"));
            if of_compiler || !seen.insert(id) {
                continue;
            }
            let links = nodes[id].deps.iter();
            let linked = links.filter(|link| link.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            left.extend(linked.map(|link| link.pkg.as_str()));
        }
        let mut crates: Vec<Package> = seen.into_iter().map(|id| packages[id].clone()).collect();
        crates.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        Ok(Self { crates })
    }

    /// The texts of all licences, each once, with the crates that it is for.
    pub fn notices(&self) -> io::Result<String> {
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut list = String::from("Ferroce contains work of others:\n\n");
        for package in self.crates.iter().filter(|package| package.source.is_some()) {
            let name = format!("{} {}", package.name, package.version);
            list.push_str(&format!("  {name}: {}\n", licence(package)?));
            for file in licence_files(&package.manifest_path)? {
                let text = String::from_utf8_lossy(&fs::read(file)?).trim_end().replace("\r\n", "\n");
                texts.entry(text).or_default().push(name.clone());
            }
        }
        for (name, licence, place) in OTHERS {
            list.push_str(&format!("  {name}: {licence}; {place}\n"));
        }
        for (text, names) in texts {
            list.push_str(&format!("\n{}\n{}\n\n{text}\n", "=".repeat(79), names.join(", ")));
        }
        Ok(list)
    }

    /// The bill of materials, as SPDX 2.3 has it.
    pub fn spdx(&self, created: &str) -> io::Result<String> {
        let version = env!("CARGO_PKG_VERSION");
        let mut packages = vec![json!({
            "SPDXID": "SPDXRef-ferroce", "name": "ferroce", "versionInfo": version, "downloadLocation": HOMEPAGE,
            "filesAnalyzed": false, "licenseConcluded": LICENCE, "licenseDeclared": LICENCE, "copyrightText": "NOASSERTION",
        })];
        for package in self.crates.iter().filter(|package| package.source.is_some()) {
            let (name, version, licence) = (&package.name, &package.version, licence(package)?);
            packages.push(json!({
                "SPDXID": format!("SPDXRef-{}-{}", name.replace('_', "-"), version.replace(['+', '_'], "-")),
                "name": name, "versionInfo": version, "filesAnalyzed": false,
                "downloadLocation": format!("https://crates.io/crates/{name}/{version}"),
                "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION",
                "externalRefs": [{
                    "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                    "referenceLocator": format!("pkg:cargo/{name}@{version}"),
                }],
            }));
        }
        for (number, (name, licence, place)) in OTHERS.iter().enumerate() {
            packages.push(json!({
                "SPDXID": format!("SPDXRef-linked-{number}"), "name": name, "downloadLocation": place,
                "filesAnalyzed": false, "licenseConcluded": licence, "licenseDeclared": licence,
                "copyrightText": "NOASSERTION",
            }));
        }
        let contains = |package: &serde_json::Value| {
            json!({
                "spdxElementId": "SPDXRef-ferroce", "relationshipType": "CONTAINS",
                "relatedSpdxElement": package["SPDXID"],
            })
        };
        let mut relationships = vec![json!({
            "spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-ferroce",
        })];
        relationships.extend(packages[1..].iter().map(contains));
        let document = json!({
            "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
            "name": format!("ferroce-{version}"), "documentNamespace": format!("{HOMEPAGE}/spdx/{version}"),
            "creationInfo": { "created": created, "creators": ["Organization: Ferroce"] },
            "packages": packages, "relationships": relationships,
        });
        Ok(format!("{document:#}\n"))
    }
}

fn licence(package: &Package) -> io::Result<String> {
    // An older way to write "or".
    let invalid =
        || io::Error::other(format!("{} {} doesn't name its licence", package.name, package.version));
    package.license.as_deref().map(|text| text.replace('/', " OR ")).ok_or_else(invalid)
}

/// The files with licences beside a manifest, by name.
fn licence_files(manifest: &Path) -> io::Result<Vec<PathBuf>> {
    let directory = manifest.parent().unwrap_or(manifest);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let matches = ["LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
        if path.is_file() && matches.iter().any(|word| name.starts_with(word)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_in_the_packages_says_its_licence() {
        let inventory = Inventory::read(env::consts::ARCH).unwrap();
        let notices = inventory.notices().unwrap();
        for name in ["clap ", "libc ", "tracing ", "libgcc"] {
            assert!(notices.contains(&format!("  {name}")), "{name} is missing");
        }
        assert!(!notices.contains("proptest") && !notices.contains("clap_derive "), "{notices}");
        let materials: serde_json::Value =
            serde_json::from_str(&inventory.spdx("1970-01-01T00:00:00Z").unwrap()).unwrap();
        let packages = materials["packages"].as_array().unwrap();
        let names: BTreeSet<&str> =
            packages.iter().map(|package| package["SPDXID"].as_str().unwrap()).collect();
        assert_eq!(names.len(), packages.len());
        assert_eq!(materials["creationInfo"]["created"], "1970-01-01T00:00:00Z");
    }
}
