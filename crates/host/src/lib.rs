//! How the processes of a host share one QPN space and UDP port 4791, without a daemon.
//!
//! In here: slots of the QPN space, the socket group of each local address and its handover between processes,
//! requests of other processes and the services that answer them, forwarding of packets that came to the wrong process, guests
//! at an address whose port another user has, ports of the communication manager.
//! All of it lives in abstract UNIX names and open descriptors: a
//! process that ends, however it ends, leaves nothing.
//! Out of here: what packets mean, QPs, sending (`udp`), shared memory between processes (`hostlink`).
//!
//! # How it works
//! A QPN has 24 bits: a *slot* (the high 12) and an index in it. A process owns slot *s* while it holds the abstract name
//! of that slot, which no other process of any user can have. Each local address has 64 SO_REUSEPORT sockets on UDP 4791; a BPF program picks the socket by the low six
//! bits of the slot. The first process to use an address makes the sockets, all later ones get duplicates from any process
//! that has them, and each process keeps all 64 for life (closing the last duplicate of one would reorder the group). Two
//! owners can share a socket; what one of them reads for the other is forwarded.
//!
//! The *leader* (holder of one more name) is asked first by those who join. When it dies, the process that joins next takes the name. A stopped
//! leader delays a join by milliseconds.
//!
//! # Order of calls
//! 1. [`Host::join_trusting`]: once per process, and again in a child of `fork` (whose atfork handler has called
//!    [`ferroce_os::sys::close_all_after_fork`]). The process then owns a slot.
//! 2. The engine's thread puts [`Host::poll_fd`] into its `epoll` and calls [`Host::service`] when that is
//!    readable: it answers processes that join, and hands on forwarded packets. It takes at most some milliseconds.
//! 3. [`Host::sockets`] for each local address in use (at most about a second, usually under a millisecond).
//!    If the process is a guest, [`Host::group`] may have the sockets later.
//! 4. QPNs: those of a slot of [`Host::slots`]; [`Host::claim_slot`] when they run out.
//! 5. On receipt: packets for which [`Host::owns`] is false go to [`Host::forward`]. Threads that poll call
//!    [`Host::recv_forwarded`] now and then.
//!
//! All methods may be called from any thread. None is a cancellation point.

#![forbid(unsafe_code)]

mod attendance;
mod encoding;
mod epoll;
mod error;
mod exposed;
mod foreign_holders;
mod forward;
pub mod frame;
mod full_queues;
mod gids;
mod group;
mod guests;
mod handover;
mod joining;
mod names;
mod notice;
mod openers;
mod port_address;
mod port_table;
mod ports;
mod process;
mod services;
mod serving;
mod slots;
mod tracer;
mod trust;
mod user;
mod watch;

pub use error::{Holder, HostError};
pub use foreign_holders::{ForeignHolders, foreign_holders};
pub use forward::ForwardStats;
pub use gids::gid_table;
pub use gids::{GidTables, KIND_GIDS};
pub use group::{OpenSocket, SocketGroup, is_held};
pub use names::{ListedSlots, listings};
pub use openers::{is_process_of, openers_of};
pub use port_address::{PortAddress, PortError};
pub use ports::{AtPort, Delivery, Destination, HeldPort, NameHolder};
pub use process::Host;
pub use services::{RequestHandler, Services};
pub use tracer::{KIND_TRACE, TracerConnection};
pub use trust::Trust;
pub use user::is_of_this_user;
pub use watch::{KIND_WATCH, QueriedProcess, QueryResult, ask_all, is_stopped};
