//! A wheel: the same tree as data of a small Python package.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::tree::{Entry, Kind, Tree};
use super::{HOMEPAGE, LICENCE, Release, SUMMARY, WHEEL_PLATFORM};

/// Where the tree is in the package.
const WITHIN: &str = "ferroce/_dist";

/// The Python of the package, by path.
const SOURCES: [(&str, &str); 5] = [
    ("ferroce/__init__.py", include_str!("../../../packaging/python/__init__.py")),
    ("ferroce/__main__.py", include_str!("../../../packaging/python/__main__.py")),
    ("ferroce/pytest_plugin.py", include_str!("../../../packaging/python/pytest_plugin.py")),
    ("ferroce/examples/__init__.py", include_str!("../../../packaging/python/examples/__init__.py")),
    (
        "ferroce/examples/test_ping_pong.py",
        include_str!("../../../packaging/python/examples/test_ping_pong.py"),
    ),
];

/// `rdma` of the tree is a link, which wheels don't have.
const RDMA: &str = "#!/bin/sh\nexec \"${0%/*}/../../../bin/ferroce\" rdma \"$@\"\n";

/// Writes the wheel.
pub fn write(directory: &Path, tree: &Tree, release: &Release) -> io::Result<PathBuf> {
    let version = release.version;
    let tag = format!("py3-none-{WHEEL_PLATFORM}_{}", release.arch.rust);
    let path = directory.join(format!("ferroce-{version}-{tag}.whl"));
    let information = format!("ferroce-{version}.dist-info");
    let mut files: Vec<Entry> =
        SOURCES.iter().map(|(path, text)| Entry::file(path, 0o644, text.as_bytes().to_vec())).collect();
    for entry in tree {
        match &entry.kind {
            Kind::File { content, .. } if entry.path.starts_with("share/doc/ferroce/") => {
                let name = entry.path.rsplit('/').next().unwrap_or_default();
                if name.starts_with("LICENSE") || name.starts_with("THIRD") {
                    files.push(Entry::file(
                        &format!("{information}/licenses/{name}"),
                        0o644,
                        content.clone(),
                    ));
                }
            }
            // Man pages and completions would go below the environment's prefix, and pip leaves the directories there when it removes
            // the wheel.
            Kind::File { .. }
                if entry.path.starts_with("share/") && !entry.path.starts_with("share/ferroce/") => {}
            Kind::File { mode, content } => {
                files.push(Entry::file(&format!("{WITHIN}/{}", entry.path), *mode, content.clone()));
            }
            Kind::Link { .. } if entry.path.ends_with("/rdma") => {
                files.push(Entry::file(&format!("{WITHIN}/{}", entry.path), 0o755, RDMA.into()));
            }
            // Those for linking new programs.
            Kind::Link { .. } => {}
        }
    }
    let text =
        |name: &str, text: String| Entry::file(&format!("{information}/{name}"), 0o644, text.into_bytes());
    files.push(text(
        "METADATA",
        format!(
            "Metadata-Version: 2.1\nName: ferroce\nVersion: {version}\nSummary: {SUMMARY}\nHome-page: {HOMEPAGE}\n\
             License: {LICENCE}\nClassifier: Framework :: Pytest\nClassifier: Operating System :: POSIX :: Linux\n\
             Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n{}",
            include_str!("../../../packaging/python/README.md")
        ),
    ));
    files.push(text(
        "WHEEL",
        format!("Wheel-Version: 1.0\nGenerator: ferroce\nRoot-Is-Purelib: false\nTag: {tag}\n"),
    ));
    files.push(text(
        "entry_points.txt",
        "[console_scripts]\nferroce = ferroce.__main__:main\n\n[pytest11]\nferroce = ferroce.pytest_plugin\n"
            .into(),
    ));
    files.push(text("sboms/ferroce.spdx.json", release.materials.clone()));
    let record = format!("{information}/RECORD");
    let mut list = String::new();
    for entry in &files {
        if let Kind::File { content, .. } = &entry.kind {
            let sum = base64(&Sha256::digest(content));
            list.push_str(&format!("{},sha256={sum},{}\n", entry.path, content.len()));
        }
    }
    list.push_str(&format!("{record},,\n"));
    files.push(Entry::file(&record, 0o644, list.into_bytes()));

    let mut archive = ZipWriter::new(File::create(&path)?);
    for entry in &files {
        let Kind::File { mode, content } = &entry.kind else { continue };
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(9))
            .last_modified_time(DateTime::default())
            .unix_permissions(*mode | 0o100_000);
        archive.start_file(&entry.path, options)?;
        archive.write_all(content)?;
    }
    archive.finish()?;
    Ok(path)
}

/// As RFC 4648 has it for URLs, without the padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut word = [0; 3];
        word[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        for place in 0..=group.len() {
            text.push(char::from(LETTERS[(bits >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_that_of_the_rfc() {
        assert_eq!(
            ["f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes())),
            ["Zg", "Zm8", "Zm9v", "Zm9vYg"]
        );
        assert_eq!(base64(&[0xff, 0xef]), "_-8");
    }
}
