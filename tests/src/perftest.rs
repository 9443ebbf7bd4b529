//! The matrix of Debian's perftest: tools, connections and options (cells), places, and what becomes of a cell there.

use crate::{Fabric, Host, Outcome, Pair, PairOutcome, Skip, World};
use std::fmt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Where a cell runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Two processes of one host, on the fabric that they choose: shared memory.
    OneHost,
    /// Two processes of one host, with `FERROCE_FABRIC=udp`.
    OneHostUdp,
    /// Two hosts joined by a veth pair.
    TwoHosts {
        /// The MTU of the pair.
        mtu: u32,
    },
}

impl Place {
    /// The places of the matrix.
    pub const ALL: [Self; 4] =
        [Self::OneHost, Self::OneHostUdp, Self::TwoHosts { mtu: 1500 }, Self::TwoHosts { mtu: 9000 }];

    fn world(self) -> Result<World, Skip> {
        match self {
            Self::OneHost | Self::OneHostUdp => World::one_host(9000),
            Self::TwoHosts { mtu } => World::two_hosts(mtu),
        }
    }

    fn fabric(self) -> Fabric {
        if self == Self::OneHostUdp { Fabric::Udp } else { Fabric::Any }
    }

    /// The largest message of a UD queue pair: the largest path MTU that fits into a frame.
    fn datagram(self) -> u32 {
        if self == (Self::TwoHosts { mtu: 1500 }) { 1024 } else { 4096 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneHost => f.write_str("one host, shared memory"),
            Self::OneHostUdp => f.write_str("one host, UDP"),
            Self::TwoHosts { mtu } => write!(f, "two hosts, MTU {mtu}"),
        }
    }
}

/// The eight tools.
pub const TOOLS: [&str; 8] = [
    "ib_send_bw",
    "ib_send_lat",
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
];
const CONNECTIONS: [&str; 4] = ["RC", "XRC", "UC", "UD"];
/// Options of every tool, or of none: perftest itself refuses an option that a tool doesn't know.
const OPTIONS: [&str; 10] =
    ["", "-e", "-b", "-q 16", "-a", "-I 64 -s 64", "-t 16", "-Q 1", "-r 256", "--use-srq"];
/// Fewer receives than messages: RC and XRC wait for a receive, UC and UD drop what finds none.
const RC_ALONE: [&str; 1] = ["-r 64"];
/// Options together, of the tools that know them.
const SEND_BW_TOGETHER: [&str; 5] =
    ["-b -e", "-q 16 -b", "-q 16 -b -e", "-q 16 --use-srq", "-q 16 -b -e --use-srq"];
const SEND_LAT_TOGETHER: [&str; 1] = ["-e --use-srq"];
const WRITE_BW_TOGETHER: [&str; 2] = ["-q 16 -b", "-q 16 -t 16 -Q 1"];
const READ_BW_TOGETHER: [&str; 4] = ["-b -e", "-q 16 -b", "-q 16 -e", "-q 16 -b -e"];
const ATOMIC_BW_TOGETHER: [&str; 4] = ["-A CMP_AND_SWAP", "-b -e", "-q 16 -b -e", "-A CMP_AND_SWAP -q 16 -b"];
const ATOMIC_LAT_TOGETHER: [&str; 2] = ["-A CMP_AND_SWAP", "-A CMP_AND_SWAP -e"];

/// A tool with a connection and options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The program.
    pub tool: &'static str,
    /// `RC`, `XRC`, `UC` or `UD`.
    pub connection: &'static str,
    /// The options, with spaces between them.
    pub options: &'static str,
}

/// What became of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Both sides ended well, with a line for every size, over the fabric of the place.
    Ok,
    /// Something else; what, in few words and without figures.
    Fails(String),
}

/// perftest's messages about a device that isn't there, which come when it has taken all options.
const NO_DEVICE: [&str; 3] =
    ["Did not detect devices", "Unable to find the Infiniband/RoCE device", "IB device none not found"];

