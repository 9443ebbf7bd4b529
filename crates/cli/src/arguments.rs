//! The command line: subcommands, options, and what `--help` prints.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use ferroce_netdev::LinkLayer;

use crate::check;
use crate::help::examples;
use crate::watch::rates::Sort;

/// RDMA verbs in user space: run programs that were built for an RDMA adapter without having one.
///
/// No adapter, no kernel module, no root: the adapter is a library in the program's own process and speaks RoCEv2
/// over UDP port 4791 of the machine's network interfaces.
#[derive(Parser)]
#[command(name = "ferroce", version, after_help = examples!["ferroce run ./my_program", "ferroce doctor", "ferroce explain FC034"])]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

/// The command line, with subcommands grouped by use.
pub fn command() -> clap::Command {
    crate::help::grouped(Arguments::command())
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a command, and everything it starts, with Ferroce as its RDMA adapter
    ///
    /// The command replaces `ferroce run`: same process ID, its own exit status. A verbs call that fails for a reason
    /// that can be fixed prints one line on standard error. Exit status 127: the command isn't found; 126: it
    /// can't be run; 125: `ferroce run` itself failed.
    #[command(after_help = examples![
        "ferroce run ib_write_bw -x 1",
        "ferroce run --devices mlx5_0=eth0 --capture out.pcapng ./my_program",
        "ferroce run --fault drop=1%,seed=7 --check=fatal ./my_program",
    ])]
    Run {
        /// Write every packet to FILE, as it is (or would be) on the wire, for Wireshark, tshark and `ferroce view`
        #[arg(long, value_name = "FILE.pcapng")]
        capture: Option<PathBuf>,
        /// Damage packets in both directions, the same way in every run with the same seed
        ///
        /// A list such as "drop=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=1ms..3ms,seed=7": probabilities as
        /// percentages or fractions, delays with a unit, the seed a number.
        #[arg(long, value_name = "SPEC")]
        fault: Option<String>,
        #[command(flatten)]
        checking: check::Checking,
        #[command(flatten)]
        surroundings: Surroundings,
        /// Print the variables that CMD would get, as lines for a shell, and run nothing
        #[arg(long)]
        print_env: bool,
        /// The command and its arguments; may be left out with --print-env
        #[arg(trailing_var_arg = true, required_unless_present = "print_env", value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Print the variables by which programs use Ferroce without `ferroce run`
    ///
    /// Every program that is started with these variables uses Ferroce, as under `ferroce run`.
    #[command(after_help = examples![
        "eval \"$(ferroce env)\"",
        "ferroce env --lines >> \"$GITHUB_ENV\"",
    ])]
    Env {
        /// Print NAME=value, for a file of variables (default: `export NAME='value'`, for a shell)
        #[arg(long, conflicts_with = "json")]
        lines: bool,
        /// Print JSON, an object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        surroundings: Surroundings,
    },
    /// Show the devices that programs see here, with their state, path MTU, addresses and GIDs
    #[command(after_help = examples!["ferroce devices", "ferroce devices --devices mlx5_0=eth0 --json"])]
    Devices {
        /// Print JSON, an object for each device
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        devices: DeviceList,
    },
    /// Write the entries of /sys/class/infiniband and /dev/infiniband that programs see here to a directory
    ///
    /// For a container to mount, or to look at. Device nodes need root; other users get links to /dev/null. The values
    /// are those of the moment.
    #[command(after_help = examples!["ferroce sysfs /tmp/entries"])]
    Sysfs {
        /// A new directory, or an empty one
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        #[command(flatten)]
        devices: DeviceList,
    },
    /// Check this machine for what would stop a verbs program, and suggest fixes
    ///
    /// Needs no root and changes nothing. Each finding is an error, a warning or ok, with a code that stays the same.
    /// The exit status is 1 if there is an error.
    #[command(after_help = examples!["ferroce doctor", "ferroce doctor 10.0.0.2", "ferroce doctor --program ./my_program"])]
    Doctor {
        /// Check the path to this host too: a name or an IP address
        peer: Option<String>,
        /// Check this program or library too: does it load Ferroce, and are all libraries that it needs here?
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
        /// Print JSON, an object for each finding
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        devices: DeviceList,
    },
    /// Explain a reason, a status, an errno, an event or an attribute: its meaning, its causes, and the fix
    ///
    /// A request that fails prints its reason in one line on standard error, which begins with the reason's ID, and in
    /// vendor_err of its completion. A number is explained in each of its meanings.
    #[command(after_help = examples![
        "ferroce explain FC034",
        "ferroce explain 12",
        "ferroce explain \"remote access error\"",
        "ferroce explain RDMA_CM_EVENT_REJECTED",
    ])]
    Explain {
        /// An ID (FC034), a vendor_err (0xfc034), a status (IBV_WC_RETRY_EXC_ERR or its text), an errno (ENOMEM), an event
        /// (RDMA_CM_EVENT_REJECTED, IBV_EVENT_QP_FATAL), a number, or an attribute (min_rnr_timer); without it: the list
        #[arg(value_name = "WORD", allow_negative_numbers = true)]
        word: Option<String>,
    },
    /// Show the processes that use Ferroce here, their queue pairs, and what each of these waits for
    ///
    /// Shows the processes of this user (for root: of every user) in this network namespace. They answer without being interrupted;
    /// a stopped process is shown as stopped.
    #[command(after_help = examples!["ferroce ps", "ferroce ps --json 1234"])]
    Ps {
        /// Print JSON, an object for each process
        #[arg(long)]
        json: bool,
        /// Show each memory region, however many there are
        #[arg(long)]
        regions: bool,
        /// Only these processes
        #[arg(value_name = "PID")]
        pids: Vec<u32>,
    },
    /// Show the counters of devices or queue pairs
    ///
    /// A table on a terminal; otherwise one line for each, in the form of `rdma statistic`. Counters are summed over
    /// running processes and drop when a process exits.
    #[command(after_help = examples!["ferroce stats", "ferroce stats --qp --json ferroce0"])]
    Stats {
        /// Print JSON, an object for each device or queue pair
        #[arg(long)]
        json: bool,
        /// Count each queue pair separately
        #[arg(long)]
        qp: bool,
        /// Only this device
        device: Option<String>,
    },
    /// Show messages, bytes and retries per second, refreshed
    ///
    /// In a terminal: q quits, t switches between queue pairs and processes, s changes the sort key, arrows move. CQ is the
    /// fill of the fullest completion queue.
    #[command(after_help = examples!["ferroce top", "ferroce top --once --processes", "ferroce top --json -n 10"])]
    Top {
        /// Print JSON, one line for each update
        #[arg(long)]
        json: bool,
        /// Print one table, and stop
        #[arg(long)]
        once: bool,
        /// Seconds between updates
        #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        interval: Duration,
        /// Stop after COUNT updates (0 = never)
        #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 0)]
        count: u64,
        /// Sort key
        #[arg(long, value_enum, default_value_t = Sort::Bytes)]
        sort: Sort,
        /// A row for each process instead of each queue pair
        #[arg(long, short)]
        processes: bool,
    },
    /// Print the messages of a running process, or of a capture, one line each
    ///
    /// Of a process, each line is a completed request or receive, with its status: at most 512 lines per 100 ms, with the
    /// length of any gap. One-sided operations appear at the initiator. Of a capture (a file of `ferroce run --capture`,
    /// tcpdump or Wireshark), each line is a message; its QP is the destination. Acknowledgements are left out unless they
    /// refuse something.
    #[command(after_help = examples!["ferroce trace --pid 1234", "ferroce trace --errors out.pcapng", "ferroce trace --follow --json out.pcapng"])]
    Trace {
        /// The running process
        #[arg(long, short, value_name = "PID", conflicts_with = "file", required_unless_present = "file")]
        pid: Option<u32>,
        /// The capture
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Continue at the end of the capture, which is being written
        #[arg(long, short, conflicts_with = "pid")]
        follow: bool,
        /// Print JSON, one object a line
        #[arg(long)]
        json: bool,
        /// Only messages to this queue pair (0x12abcd or decimal); may be repeated
        #[arg(long, value_name = "QPN", value_parser = number)]
        qp: Vec<u32>,
        /// Only operations with this in their name, such as read
        #[arg(long, value_name = "NAME")]
        op: Option<String>,
        /// Only refusals, or messages that end with an error
        #[arg(long)]
        errors: bool,
        /// Acknowledgements too
        #[arg(long, conflicts_with = "pid")]
        acks: bool,
        /// Stop after COUNT messages
        #[arg(long, short = 'n', value_name = "COUNT")]
        count: Option<u64>,
    },
    /// Write a capture as one HTML page: a sequence diagram of both hosts
    ///
    /// The page needs no network and no other file. It folds the packets of a message, colours retransmissions, NAKs, RNRs
    /// and losses, shows headers below the pointer, and filters by queue pair and operation.
    #[command(after_help = examples!["ferroce view out.pcapng -o page.html", "ferroce view out.pcapng > page.html"])]
    View {
        /// The capture: a file of `ferroce run --capture`, tcpdump or Wireshark
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Write the page to this file (default: standard output)
        #[arg(long, short, value_name = "PAGE.html")]
        output: Option<PathBuf>,
        /// Show at most COUNT packets; the page names how many were left out
        #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 10_000)]
        count: usize,
    },
    /// Print the completions of a shell
    #[command(after_help = examples!["ferroce completions bash > ~/.local/share/bash-completion/completions/ferroce"])]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages to a directory
    #[command(hide = true)]
    Man {
        /// Made if it doesn't exist
        directory: PathBuf,
    },
    /// Print the version
    #[command(after_help = examples!["ferroce version --verbose"])]
    Version {
        /// With the build and the system, for bug reports
        #[arg(long, short)]
        verbose: bool,
    },
    /// `rdma` under `ferroce run`, where that isn't a link to this command
    #[command(hide = true, disable_help_flag = true)]
    Rdma {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// Which devices there are.
#[derive(Args, Clone, Debug, Default)]
pub struct DeviceList {
    /// The devices and their names, such as mlx5_0=eth0,mlx5_1=eth1
    ///
    /// Without it ferroce0 is the interface of the default route, and the others follow.
    #[arg(long, value_name = "NAME=INTERFACE,…")]
    pub devices: Option<String>,
}

/// What decides how programs use Ferroce.
#[derive(Args, Clone, Debug, Default)]
pub struct Surroundings {
    #[command(flatten)]
    pub devices: DeviceList,
    /// Send everything as packets over the network stack, within one host too (default: the fastest way)
    #[arg(long, value_name = "FABRIC", value_parser = ["udp"])]
    pub fabric: Option<String>,
    /// How the adapter presents its ports: infiniband is for programs that address by LID
    ///
    /// Both sides must have the same. Packets are RoCEv2 in any case, and no subnet manager is needed: a port's LID is
    /// the host number of its IPv4 address in the subnet.
    #[arg(long, value_name = "LINK_LAYER", value_parser = link_layers())]
    pub link_layer: Option<LinkLayer>,
    /// Log to standard error: off, error, warn, info, debug or trace, or a list such as ferroce_cm=debug
    #[arg(long, value_name = "LEVEL", visible_alias = "log-level")]
    pub log: Option<String>,
    /// Users and groups (:GROUP) whose processes may share memory with these, if they name this user too
    #[arg(long, value_name = "USER,…")]
    pub trust: Option<String>,
    /// Don't show the devices under /sys/class/infiniband and /dev/infiniband, nor to `rdma`
    ///
    /// Programs that ask the library for its devices find them nevertheless.
    #[arg(long)]
    pub no_preload: bool,
    /// Use RDMA for the command's TCP and UDP sockets, as rsockets; both sides must
    ///
    /// /etc/rdma/rsocket/preload_config may restrict this to programs and kinds of sockets. A socket that can't be an
    /// rsocket stays an ordinary one.
    #[arg(long, conflicts_with = "no_preload")]
    pub sockets: bool,
}

fn link_layers() -> impl clap::builder::TypedValueParser<Value = LinkLayer> {
    use clap::builder::{PossibleValuesParser, TypedValueParser as _};
    PossibleValuesParser::new(["ethernet", "infiniband"]).try_map(|name| name.parse::<LinkLayer>())
}

/// A number, also in hexadecimal.
fn number(text: &str) -> Result<u32, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

/// A time between a hundredth of a second and a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "between 0.01 and 86400".to_owned())
}
