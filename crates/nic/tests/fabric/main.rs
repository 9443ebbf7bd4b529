//! The rendezvous and the fabrics `udp` and `shm` against a real kernel and real processes: each test runs itself again in a network
//! and PID namespace of its own, made without privileges. Where that is refused a test says so and does nothing.

mod hostile;
mod member;
mod namespace;
mod packets;
#[path = "../verbs/pair.rs"]
#[allow(dead_code, reason = "there is more in it, for other tests")]
mod pair;
mod peer;
mod rendezvous;
mod scribble;
mod udp;
mod wait;
