//! `librdmacm.so.1` on Ferroce's communication manager: ids, event channels and the queue pairs that the library leads through a
//! connection.
//!
//! The code is linked into `libibverbs.so.1`, which has the one adapter and the one communication manager of a process;
//! `librdmacm.so.1` jumps to it (`link/`, run by xtask). Out of here: messages, ports and timers (`ferroce_connect`), verbs
//! (`ferroce_ibverbs`), sockets over RDMA (`rsocket`). `symbols.tsv` is the one table of exports.

mod address;
mod addrinfo;
mod agreed;
mod bind;
mod block;
mod channel;
mod connect;
mod deliver;
mod devices;
mod early;
mod ep;
mod event;
mod explained;
mod group;
mod id;
mod id_addrinfo;
mod later;
mod leaving;
mod multicast;
mod names;
mod news;
mod option;
mod place;
mod qp;
mod resolve;
mod sink;
mod sync;

mod unacked;
mod wait;

pub use ferroce_abi::cma as abi;
