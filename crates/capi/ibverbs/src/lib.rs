//! `libibverbs.so.1` on Ferroce's adapter: one thin function per export, which converts, calls
//! [`ferroce_nic`] and converts back.
//!
//! Out of here: how anything works (`nic`), symbol versions and linking (`link/`, run by xtask). `symbols.tsv` is
//! the one table of exports. What inline code of the header calls through is set in `context`.

mod advise;
mod ah;
mod buf;
pub mod call;
pub mod calls;
pub mod check;
mod checked;
mod comp_cntr;
mod context;
mod counters;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod dmah;
mod domain;
mod events;
mod flow;
mod import;
mod kernel;
mod load;
mod log;
mod mcast;
mod memory;
mod mw;
mod names;
mod object;
mod poll;
mod post;
mod qp;
mod query;
mod reg_ex;
mod srq;
mod tags;
mod unsupported;
mod wq;
mod wr;
mod xrc;

pub use ferroce_abi::verbs as abi;
