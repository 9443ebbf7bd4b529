//! Files that a process writes what is its user's: packets, findings.
//!
//! Any user can make a file, or a link to one, in a directory like `/tmp` before another user's program opens it there. What is
//! written to a file can be read by its owner, so a file of another user is refused, and so is a way to a file by a link of
//! another user. A file that is made here is its user's alone.

use crate::sys;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file to write to, as `options` say.
///
/// # Errors
/// Those of opening; the file, or a link that `path` names, is another user's. Nothing is changed then.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(0o600).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        check(&metadata)?;
    }
    // After it was opened: before, the name could still have become a link.
    let named = std::fs::symlink_metadata(path)?;
    if named.is_symlink() {
        check(&named)?;
    }
    Ok(file)
}

/// Root reads and writes what it likes.
fn check(metadata: &Metadata) -> io::Result<()> {
    let owner = metadata.uid();
    if owner == 0 || owner == sys::user_id() || owner == sys::real_user_id() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "it belongs to user {owner}, who could read or redirect what is written there"
    )))
}
