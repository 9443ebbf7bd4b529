//! Makes libferroce_preload.so of the static library: each exported name jumps to the Rust function behind it.
//!
//! Why trampolines: a Rust function that is called `open` would be the `open` of every program that links the crate,
//! the `ferroce` command among them. Used by xtask through `#[path]`, so it uses nothing but std.

use std::io;
use std::path::{Path, PathBuf};

use super::shared_library::{self, machine::Machine};

/// The library's file name.
pub const LIBRARY: &str = "libferroce_preload.so";

/// Prefix of the Rust functions behind the exports.
const IMPLEMENTATION_PREFIX: &str = "ferroce_p_";

/// The C library's functions that the preload library overrides, and the functions by which libibverbs.so.1 configures it.
pub const NAMES: &[&str] = &[
    "__fxstat",
    "__fxstat64",
    "__fxstatat",
    "__fxstatat64",
    "__getcwd_chk",
    "__lxstat",
    "__lxstat64",
    "__open64_2",
    "__open_2",
    "__openat64_2",
    "__openat_2",
    "__readlink_chk",
    "__readlinkat_chk",
    "__realpath_chk",
    "__xstat",
    "__xstat64",
    "access",
    "canonicalize_file_name",
    "chdir",
    "close",
    "close_range",
    "closedir",
    "closefrom",
    "dirfd",
    "dup2",
    "dup3",
    "eaccess",
    "euidaccess",
    "faccessat",
    "fchdir",
    "fdopendir",
    "ferroce_protect_descriptors",
    "fopen",
    "fopen64",
    "freopen",
    "freopen64",
    "fstat",
    "fstat64",
    "fstatat",
    "fstatat64",
    "get_current_dir_name",
    "getcwd",
    "getxattr",
    "glob",
    "glob64",
    "lgetxattr",
    "listxattr",
    "llistxattr",
    "lstat",
    "lstat64",
    "open",
    "open64",
    "openat",
    "openat64",
    "opendir",
    "readdir",
    "readdir64",
    "readdir64_r",
    "readdir_r",
    "readlink",
    "readlinkat",
    "realpath",
    "rewinddir",
    "scandir",
    "scandir64",
    "seekdir",
    "stat",
    "stat64",
    "statx",
    "telldir",
];

/// Links `archive` (the crate's static library) to `directory/libferroce_preload.so`; intermediate files go to
/// `scratch`.
///
/// # Errors
/// The C compiler is missing or refuses, or a file can't be written.
pub fn link(machine: &Machine, archive: &Path, scratch: &Path, directory: &Path) -> io::Result<PathBuf> {
    let script = format!("{{\n\tglobal: {};\n\tlocal: *;\n}};\n", NAMES.join("; "));
    let assembly = plain_trampolines(NAMES, IMPLEMENTATION_PREFIX, machine.arch())?;
    shared_library::link(machine, LIBRARY, &[archive], &assembly, &script, scratch, directory)
}

/// The assembly of trampolines to functions that have the same name behind `prefix`, for `arch`.
///
/// # Errors
/// As [`jump`](shared_library::jump).
pub(super) fn plain_trampolines(names: &[&str], prefix: &str, arch: &str) -> io::Result<String> {
    let jump = shared_library::jump(arch)?;
    let mut text = String::new();
    for name in names {
        text.push_str(&format!(
            "\t.section .text.{name},\"ax\",%progbits\n\t.globl {name}\n\t.type {name}, %function\n\t.p2align 4\n\
             {name}:\n\t.cfi_startproc\n\t{jump} {prefix}{name}\n\t.cfi_endproc\n\
             \t.size {name}, .-{name}\n"
        ));
    }
    text.push_str(shared_library::END_OF_ASSEMBLY);
    Ok(text)
}
