//! `libferroce_preload.so`: shows programs the entries of `/sys` and `/dev` that an RDMA device has, for those that look
//! there instead of asking the library.
//!
//! In here: the tree (`tree`), and the C library's functions that take a path or a directory, which answer for the
//! tree and pass everything else on. Out of here: devices and their attributes (`ferroce_nic::net`), verbs.
//!
//! Nothing is mounted or written to a disk, so nothing can be left behind. An attribute is opened as a sealed memfd
//! with its text; a device node as `/dev/null`. A directory is opened as an empty memfd that bears the directory's
//! path as its name and a mode that no other file has: so it stays a directory of the tree over `dup`, `fork` and
//! `exec`, and nobody has to follow `close`. A real directory, in a private mount, would need a user namespace, which
//! containers refuse; one on a tmpfs would outlive a killed process.
//!
//! A call for another path costs a look at its first bytes. The devices are read from the kernel (routing netlink) when
//! one of our paths is asked for, and again once the answer is 20 ms old. Not covered: system calls made without the C
//! library (Go, static programs), and `chdir`.

mod access;
mod directory;
mod fds;
mod link_names;
mod listing;
mod open;
mod path;
mod real;
mod snapshot;
mod stat;
pub mod tree;