/// How often a run is made that fails for a reason that is neither perftest's nor ours.
const ATTEMPTS: u32 = 3;
/// The kernel has counted it.
const FULL_SOCKET: &str = "messages are lost, because a socket is full";

impl Cell {
    /// All cells, by tool.
    pub fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for tool in TOOLS {
            let together: &[&'static str] = match tool {
                "ib_send_bw" => &SEND_BW_TOGETHER,
                "ib_send_lat" => &SEND_LAT_TOGETHER,
                "ib_write_bw" => &WRITE_BW_TOGETHER,
                "ib_read_bw" => &READ_BW_TOGETHER,
                "ib_atomic_bw" => &ATOMIC_BW_TOGETHER,
                "ib_atomic_lat" => &ATOMIC_LAT_TOGETHER,
                _ => &[],
            };
            for connection in CONNECTIONS {
                let reliable = matches!(connection, "RC" | "XRC");
                let alone: &[&'static str] = if reliable { &RC_ALONE } else { &[] };
                let options = OPTIONS.iter().chain(alone).chain(together);
                cells.extend(options.map(|options| Self { tool, connection, options }));
            }
        }
        cells
    }

    /// The cell of a command line as `Display` shows it.
    ///
    /// # Panics
    /// When the matrix has no such cell.
    pub fn named(line: &str) -> Self {
        let found = Self::all().into_iter().find(|cell| cell.to_string() == line);
        found.unwrap_or_else(|| panic!("the matrix has no cell \"{line}\""))
    }

    /// Why perftest itself doesn't take these options: its message before it looks for a device.
    ///
    /// # Errors
    /// The tool can't be run.
    pub fn refusal(&self) -> std::io::Result<Option<String>> {
        let output = Command::new(self.tool)
            .args(&self.words()[1..])
            .args(["-d", "none"])
            .stdin(Stdio::null())
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        if NO_DEVICE.iter().any(|complaint| said.contains(complaint)) {
            return Ok(None);
        }
        let mut lines = said.lines().map(str::trim);
        let reason = lines.find(|line| line.contains(|c: char| c.is_alphanumeric()));
        Ok(Some(reason.unwrap_or("without a word").to_owned()))
    }

