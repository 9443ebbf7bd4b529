//! `libibverbs.so.1` on Ferroce's adapter: the C structures and one thin function per export, which converts, calls
//! [`ferroce_nic`] and converts back.
//!
//! What stays out: how anything works (`nic`), symbol versions and linking (`link/`, run by xtask). `symbols.tsv` is
//! the one table of exports.

pub mod abi;
mod call;
mod device;
mod log;
mod names;
mod unsupported;
