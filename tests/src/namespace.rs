//! The system calls that put a child process into namespaces.
//!
//! Everything here runs between fork and exec, so it makes system calls and nothing else: no allocation, no locks.
//! Two ways lead to the same place. As root: network and mount namespaces in the initial user namespace, and the
//! programs under test give up root. As an ordinary user: the same inside a user namespace that maps the user to
//! itself, so that the programs under test hold no capability there either.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

/// The user that programs under test run as when the tests are run by root: `nobody`.
pub const NOBODY: libc::uid_t = 65534;

/// Whether the tests are run by root.
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// The `uid_map` and `gid_map` lines that map the current user to itself.
#[derive(Clone)]
pub struct Maps {
    uid: Vec<u8>,
    gid: Vec<u8>,
}

impl Maps {
    /// Prepared before fork, because formatting allocates.
    pub fn current() -> Self {
        // SAFETY: neither call has preconditions.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        Self { uid: format!("{uid} {uid} 1\n").into_bytes(), gid: format!("{gid} {gid} 1\n").into_bytes() }
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn write_file(path: &CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: `path` is NUL-terminated and `bytes` is valid for its length.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        check(fd)?;
        let written = libc::write(fd, bytes.as_ptr().cast(), bytes.len());
        let error = io::Error::last_os_error();
        libc::close(fd);
        if written == bytes.len() as isize { Ok(()) } else { Err(error) }
    }
}

fn mount_tmpfs(target: &CStr) -> io::Result<()> {
    // SAFETY: all pointers are NUL-terminated strings.
    check(unsafe {
        libc::mount(
            c"tmpfs".as_ptr(),
            target.as_ptr(),
            c"tmpfs".as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV,
            c"mode=1777".as_ptr().cast(),
        )
    })
}

/// Makes the calling process the keeper of new network and mount namespaces with empty `/run`, `/tmp` and `/dev/shm`.
///
/// `user_namespace` is the one to join; `None` makes a new one unless the caller is root.
pub fn become_keeper(user_namespace: Option<RawFd>, maps: &Maps, root: bool) -> io::Result<()> {
    // SAFETY: plain system calls on this (single-threaded, just forked) process.
    unsafe {
        check(libc::setpgid(0, 0))?;
        if let Some(fd) = user_namespace {
            check(libc::setns(fd, libc::CLONE_NEWUSER))?;
        } else if !root {
            check(libc::unshare(libc::CLONE_NEWUSER))?;
            write_file(c"/proc/self/setgroups", b"deny")?;
            write_file(c"/proc/self/uid_map", &maps.uid)?;
            write_file(c"/proc/self/gid_map", &maps.gid)?;
        }
        check(libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS))?;
        check(libc::mount(
            std::ptr::null(),
            c"/".as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        ))?;
    }
    mount_tmpfs(c"/run")?;
    mount_tmpfs(c"/tmp")?;
    mount_tmpfs(c"/dev/shm")?;
    die_with_parent()
}

/// The namespaces of a host, as open files.
#[derive(Clone, Copy)]
pub struct Doors {
    /// The user namespace; `None` when the tests are run by root.
    pub user: Option<RawFd>,
    /// The network namespace.
    pub net: RawFd,
    /// The mount namespace.
    pub mount: RawFd,
}

/// With which rights a process enters a host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// As an ordinary user without capabilities: programs under test.
    Ordinary,
    /// With the capabilities over the namespace: `ip`, `nft`.
    Admin,
}

/// Moves the calling process into a host, in a process group of its own, and ties it to its parent's life.
pub fn enter(doors: Doors, rights: Rights) -> io::Result<()> {
    // SAFETY: plain system calls on this (single-threaded, just forked) process.
    unsafe {
        check(libc::setpgid(0, 0))?;
        if let Some(user) = doors.user {
            check(libc::setns(user, libc::CLONE_NEWUSER))?;
        }
        check(libc::setns(doors.net, libc::CLONE_NEWNET))?;
        check(libc::setns(doors.mount, libc::CLONE_NEWNS))?;
        check(libc::chdir(c"/tmp".as_ptr()))?;
        match (rights, doors.user) {
            (Rights::Admin, Some(_)) => keep_capabilities_over_exec()?,
            (Rights::Ordinary, None) => {
                check(libc::setgroups(0, std::ptr::null()))?;
                check(libc::setresgid(NOBODY, NOBODY, NOBODY))?;
                check(libc::setresuid(NOBODY, NOBODY, NOBODY))?;
            }
            _ => {}
        }
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        check(libc::setrlimit(libc::RLIMIT_CORE, &no_core))?;
    }
    die_with_parent()
}

/// A change of user clears this setting, so it comes last.
fn die_with_parent() -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes one integer.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// capabilities(7): only ambient capabilities survive the exec of a user that isn't 0.
fn keep_capabilities_over_exec() -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = CapHeader { version: VERSION_3, pid: 0 };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 reads and writes exactly two `CapData`.
    unsafe {
        if libc::syscall(libc::SYS_capget, &header, data.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        for half in &mut data {
            half.inheritable = half.permitted;
        }
        if libc::syscall(libc::SYS_capset, &header, data.as_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        for capability in 0..64 {
            if data[capability / 32].permitted & (1 << (capability % 32)) != 0 {
                check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, capability, 0, 0))?;
            }
        }
    }
    Ok(())
}
