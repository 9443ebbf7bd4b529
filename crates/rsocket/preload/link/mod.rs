//! Makes libferroce_rsocket_preload.so of the static library, in the way of libferroce_preload.so: each exported name jumps to
//! the Rust function behind it. It needs librdmacm.so.1, ours or the distribution's. Used by xtask through `#[path]`, so it uses
//! nothing but std.

use std::io;
use std::path::{Path, PathBuf};

use super::preload::plain_trampolines;
use super::shared_library::{self, machine::Machine};

/// The library's file name.
pub const LIBRARY: &str = "libferroce_rsocket_preload.so";

/// Prefix of the Rust functions behind the exports.
const IMPLEMENTATION_PREFIX: &str = "ferroce_s_";

/// The C library's functions that it stands before.
pub const NAMES: &[&str] = &[
    "__dprintf_chk",
    "__poll_chk",
    "__ppoll_chk",
    "__read_chk",
    "__recv_chk",
    "__recvfrom_chk",
    "__vdprintf_chk",
    "accept",
    "accept4",
    "bind",
    "close",
    "close_range",
    "closefrom",
    "connect",
    "dprintf",
    "dup",
    "dup2",
    "dup3",
    "epoll_ctl",
    "fcntl",
    "fcntl64",
    "fdopen",
    "fileno",
    "fileno_unlocked",
    "getpeername",
    "getsockname",
    "getsockopt",
    "ioctl",
    "listen",
    "poll",
    "ppoll",
    "pselect",
    "pthread_cancel",
    "pthread_create",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmsg",
    "select",
    "send",
    "sendfile",
    "sendfile64",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "socket",
    "vdprintf",
    "write",
    "writev",
];

/// Links `archive` (the crate's static library) and `rdmacm` (a librdmacm.so.1) to `directory/libferroce_rsocket_preload.so`;
/// intermediate files go to `scratch`.
///
/// # Errors
/// The C compiler is missing or refuses, or a file can't be written.
pub fn link(
    machine: &Machine,
    archive: &Path,
    rdmacm: &Path,
    scratch: &Path,
    directory: &Path,
) -> io::Result<PathBuf> {
    let script = format!("{{\n\tglobal: {};\n\tlocal: *;\n}};\n", NAMES.join("; "));
    let mut assembly = plain_trampolines(NAMES, IMPLEMENTATION_PREFIX, machine.arch())?;
    for (list, function) in [("init_array", "loaded"), ("fini_array", "ended")] {
        assembly.push_str(&format!(
            "\t.section .{list},\"aw\",%{list}\n\t.p2align 3\n\t.quad {IMPLEMENTATION_PREFIX}{function}\n"
        ));
    }
    shared_library::link(machine, LIBRARY, &[archive, rdmacm], &assembly, &script, scratch, directory)
}
