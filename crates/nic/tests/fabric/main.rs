//! The rendezvous and the `udp` fabric against a real kernel and real processes: each test runs itself again in a network
//! and PID namespace of its own, made without privileges. Where that is refused a test says so and does nothing.

mod member;
mod namespace;
mod packets;
mod rendezvous;
mod udp;
mod wait;
