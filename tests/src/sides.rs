//! A server and a client that are called differently.

use crate::{Fabric, PairOutcome, World};
use std::time::{Duration, Instant};

/// Stands for the server's address among a client's words.
pub const SERVER: &str = "SERVER";

/// What a server has after its client's end, at least.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Both sides of a client-server program through `ferroce run`: the server on the last host, which listens on a TCP
/// port, the client on the first.
pub struct Sides<'a> {
    /// The server's words.
    pub server: &'a [&'a str],
    /// The client's words, in which [`SERVER`] becomes the server's address.
    pub client: &'a [&'a str],
    /// The TCP port that the server listens on.
    pub port: u16,
    /// Options of `ferroce run`, for both.
    pub options: &'a [&'a str],
    /// Environment variables of both.
    pub settings: &'a [(&'a str, &'a str)],
    /// How long both may take together.
    pub limit: Duration,
}

impl Sides<'_> {
    /// Runs both to their ends. If the server doesn't get as far as listening, the client's outcome shows what it found.
    pub fn run(&self, world: &World, fabric: Fabric) -> PairOutcome {
        let start = Instant::now();
        let settings: Vec<_> = fabric.settings().iter().chain(self.settings).copied().collect();
        let mut server = world.last().start_ferroce(self.options, self.server, &settings);
        let pid = server.id().to_string();
        while !crate::is_listening(&pid, self.port) && !server.has_ended() && start.elapsed() < self.limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        let address = world.last().ipv4();
        let words: Vec<&str> =
            self.client.iter().map(|&word| if word == SERVER { address.as_str() } else { word }).collect();
        let mut client = world.first().start_ferroce(self.options, &words, &settings);
        let client = client.wait(self.limit.saturating_sub(start.elapsed()));
        let server = server.wait(self.limit.saturating_sub(start.elapsed()).max(LAST_WORDS));
        PairOutcome { client, server }
    }
}
