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

/// Links that are followed to a file that doesn't exist yet.
const MOST_LINKS: usize = 8;

/// Opens a file to write to, as `options` say, and makes it if there is none. A FIFO that no process reads isn't waited for.
///
/// # Errors
/// Those of opening; the file, or a link that leads to it, is another user's. Nothing is made and nothing is written then.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        // Where there is a link, this makes no file behind it.
        match options.mode(0o600).custom_flags(0).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            new => return new,
        }
        match open_existing(&path, options) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            existing => return existing,
        }
        // A link of this user's that leads nowhere, unless the file has just been removed.
        if let Ok(target) = std::fs::read_link(&path) {
            path = path.parent().unwrap_or(Path::new("")).join(target);
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// The same with a file that is there.
///
/// # Errors
/// As of [`open`].
pub fn open_existing(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.create_new(false);
    let file = match options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            check(&std::fs::symlink_metadata(path)?)?;
            let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
            // Again: the name could have become another link meanwhile.
            check(&std::fs::symlink_metadata(path)?)?;
            file
        }
        opened => opened?,
    };
    let metadata = file.metadata()?;
    // A terminal belongs to the user who has logged in, and `/dev/null` to root.
    if !metadata.file_type().is_char_device() {
        check(&metadata)?;
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

    /// A directory of a test.
    struct Directory(std::path::PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ferroce-own-file-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).expect("a new directory");
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn links_of_this_user_lead_to_files_new_and_old() {
        let directory = Directory::new("links");
        let at = |name: &str| directory.0.join(name);
        std::os::unix::fs::symlink("second", at("first")).expect("a link");
        std::os::unix::fs::symlink(at("file"), at("second")).expect("a link");
        for _ in 0..2 {
            open(&at("first"), OpenOptions::new().append(true)).expect("this user's links");
            assert!(at("file").symlink_metadata().expect("a file").is_file());
        }
        std::os::unix::fs::symlink("round", at("round")).expect("a link");
        let error = open(&at("round"), OpenOptions::new().append(true)).expect_err("it leads to itself");
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        let error = open_existing(&at("none"), OpenOptions::new().append(true)).expect_err("no file");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn no_file_is_made_behind_a_link_of_another_user() {
        if sys::user_id() != 0 {
            return;
        }
        let directory = Directory::new("dangling");
        let at = |name: &str| directory.0.join(name);
        std::os::unix::fs::symlink(at("file"), at("link")).expect("a link");
        std::os::unix::fs::lchown(at("link"), Some(12345), None).expect("root may");
        let error = open(&at("link"), OpenOptions::new().append(true)).expect_err("another user's");
        assert!(error.to_string().contains("user 12345"), "{error}");
        assert!(at("file").symlink_metadata().is_err(), "a file was made");
    }

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
