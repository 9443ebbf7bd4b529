//! Files that a process writes what is its user's: packets, findings.
//!
//! Any user can make a file, or a link to one, in a directory like `/tmp` before another user's program opens it there, and can
//! change a link at any time. The owner of a file can read what is written to it, and the owner of a link chooses which file is
//! written to. So a file of another user is refused, and so is each link of another user on the way to a file. A link is held by a
//! descriptor from the check of its owner until its target has been read, and each name is looked up in a directory that is held in
//! the same way.
//!
//! Hard links are up to the kernel (`fs.protected_hardlinks`): a file has one owner under all its names.

use crate::sys;
use std::ffi::{CStr, CString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Links that are followed, and names that change during their look-up, at most: as many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// Opens a file to write to, and makes it if there is none. `flags` are those of `open(2)`. A FIFO that no process reads isn't waited
/// for, and writing to one whose reader has stopped gives EAGAIN, as with a terminal or a device.
///
/// # Errors
/// Those of opening; the file, or a link that leads to it, is another user's. Nothing is made and nothing is written then.
pub fn open(path: &Path, flags: libc::c_int) -> io::Result<File> {
    walk(path, flags, true, &mut || ())
}

/// The same with a file that is there.
///
/// # Errors
/// As of [`open`].
pub fn open_existing(path: &Path, flags: libc::c_int) -> io::Result<File> {
    walk(path, flags, false, &mut || ())
}

/// Follows a path name by name. `between` is called before each look-up of a name.
fn walk(path: &Path, flags: libc::c_int, makes: bool, between: &mut dyn FnMut()) -> io::Result<File> {
    let mut look_up = |directory: RawFd, name: &CStr, flags: libc::c_int| {
        between();
        open_at(directory, name, flags)
    };
    let mut directory = None;
    // The next name is the last one here.
    let mut names = Vec::new();
    enter(path.as_os_str().as_bytes(), &mut directory, &mut names)?;
    let mut links = MOST_LINKS;
    while let Some(name) = names.pop() {
        let at = directory.as_ref().map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
        let is_last = names.is_empty();
        if is_last {
            match look_up(at, &name, flags | libc::O_NONBLOCK | libc::O_NOFOLLOW) {
                Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {}
                Err(error) if makes && error.kind() == io::ErrorKind::NotFound => {
                    // Makes nothing behind a link.
                    match look_up(at, &name, flags | libc::O_CREAT | libc::O_EXCL) {
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                        made => return made,
                    }
                }
                opened => return accept(opened?),
            }
        }
        let found = match look_up(at, &name, libc::O_PATH | libc::O_NOFOLLOW) {
            // It was there just now.
            Err(error) if makes && is_last && error.kind() == io::ErrorKind::NotFound => None,
            found => Some(found?),
        };
        let metadata = found.as_ref().map(File::metadata).transpose()?;
        match (found, metadata) {
            (Some(link), Some(metadata)) if metadata.is_symlink() => {
                check(&metadata)?;
                if !is_of_kernel(&link)? {
                    enter(&sys::read_link_at(link.as_raw_fd(), c"")?, &mut directory, &mut names)?;
                } else if is_last {
                    return accept(look_up(at, &name, flags | libc::O_NONBLOCK)?);
                } else {
                    directory = Some(look_up(at, &name, libc::O_PATH | libc::O_DIRECTORY)?);
                }
            }
            (Some(found), _) if !is_last => {
                directory = Some(found);
                continue;
            }
            // The link has gone.
            _ => names.push(name),
        }
        links = links.checked_sub(1).ok_or_else(|| io::Error::from_raw_os_error(libc::ELOOP))?;
    }
    Err(io::Error::from_raw_os_error(libc::ENOENT))
}

/// Adds the names of a path to those that are to be looked up. An absolute path begins at the root directory.
fn enter(path: &[u8], directory: &mut Option<File>, names: &mut Vec<CString>) -> io::Result<()> {
    if path.starts_with(b"/") {
        *directory = Some(open_at(libc::AT_FDCWD, c"/", libc::O_PATH | libc::O_DIRECTORY)?);
    }
    // A path that ends with a slash is a directory's.
    let end = path.ends_with(b"/").then_some(&b"."[..]);
    for name in end.into_iter().chain(path.rsplit(|&byte| byte == b'/')).filter(|name| !name.is_empty()) {
        names.push(CString::new(name)?);
    }
    Ok(())
}

fn open_at(directory: RawFd, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    loop {
        let flags = flags | libc::O_CLOEXEC | libc::O_LARGEFILE;
        // SAFETY: a C string.
        let fd = unsafe { libc::syscall(libc::SYS_openat, directory, name.as_ptr(), flags, 0o600) };
        if fd >= 0 {
            // SAFETY: just made, and not owned.
            return Ok(unsafe { File::from_raw_fd(fd as RawFd) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Links of `/proc` lead to what has no path as well (pipes), and only the kernel makes them: it also follows them.
fn is_of_kernel(link: &File) -> io::Result<bool> {
    // SAFETY: all-zero bytes are a valid statfs.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor, and room for a statfs.
    if unsafe { libc::fstatfs(link.as_raw_fd(), &raw mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat.f_type == libc::PROC_SUPER_MAGIC)
}

/// Takes a file, if it isn't another user's.
fn accept(file: File) -> io::Result<File> {
    let metadata = file.metadata()?;
    // A terminal belongs to the user who has logged in, and `/dev/null` to root.
    if !metadata.file_type().is_char_device() {
        check(&metadata)?;
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
        "it belongs to user {owner}, which could read or redirect what is written there"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::{OpenOptionsExt, chown, lchown, symlink};
    use std::path::PathBuf;

    const APPEND: libc::c_int = libc::O_WRONLY | libc::O_APPEND;
    /// Another user.
    const OTHER: u32 = 12345;

    /// A directory of a test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ferroce-own-file-{name}-{}", std::process::id()));
            fs::create_dir(&path).expect("a new directory");
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn links_of_this_user_lead_to_files_new_and_old() {
        let directory = Directory::new("links");
        let at = |name: &str| directory.0.join(name);
        symlink("second", at("first")).expect("a link");
        symlink(at("file"), at("second")).expect("a link");
        for _ in 0..2 {
            open(&at("first"), APPEND).expect("this user's links");
            assert!(at("file").symlink_metadata().expect("a file").is_file());
        }
        symlink("round", at("round")).expect("a link");
        let error = open(&at("round"), APPEND).expect_err("it leads to itself");
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        let error = open_existing(&at("none"), APPEND).expect_err("no file");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn no_file_is_made_behind_a_link_of_another_user() {
        if sys::user_id() != 0 {
            return;
        }
        let directory = Directory::new("dangling");
        let at = |name: &str| directory.0.join(name);
        symlink(at("file"), at("link")).expect("a link");
        lchown(at("link"), Some(OTHER), None).expect("root may");
        let error = open(&at("link"), APPEND).expect_err("another user's");
        assert!(error.to_string().contains("user 12345"), "{error}");
        assert!(at("file").symlink_metadata().is_err(), "a file was made");
    }

    /// What the name of a file is at some time.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Is {
        Nothing,
        OwnFile,
        OwnLink,
        /// Of another user, and where to.
        Link(&'static str),
    }

    impl Is {
        fn make(self, directory: &Path) {
            let name = directory.join("name");
            let _ = fs::remove_file(&name);
            match self {
                Self::Nothing => {}
                Self::OwnFile => fs::write(&name, "").expect("a file"),
                Self::OwnLink => symlink("elsewhere", &name).expect("a link"),
                Self::Link(target) => {
                    symlink(target, &name).expect("a link");
                    lchown(&name, Some(OTHER), None).expect("root may");
                }
            }
        }
    }

    /// The name becomes a link of another user, and something else again, at any two times while it is looked up.
    #[test]
    fn name_that_changes_meanwhile_leads_to_no_file_of_another_users_choice() {
        if sys::user_id() != 0 {
            return;
        }
        let mut opened = 0;
        for target in ["precious", "new"] {
            for first in [Is::Nothing, Is::OwnFile, Is::OwnLink, Is::Link("void")] {
                for last in [Is::Nothing, Is::OwnFile, Is::OwnLink, Is::Link(target)] {
                    for [change, back] in (0..8).flat_map(|at| (at + 1..9).map(move |back| [at, back])) {
                        let directory = Directory::new("changes");
                        let at = |name: &str| directory.0.join(name);
                        fs::write(at("precious"), "").expect("a file");
                        first.make(&directory.0);
                        let mut looked_up = 0;
                        let result = walk(&at("name"), APPEND, true, &mut || {
                            let other = Is::Link(target);
                            [(change, other), (back, last)]
                                .iter()
                                .filter(|(at, _)| *at == looked_up)
                                .for_each(|(_, is)| is.make(&directory.0));
                            looked_up += 1;
                        });
                        opened += usize::from(result.is_ok());
                        if let Ok(mut file) = result {
                            io::Write::write_all(&mut file, b"packets").expect("it is open");
                        }
                        let case = format!("{first:?}, {target} at {change}, {last:?} at {back}");
                        assert!(!at("new").exists(), "a file was made: {case}");
                        let written = fs::read(at("precious")).expect("a file");
                        assert_eq!(written, b"", "precious was written to: {case}");
                    }
                }
            }
        }
        assert!(opened > 100, "{opened} were opened");
    }

    #[test]
    fn directory_that_is_a_link_of_another_user_is_not_entered() {
        if sys::user_id() != 0 {
            return;
        }
        let directory = Directory::new("way");
        let at = |name: &str| directory.0.join(name);
        fs::create_dir(at("real")).expect("a directory");
        symlink("real", at("way")).expect("a link");
        symlink("way/file", at("link")).expect("a link");
        for name in ["way/file", "link"] {
            open(&at(name), APPEND).expect("this user's links");
            assert!(at("real/file").is_file());
            fs::remove_file(at("real/file")).expect("it was made");
        }
        lchown(at("way"), Some(OTHER), None).expect("root may");
        for name in ["way/file", "link"] {
            let error = open(&at(name), APPEND).expect_err("another user's");
            assert!(error.to_string().contains("user 12345"), "{error}");
        }
        assert!(!at("real/file").exists(), "a file was made");
    }

    #[test]
    fn links_of_the_kernel_lead_to_what_has_no_path() {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, which are new and not owned.
        let [_reader, writer] = unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            ends.map(|end| File::from_raw_fd(end))
        };
        let path = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
        let opened = open(&path, APPEND).expect("this process's pipe");
        let inode = |file: &File| file.metadata().expect("it is open").ino();
        assert_eq!(inode(&opened), inode(&writer));
        let directory = Directory::new("cwd");
        let held = File::open(&directory.0).expect("a directory");
        open(&PathBuf::from(format!("/proc/self/fd/{}/file", held.as_raw_fd())), APPEND).expect("a file");
        assert!(directory.0.join("file").is_file());
    }

    #[test]
    fn path_of_a_directory_is_no_files() {
        let directory = Directory::new("slash");
        let errno = |path: &Path| open(path, APPEND).expect_err("not a file's").raw_os_error();
        assert_eq!(errno(Path::new("/")), Some(libc::EISDIR));
        assert_eq!(errno(&directory.0.join("")), Some(libc::EISDIR));
        assert_eq!(errno(&directory.0.join("none/")), Some(libc::ENOENT));
        assert_eq!(errno(Path::new("")), Some(libc::ENOENT));
        fs::write(directory.0.join("file"), "").expect("a file");
        assert_eq!(errno(&directory.0.join("file/")), Some(libc::ENOTDIR));
    }

    struct Fifo(PathBuf);

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
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_fifo_without_a_reader_is_an_error_and_is_not_waited_for() {
        let fifo = Fifo::new("unread");
        let error = open(&fifo.0, APPEND).expect_err("no process reads");
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
        open(&fifo.0, APPEND).expect("this user's");
        chown(&fifo.0, Some(OTHER), None).expect("root may");
        let error = open(&fifo.0, APPEND).expect_err("another user's");
        assert!(error.to_string().contains("user 12345"), "{error}");
    }
}
