//! Verbs objects in one process, over the `local` fabric and over sockets: each test runs in a namespace of its own.

mod errors;
mod events;
mod idle;
mod multicast;
mod mw;
mod pair;
mod queues;
mod receiver;
mod receives;
mod shared;
mod side;
mod stress;
mod transfer;
mod xrc;

use ferroce_tests::inside as namespace;
