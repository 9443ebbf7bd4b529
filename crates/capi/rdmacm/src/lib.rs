//! `librdmacm.so.1` on Ferroce's communication manager: ids, event channels and the queue pairs that the library leads through a
//! connection.
//!
//! The code is linked into `libibverbs.so.1`, which has the one adapter and the one communication manager of a process;
//! `librdmacm.so.1` jumps to it (`link/`, run by xtask). Out of here: messages, ports and timers (`ferroce_connect`), verbs
//! (`ferroce_ibverbs`), sockets over RDMA (`capi/rsocket`). `symbols.tsv` is the one table of exports.

mod address;
mod addrinfo;
mod agreed;
mod bind;
mod channel;
mod connect;
mod deliver;
mod devices;
mod ep;
mod event;
mod explained;
mod id;
mod later;
mod leaving;
mod multicast;
mod names;
mod option;
mod qp;
mod resolve;
mod sync;
mod unacked;
mod wait;

pub use ferroce_abi::cma as abi;
