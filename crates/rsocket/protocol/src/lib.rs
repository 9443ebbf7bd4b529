//! What goes over a connection of rsockets, without I/O: formats ([`wire`]), the accounts of a connection ([`flow`]) and its ends ([`ends`]).

pub mod ends;
pub mod flow;
pub mod runs;
pub mod wire;
