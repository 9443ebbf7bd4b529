//! Files that a process writes what is its user's: packets, findings.
//!
//! Any user can make a file, or a link to one, in a directory like `/tmp` before another user's program opens it there. What is
//! written to a file can be read by its owner, so a file of another user is refused, and so is a way to a file by a link of
//! another user. A file that is made here is its user's alone.

use crate::sys;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file to write to, as `options` say. A FIFO that no process reads isn't waited for.
///
/// # Errors
/// Those of opening; the file, or a link that `path` names, is another user's. Nothing is written to it then.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(0o600).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    // A terminal belongs to the user who has logged in, and `/dev/null` to root.
    if !metadata.file_type().is_char_device() {
        check(&metadata)?;
    }
    // After it was opened: before, the name could still have become a link.
    let named = std::fs::symlink_metadata(path)?;
    if named.is_symlink() {
        check(&named)?;
    }
    // SAFETY: takes no pointer; the description is new, so no other descriptor has this flag.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    struct Fifo(std::path::PathBuf);

    impl Fifo {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ferroce-own-file-{name}-{}", std::process::id()));
            let text = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
            // SAFETY: a C string.
            assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o666) }, 0);
            Self(path)
        }
    }

    impl Drop for Fifo {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_fifo_without_a_reader_is_an_error_and_is_not_waited_for() {
        let fifo = Fifo::new("unread");
        let error = open(&fifo.0, OpenOptions::new().append(true)).expect_err("no process reads");
        assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
    }

    #[test]
    fn a_fifo_of_another_user_is_refused() {
        if sys::user_id() != 0 {
            return;
        }
        let fifo = Fifo::new("others");
        let _reader =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo.0).expect("a reader");
        open(&fifo.0, OpenOptions::new().append(true)).expect("this user's");
        std::os::unix::fs::chown(&fifo.0, Some(12345), None).expect("root may");
        let error = open(&fifo.0, OpenOptions::new().append(true)).expect_err("another user's");
        assert!(error.to_string().contains("user 12345"), "{error}");
    }
}
