//! Processes of a host and the fabrics `udp` and `shm` against a real kernel and real processes: each test runs itself again in a network
//! and PID namespace of its own, made without privileges. Where the kernel refuses that, a test is skipped.

mod alone;
mod flush;
mod host;
mod hostile;
mod keeping;
mod lifelines;
mod member;
mod messages;
mod packets;
mod peer;
mod placing;
mod ports;
#[path = "../verbs/receiver.rs"]
mod receiver;
mod reset;
mod scribble;
mod short_ways;
mod shown;
#[path = "../verbs/side.rs"]
mod side;
mod targets;
mod udp;
mod xrc;

/// Namespaces, and the helpers in them.
mod namespace {
    use super::{flush, member, peer, targets, xrc};
    use ferroce_tests::helper::{self, Role};
    use ferroce_tests::inside;

    const ROLES: &[Role] = &[
        ("creator", targets::creator),
        ("listener", flush::listener),
        ("member", member::serve),
        ("peer", peer::peer),
        ("receiver", xrc::receiver),
    ];

    /// Runs `body` in namespaces of its own, or the role of a helper.
    pub fn in_namespace(test: &str, body: fn()) {
        if !helper::play(ROLES) {
            inside::in_namespace(test, body);
        }
    }

    /// The same without a user namespace: only root can, and has other users there.
    pub fn in_root_namespace(test: &str, body: fn()) {
        if !helper::play(ROLES) {
            inside::run("-npf", test, body);
        }
    }
}
