//! rsockets: the calls of sockets over RDMA, as librdmacm has them. Wire-compatible with those of rdma-core.
//!
//! In here: formats ([`wire`]), the accounts of a connection ([`flow`]) and its ends ([`ends`]), all three without I/O; sockets
//! on them, by the C interfaces of librdmacm and libibverbs only, so that they run over anybody's. Out of here: those
//! interfaces, symbol versions and linking. `librdmacm.so.1` has the exports.

pub mod abi;
mod address;
mod call;
mod connection;
mod core;
mod datagram;
pub mod ends;
mod exports;
pub mod flow;
mod front;
mod handle;
mod log;
mod options;
mod poll;
mod repoll;
mod runs;
mod service;
mod settings;
mod signals;
mod stream;
mod table;
mod this_process;
mod verbs;
mod waiting;
pub mod wire;
