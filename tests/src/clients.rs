//! A server and a client of one verbs program, on one host or on two.

use crate::{Outcome, SERVER, Sides, World};
use std::fmt;
use std::time::Duration;

/// The value of `FERROCE_FABRIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// Unset: the best fabric that both processes know.
    Any,
    /// `udp`: packets as on the wire, even between two processes of a host.
    Udp,
}

impl Fabric {
    /// The environment variables that choose it.
    pub fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Any => &[],
            Self::Udp => &[("FERROCE_FABRIC", "udp")],
        }
    }
}

/// Makes a test of each name for either fabric, in modules `any_fabric` and `udp_fabric`: `run(fabric, &[words])`.
#[macro_export]
macro_rules! on_both_fabrics {
    ($run:ident: $($name:ident: $($word:literal)+;)*) => {
        mod any_fabric {$(
            #[test]
            fn $name() {
                super::$run($crate::Fabric::Any, &[$($word),+]);
            }
        )*}
        mod udp_fabric {$(
            #[test]
            fn $name() {
                super::$run($crate::Fabric::Udp, &[$($word),+]);
            }
        )*}
    };
}

/// How to run a program that is a server without an address and a client with the server's address as last argument,
/// and whose two sides find each other over TCP.
pub struct Pair<'w> {
    world: &'w World,
    fabric: Fabric,
    options: Vec<String>,
    settings: Vec<(String, String)>,
    port: u16,
    limit: Duration,
}

impl<'w> Pair<'w> {
    /// The server on the last host of `world`, the client on the first.
    pub fn new(world: &'w World, fabric: Fabric) -> Self {
        Self {
            world,
            fabric,
            options: Vec::new(),
            settings: Vec::new(),
            port: 18515,
            limit: Duration::from_secs(60),
        }
    }

    /// Options of `ferroce run`, for both sides.
    pub fn options(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(ToString::to_string));
        self
    }

    /// An environment variable for both sides.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The limit for both sides together (60 s by default).
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs both sides to their ends.
    ///
    /// A server that doesn't get as far as listening causes no panic: the client's outcome shows what it found.
    pub fn run(&self, words: &[&str]) -> PairOutcome {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let settings: Vec<_> = self.settings.iter().map(|(name, value)| (&**name, &**value)).collect();
        let sides = Sides {
            server: words,
            client: &[words, &[SERVER]].concat(),
            port: self.port,
            options: &options,
            settings: &settings,
            limit: self.limit,
        };
        sides.run(self.world, self.fabric)
    }
}

/// How both sides ended.
pub struct PairOutcome {
    /// The side that connected.
    pub client: Outcome,
    /// The side that listened.
    pub server: Outcome,
}

impl PairOutcome {
    /// Panics with the output of both sides unless both ended by themselves with exit code 0.
    #[track_caller]
    pub fn expect_success(&self) -> &Self {
        assert!(self.client.success() && self.server.success(), "{self}");
        self
    }

    /// Panics unless both sides' standard errors are empty: with a correct program the library prints nothing.
    #[track_caller]
    pub fn expect_quiet(&self) -> &Self {
        assert!(self.client.stderr.is_empty() && self.server.stderr.is_empty(), "{self}");
        self
    }

    /// As [`Outcome::expect_only_reasons`], of both sides.
    #[track_caller]
    pub fn expect_only_reasons(&self) -> &Self {
        self.client.expect_only_reasons();
        self.server.expect_only_reasons();
        self
    }

    /// As [`Outcome::expect_only_reason`], of both sides.
    #[track_caller]
    pub fn expect_only_reason(&self, id: &str) -> &Self {
        self.client.expect_only_reason(id);
        self.server.expect_only_reason(id);
        self
    }
}

impl fmt::Display for PairOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server: {}client: {}", self.server, self.client)
    }
}
