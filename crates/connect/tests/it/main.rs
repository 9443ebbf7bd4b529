//! Connections between real processes: each test runs itself again in a network and PID namespace of its own, made without
//! privileges. Where that is refused, a test prints so and ends.

mod connections;
mod flood;
mod forged;
mod peer;
mod ports;

/// Namespaces, and the helpers in them.
mod namespace {
    use ferroce_tests::{helper, inside};

    /// Runs `body` in namespaces of its own, or as a peer.
    pub fn in_namespace(test: &str, body: fn()) {
        if !helper::play(&[("peer", super::peer::serve)]) {
            inside::in_namespace(test, body);
        }
    }
}
