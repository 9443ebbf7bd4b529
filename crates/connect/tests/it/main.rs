//! Connections between real processes: each test runs itself again in a network and PID namespace of its own, made without
//! privileges. Where that is refused a test says so and does nothing.

mod connections;
mod flood;
mod peer;
mod ports;

use ferroce_tests::inside as namespace;
