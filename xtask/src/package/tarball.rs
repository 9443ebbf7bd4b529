//! A tarball that can be unpacked anywhere.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use super::Release;
use super::tree::{Kind, Tree, directories};

/// Writes `directory/NAME.tar.gz`, which has everything below `NAME/`.
pub fn write(directory: &Path, name: &str, tree: &Tree, release: &Release) -> io::Result<PathBuf> {
    let path = directory.join(format!("{name}.tar.gz"));
    pack(File::create(&path)?, name, tree, release)?;
    Ok(path)
}

/// Writes a packed archive of the tree below `name`.
pub fn pack(to: impl Write, name: &str, tree: &Tree, release: &Release) -> io::Result<()> {
    let packed = GzBuilder::new().mtime(0).write(to, Compression::best());
    let mut archive = Builder::new(packed);
    let header = |kind: EntryType, mode: u32, size: usize| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_mtime(release.time);
        header.set_uid(0);
        header.set_gid(0);
        header
    };
    let mut folders = vec![name.to_owned()];
    folders.extend(directories(tree).iter().map(|folder| format!("{name}/{folder}")));
    for folder in folders {
        archive.append_data(&mut header(EntryType::Directory, 0o755, 0), folder, io::empty())?;
    }
    for entry in tree {
        let within = format!("{name}/{}", entry.path);
        match &entry.kind {
            Kind::File { mode, content } => {
                let mut header = header(EntryType::Regular, *mode, content.len());
                archive.append_data(&mut header, within, content.as_slice())?;
            }
            Kind::Link { target } => {
                archive.append_link(&mut header(EntryType::Symlink, 0o777, 0), within, target)?;
            }
        }
    }
    archive.into_inner()?.finish()?.flush()
}
