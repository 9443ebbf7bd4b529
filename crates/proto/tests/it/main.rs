//! Two queue pairs on a simulated network and a virtual clock.
//!
//! In here: what the transport promises as seen from outside, with every fault a network can have.
//! Out of here: sockets, threads and real time.

mod answering;
mod congestion;
mod crafted;
mod errors;
mod failures;
mod faults;
mod flow;
mod host;
mod hostile;
mod huge;
mod malformed;
mod model;
mod needs;
mod net;
mod one_sided;
mod placement;
mod plain;
mod psns;
mod rate;
mod repetition;
mod reports;
mod retries;
mod sans_io;
mod selective;
mod shared;
mod states;
mod tags;
mod transfer;
mod unreliable;
mod windows;
mod xrc;
