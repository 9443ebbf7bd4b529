//! `libibverbs.so.1` on Ferroce's adapter: one thin function per export, which converts, calls
//! [`ferroce_nic`] and converts back.
//!
//! Out of here: how anything works (`nic`), symbol versions and linking (`link/`, run by xtask). `symbols.tsv` is
//! the one table of exports. What inline code of the header calls through is set in `context`.

mod advise;
mod ah;
mod buf;
pub mod calls;
mod comp_cntr;
mod context;
mod counters;
mod device;
mod dm;
mod dmah;
mod domain;
mod events;
mod flow;
mod import;
mod kernel;
mod load;
mod mcast;
mod memory;
mod names;
mod qp;
mod query;
mod reg_ex;
mod srq;
mod unsupported;
mod xrc;
