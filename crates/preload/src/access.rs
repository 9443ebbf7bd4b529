//! access(2) and its family; extended attributes, which no entry has (`ls -l` asks for them).

use std::ffi::{c_char, c_int, c_void};

use libc::AT_FDCWD;

use crate::path::by_path;
use crate::real::real;
use crate::tree::{FoundNode, Last, Node};

fn permits(found: &FoundNode<'_>, wanted: c_int) -> Result<c_int, c_int> {
    let granted = match found.node {
        Node::Directory(_) | Node::Passage(_) => libc::R_OK | libc::X_OK,
        Node::File(_) | Node::Counter { .. } | Node::NoValue => libc::R_OK,
        Node::Device { .. } => libc::R_OK | libc::W_OK,
        Node::Link(_) => libc::R_OK | libc::W_OK | libc::X_OK,
    };
    if wanted & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
        return Err(libc::EINVAL);
    }
    if wanted & !granted == 0 { Ok(0) } else { Err(libc::EACCES) }
}

macro_rules! accesses {
    ($($symbol:literal $name:ident = $real:literal;)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, wanted: c_int) -> c_int {
            by_path(
                AT_FDCWD,
                path,
                Last::Follow,
                |path| real!($real, fn(*const c_char, c_int) -> c_int, (path, wanted)),
                |found| permits(found, wanted),
            )
        }
    )*};
}

accesses! {
    "ferroce_p_access" access = c"access";
    "ferroce_p_eaccess" eaccess = c"eaccess";
    "ferroce_p_euidaccess" euidaccess = c"euidaccess";
}

#[unsafe(export_name = "ferroce_p_faccessat")]
unsafe extern "C-unwind" fn faccessat(
    base: c_int,
    path: *const c_char,
    wanted: c_int,
    flags: c_int,
) -> c_int {
    let last = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { Last::Keep } else { Last::Follow };
    by_path(
        base,
        path,
        last,
        |path| {
            real!(c"faccessat", fn(c_int, *const c_char, c_int, c_int) -> c_int, (base, path, wanted, flags))
        },
        |found| permits(found, wanted),
    )
}

macro_rules! attribute_values {
    ($($symbol:literal $name:ident = $real:literal, $last:ident;)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            attribute: *const c_char,
            value: *mut c_void,
            room: usize,
        ) -> isize {
            by_path(
                AT_FDCWD,
                path,
                Last::$last,
                |path| {
                    real!(
                        $real,
                        fn(*const c_char, *const c_char, *mut c_void, usize) -> isize,
                        (path, attribute, value, room)
                    )
                },
                |_| Err(libc::ENOTSUP),
            )
        }
    )*};
}

attribute_values! {
    "ferroce_p_getxattr" getxattr = c"getxattr", Follow;
    "ferroce_p_lgetxattr" lgetxattr = c"lgetxattr", Keep;
}

macro_rules! attribute_lists {
    ($($symbol:literal $name:ident = $real:literal, $last:ident;)*) => {$(
        #[unsafe(export_name = $symbol)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, list: *mut c_char, room: usize) -> isize {
            by_path(
                AT_FDCWD,
                path,
                Last::$last,
                |path| real!($real, fn(*const c_char, *mut c_char, usize) -> isize, (path, list, room)),
                |_| Ok(0),
            )
        }
    )*};
}

attribute_lists! {
    "ferroce_p_listxattr" listxattr = c"listxattr", Follow;
    "ferroce_p_llistxattr" llistxattr = c"llistxattr", Keep;
}
