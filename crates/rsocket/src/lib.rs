//! rsockets: the calls of sockets over RDMA, as librdmacm has them. Wire-compatible with those of rdma-core.
//!
//! In here: sockets, by the C interfaces of librdmacm and libibverbs only, so that they run over anybody's. Out of here: what goes over
//! a connection (`protocol`), refusals, waiting and signals (`calls`), those interfaces, symbol versions and linking. `librdmacm.so.1` has
//! the exports.

pub mod abi;
mod connection;
mod core;
mod datagram;
mod exports;
mod front;
mod handle;
mod options;
mod poll;
mod repoll;
mod service;
mod stream;
mod table;
mod verbs;
