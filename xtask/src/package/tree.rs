//! The files of an installation, below a prefix such as `/usr`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::{fs, io};

use crate::dist::{Machine, baseline};

/// A file or a link.
pub struct Entry {
    /// Relative to the prefix.
    pub path: String,
    pub kind: Kind,
}

pub enum Kind {
    File { mode: u32, content: Vec<u8> },
    Link { target: String },
}

pub type Tree = Vec<Entry>;

impl Entry {
    pub fn file(path: &str, mode: u32, content: Vec<u8>) -> Self {
        Self { path: path.into(), kind: Kind::File { mode, content } }
    }
}

/// The directories above the entries, each once and before what is in it.
pub fn directories(tree: &Tree) -> Vec<String> {
    let mut all: Vec<String> = tree
        .iter()
        .flat_map(|entry| Path::new(&entry.path).ancestors().skip(1))
        .map(|path| path.display().to_string())
        .filter(|path| !path.is_empty())
        .collect();
    all.sort();
    all.dedup();
    all
}

/// The tree of `dist` without debug information, and the files of that, where a debugger looks for them. Intermediate files go
/// to `scratch`.
///
/// # Errors
/// binutils are missing, or a file can't be read or written.
pub fn collect(machine: &Machine, dist: &Path, scratch: &Path) -> io::Result<(Tree, Tree)> {
    let (mut tree, mut debug) = (Tree::new(), Tree::new());
    fs::create_dir_all(scratch)?;
    add(machine, dist, dist, scratch, &mut tree, &mut debug)?;
    Ok((tree, debug))
}

fn add(
    machine: &Machine,
    root: &Path,
    directory: &Path,
    scratch: &Path,
    tree: &mut Tree,
    debug: &mut Tree,
) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let relative = path.strip_prefix(root).map_err(io::Error::other)?.display().to_string();
        let kind = path.symlink_metadata()?;
        if kind.is_dir() {
            add(machine, root, &path, scratch, tree, debug)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&path)?.display().to_string();
            tree.push(Entry { path: relative, kind: Kind::Link { target } });
        } else if relative.starts_with("share/") {
            tree.push(Entry::file(&relative, 0o644, fs::read(&path)?));
        } else {
            let name = path.file_name().unwrap_or_default().display().to_string();
            expect_baseline(machine, &path)?;
            let (lean, information) = strip(machine, &path, &name, scratch)?;
            let beside = Path::new(&relative).with_file_name(".debug").join(format!("{name}.debug"));
            debug.push(Entry::file(&beside.display().to_string(), 0o644, information));
            let mode = if kind.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 };
            tree.push(Entry::file(&relative, mode, lean));
        }
    }
    Ok(())
}

/// No symbol of a newer C library is needed, whatever this machine's tests have looked at.
fn expect_baseline(machine: &Machine, path: &Path) -> io::Result<()> {
    let table = super::output(machine.binutil("objdump").arg("-T").arg(path))?;
    let needed = table.lines().filter(|line| line.contains("*UND*")).flat_map(str::split_whitespace);
    for node in needed.map(|word| word.trim_matches(['(', ')'])) {
        if baseline::version(node).is_some_and(|version| (version.0, version.1) > baseline::GLIBC) {
            return Err(io::Error::other(format!("{} needs {node}", path.display())));
        }
    }
    Ok(())
}

/// A program or library without what only a debugger reads, and that.
fn strip(machine: &Machine, path: &Path, name: &str, scratch: &Path) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let (lean, information) = (scratch.join(name), scratch.join(format!("{name}.debug")));
    super::output(machine.binutil("objcopy").arg("--only-keep-debug").arg(path).arg(&information))?;
    let link = format!("--add-gnu-debuglink={}", information.display());
    super::output(machine.binutil("objcopy").args(["--strip-all", &link]).arg(path).arg(&lean))?;
    Ok((fs::read(lean)?, fs::read(information)?))
}
