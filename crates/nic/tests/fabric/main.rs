//! Processes of a host and the fabrics `udp` and `shm` against a real kernel and real processes: each test runs itself again in a network
//! and PID namespace of its own, made without privileges. Where that is refused a test says so and does nothing.

mod host;
mod hostile;
mod member;
mod packets;
mod peer;
#[path = "../verbs/receiver.rs"]
mod receiver;
mod scribble;
#[path = "../verbs/side.rs"]
mod side;
mod targets;
mod udp;
mod wait;
mod xrc;

use ferroce_tests::inside as namespace;