    /// Runs the cell within `limit`; returns the verdict with the output of both sides.
    ///
    /// # Errors
    /// This machine lacks the program or namespaces.
    pub fn run(&self, place: Place, limit: Duration) -> Result<(Verdict, String), Skip> {
        crate::tool(self.tool, "perftest")?;
        // All attempts together stay below what the test runner gives a test.
        let limit = if self.is_reliable() { limit } else { limit * 3 / 4 };
        for attempt in 1.. {
            let world = place.world()?;
            let outcome = Pair::new(&world, place.fabric()).limit(limit).run(&self.words());
            let verdict = self.judge(place, &world, &outcome);
            match self.excuse(place, &world, &outcome) {
                Some(why) if verdict != Verdict::Ok && attempt < ATTEMPTS => {
                    crate::record_repetition(&format!("{self}, {place:?}: {why}"));
                }
                Some(FULL_SOCKET) if verdict != Verdict::Ok => {
                    let why = format!("{FULL_SOCKET}, in every attempt");
                    return Ok((Verdict::Fails(why), outcome.to_string()));
                }
                _ => return Ok((verdict, outcome.to_string())),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Why a failure of this run may be no fault of ours: UC and UD promise nothing when a receiver is too slow, perftest waits
    /// for ever for a lost message, and its latency tools measure the processor's clock.
    fn excuse(&self, place: Place, world: &World, outcome: &PairOutcome) -> Option<&'static str> {
        let dropped = [world.first(), world.last()].map(Host::full_socket_drops);
        let hangs = outcome.client.over_limit.is_some() || outcome.server.over_limit.is_some();
        if !self.is_reliable() && dropped != [0, 0] {
            Some(FULL_SOCKET)
        } else if !self.is_reliable() && place == Place::OneHost && hangs {
            // No counter counts the messages for which a ring of shared memory had no room, as its receiver wasn't scheduled for a tenth
            // of a second.
            Some("a message never came, which no kernel counts on one host")
        } else if lost_the_clock(outcome) {
            Some("perftest could not measure the processor's clock")
        } else {
            None
        }
    }

    fn is_reliable(&self) -> bool {
        !matches!(self.connection, "UC" | "UD")
    }

    fn words(&self) -> Vec<&'static str> {
        let mut words = vec![self.tool, "-c", self.connection];
        words.extend(self.options.split_whitespace());
        words.extend(["-n", if self.has("-a") { "20" } else { "200" }]);
        // Continue although the processor changes its frequency.
        words.push("-F");
        if self.tool.ends_with("_lat") {
            // Cycles: for microseconds the tool would measure the processor's clock twice for every size, not once.
            words.push("-C");
        }
        words
    }

    fn has(&self, option: &str) -> bool {
        self.options.split_whitespace().any(|word| word == option)
    }

    /// The sizes that have to appear in the client's table.
    fn sizes(&self, place: Place) -> Vec<u32> {
        let most = if self.connection == "UD" { place.datagram() } else { 8 << 20 };
        let default = if self.tool.ends_with("_bw") { 65536.min(most) } else { 2 };
        match () {
            () if self.tool.starts_with("ib_atomic") => vec![8],
            () if self.has("-a") => (1..=23).map(|power| 1 << power).filter(|size| *size <= most).collect(),
            () if self.has("-s") => vec![64],
            () => vec![default],
        }
    }

    fn judge(&self, place: Place, world: &World, outcome: &PairOutcome) -> Verdict {
        for (side, outcome) in [("client", &outcome.client), ("server", &outcome.server)] {
            if let Some(end) = bad_end(outcome) {
                return Verdict::Fails(format!("{side} {end}"));
            }
        }
        let rows: Vec<&str> =
            outcome.client.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
        for size in self.sizes(place) {
            if !rows.contains(&size.to_string().as_str()) {
                return Verdict::Fails(format!("no line for {size} bytes"));
            }
        }
        let used_udp = datagrams_sent(world.first()) > 0;
        if used_udp != (place != Place::OneHost) {
            return Verdict::Fails(if used_udp { "went over UDP" } else { "did not go over UDP" }.into());
        }
        for host in [world.first(), world.last()] {
            let traces = host.lasting_traces();
            if !traces.is_empty() {
                return Verdict::Fails(format!("left behind: {}", traces.join(", ")));
            }
        }
        Verdict::Ok
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -c {}", self.tool, self.connection)?;
        if self.options.is_empty() { Ok(()) } else { write!(f, " {}", self.options) }
    }
}

/// The latency tools measure the processor's clock, and give up when the machine is too busy for that.
fn lost_the_clock(outcome: &PairOutcome) -> bool {
    let gives_up = |side: &Outcome| {
        side.stdout.contains("Correlation coefficient") || side.stderr.contains("Correlation")
    };
    gives_up(&outcome.client) || gives_up(&outcome.server)
}

/// How many UDP datagrams have left this host, or went from one process of it to another.
fn datagrams_sent(host: &Host) -> u64 {
    let snmp = host.net_table("snmp");
    let mut udp = snmp.lines().filter(|line| line.starts_with("Udp:")).map(str::split_whitespace);
    let (Some(names), Some(values)) = (udp.next(), udp.next()) else { return 0 };
    let sent = names.zip(values).find(|(name, _)| *name == "OutDatagrams");
    sent.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// How a side ended, unless well.
fn bad_end(outcome: &Outcome) -> Option<String> {
    use std::os::unix::process::ExitStatusExt;
    if outcome.success() {
        return None;
    }
    if outcome.over_limit.is_some() {
        return Some("does not end".into());
    }
    if let Some(signal) = outcome.status.signal() {
        return Some(format!("dies of signal {signal}"));
    }
    let said = outcome.stderr.lines().map(str::trim).find(|line| !line.is_empty());
    Some(format!("prints: {}", said.unwrap_or("nothing")))
}
