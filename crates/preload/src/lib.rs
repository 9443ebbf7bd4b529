//! `libferroce_preload.so`: shows programs the entries of `/sys` and `/dev` that an RDMA device has, for those that look
//! there instead of asking the library.
//!
//! In here: the tree (`tree`), and the C library's functions that take a path or a directory, which answer for the
//! tree and pass everything else on. Out of here: devices and their attributes (`ferroce_netdev`), verbs.
//!
//! Nothing is mounted or written to a disk, so nothing can be left behind. An attribute is opened as a sealed memfd
//! with its text, a directory as an empty memfd, a device node as `/dev/null`. A memfd of ours is recognized by its name,
//! which contains the entry's path, and a mode that no other file has. Both survive `dup`, `fork` and `exec`, so the library
//! doesn't have to track `close`. (`close` and its relatives are intercepted too, but only to protect the
//! descriptors of libibverbs.so.1: see `close`.) A real directory, in a private mount, would need a user namespace, which
//! containers refuse; one on a tmpfs would outlive a killed process.
//!
//! A call for another path costs a check of its first bytes (so an invalid pointer faults here instead of returning
//! EFAULT; NULL does return EFAULT). A relative path is checked only after the system has refused it. The devices are read from
//! the kernel (routing netlink) when one of our paths is used, and again once the answer is 20 ms old. Not covered: system calls
//! made without the C library (Go, static programs).
//!
//! A counter is a sum over the processes that use the device, which are asked when it is opened (`counted`).

mod access;
mod chdir;
mod close;
pub mod counted;
mod cwd;
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
