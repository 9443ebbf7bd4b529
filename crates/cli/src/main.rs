//! The `ferroce` command: `run` a program with the Ferroce adapter, or print the `env` for it, show `devices`, write their
//! `sysfs` entries, let `doctor` say what would stop a program here, and `explain` why requests fail; `ps`, `stats` and
//! `top` show what processes do, `trace` what a capture has in it.
//!
//! In here: what a person types and reads. Out of here: everything that a program needs at run time (`ferroce-nic`
//! and the libraries); a program that is started by `ferroce run` needs nothing of this command afterwards.

mod check;
mod devices;
mod doctor;
mod elf;
mod env;
mod explain;
mod install;
mod output;
mod pages;
mod progress;
mod rdma;
mod run;
mod sysfs;
mod table;
mod trace;
mod version;
mod watch;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, Parser, Subcommand};
use ferroce_nic::net::LinkLayer;
use watch::rates::Sort;

/// RDMA verbs in user space: run programs that were built for an RDMA adapter without having one.
///
/// No adapter, no kernel module, no root: the adapter is a library in the program's own process and speaks RoCEv2
/// over UDP port 4791 of the network interfaces that are there.
#[derive(Parser)]
#[command(name = "ferroce", version, after_help = ENVIRONMENT)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const ENVIRONMENT: &str = "\
Environment, for programs run by `ferroce run`:
  FERROCE_DEVICES  which devices there are, and their names: \"mlx5_0=eth0,mlx5_1=eth1\"
                   (without it: ferroce0 is the interface of the default route, the others follow)
  FERROCE_LINK_LAYER  \"infiniband\": ports have LIDs, for programs that address by these (without it: ethernet)
  FERROCE_FABRIC   \"udp\" sends everything over the network stack, also within one host
  FERROCE_COPIES   \"kernel\" has the kernel copy all payloads (without it: the processor, under a handler of SIGSEGV and
                   SIGBUS that turns a fault into an error completion)
  FERROCE_TRUST    users and groups (:GROUP) whose processes may share memory with this one, if they name this one's user too
  FERROCE_PTRACER  \"off\" keeps other processes of the user from copying from and to this one's memory where kernel.yama.ptrace_scope
                   is 1: payloads then go through shared rings
  FERROCE_LOG      what the adapter tells on standard error: error, warn, info, debug or trace";

#[derive(Subcommand)]
enum Command {
    /// Run a command, and everything it starts, with Ferroce as its RDMA adapter
    ///
    /// The command replaces `ferroce run`: same process ID, its own exit status. A verbs call that fails for a reason
    /// that can be fixed says so in one line on standard error. 127 means that the command wasn't found, 126 that it
    /// can't be run, 125 that `ferroce run` itself couldn't do what was asked.
    Run {
        /// Write every packet to FILE, as it is (or would be) on the wire, for Wireshark and tshark
        #[arg(long, value_name = "FILE.pcapng")]
        capture: Option<PathBuf>,
        /// Harm packets in both directions, the same way in every run with the same seed
        ///
        /// A list such as "drop=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=1ms..3ms,seed=7": probabilities as
        /// percentages or fractions, delays with a unit, the seed a number.
        #[arg(long, value_name = "SPEC")]
        fault: Option<String>,
        /// Don't show the devices under /sys/class/infiniband and /dev/infiniband, nor to `rdma`
        ///
        /// Programs that ask the library for its devices find them all the same.
        #[arg(long)]
        no_preload: bool,
        /// Have the command's sockets (TCP, UDP) use RDMA, as rsockets do: both sides must
        ///
        /// /etc/rdma/rsocket/preload_config may say for which programs and kinds of sockets. A socket that can't be an
        /// rsocket is an ordinary one.
        #[arg(long, conflicts_with = "no_preload")]
        sockets: bool,
        /// What ports are to the command: ethernet (RoCE, the default) or infiniband, for programs that address by LIDs
        ///
        /// Both sides must have the same. Packets are RoCEv2 in any case, and no subnet manager is needed: a port's LID is
        /// the number of its IPv4 address in the subnet.
        #[arg(long, value_name = "LINK_LAYER")]
        link_layer: Option<LinkLayer>,
        #[command(flatten)]
        checking: check::Checking,
        /// The command and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Print the variables by which programs use Ferroce without `ferroce run`
    ///
    /// For a shell, `eval "$(ferroce env)"`; for a file of variables, `ferroce env --format lines >> "$GITHUB_ENV"`. Every
    /// program that is started with them uses Ferroce, as under `ferroce run`.
    Env {
        /// How they are written
        #[arg(long, value_enum, default_value_t = env::Format::Sh)]
        format: env::Format,
        /// As of `ferroce run`
        #[arg(long)]
        no_preload: bool,
        /// As of `ferroce run`
        #[arg(long, conflicts_with = "no_preload")]
        sockets: bool,
        /// As of `ferroce run`
        #[arg(long, value_name = "LINK_LAYER")]
        link_layer: Option<LinkLayer>,
    },
    /// Show the devices that programs see here, with their state, path MTU, addresses and GIDs
    Devices {
        /// Print JSON, one object a device, for scripts
        #[arg(long)]
        json: bool,
    },
    /// Write the entries of /sys/class/infiniband and /dev/infiniband that programs see here to a directory
    ///
    /// For a container to mount, or to look at. Device nodes need root; other users get links to /dev/null. The values
    /// are those of now.
    Sysfs {
        /// A new directory, or an empty one
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Say in plain words what would stop a verbs program here, and the fix
    ///
    /// Needs no root and changes nothing. The exit status is 1 if something would stop a program.
    Doctor {
        /// Look at the way to this host as well: a name or an IP address
        peer: Option<String>,
        /// Look at this program or library as well: are all libraries that it needs here?
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
    },
    /// Say what a reason, a status of a completion, an errno or an attribute of a queue pair means, what leads to it, and the fix
    ///
    /// A request that fails says its reason in one line on standard error, which begins with the reason's ID, and in
    /// vendor_err of its completion.
    Explain {
        /// An ID (FC034), a vendor_err (0xfc034), a status (IBV_WC_RETRY_EXC_ERR), an errno (ENOMEM) or an attribute
        /// (min_rnr_timer, IBV_QP_TIMEOUT); without it: all
        #[arg(value_name = "ID|STATUS|ERRNO|ATTRIBUTE")]
        word: Option<String>,
    },
    /// Show the processes that use Ferroce here, their queue pairs, and what each of these waits for
    ///
    /// Those of this user, or of everybody for root, in this network namespace. A process answers by itself and loses nothing by
    /// it; one that is stopped is shown as stopped.
    Ps {
        /// Print JSON, one object a process, for scripts
        #[arg(long)]
        json: bool,
        /// Show each memory region, however many there are
        #[arg(long)]
        regions: bool,
        /// Only these processes
        #[arg(value_name = "PID")]
        pids: Vec<u32>,
    },
    /// Show what devices, or queue pairs, have counted
    ///
    /// One line each, in the form and by the names of `rdma statistic`. Counted are the processes that are there: what a
    /// process has counted ends with it.
    Stats {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Each queue pair for itself
        #[arg(long)]
        qp: bool,
        /// Only this device
        device: Option<String>,
    },
    /// Show what queue pairs and processes do in a second, refreshed
    ///
    /// In a terminal: q ends it, t turns from queue pairs to processes, s sorts by something else, arrows move. Messages, bytes and
    /// retries are those of a second; CQ is the fill of the fullest completion queue.
    Top {
        /// Print a line of JSON for each look, for scripts
        #[arg(long)]
        json: bool,
        /// Print one table, and end
        #[arg(long)]
        once: bool,
        /// Seconds between looks
        #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        interval: Duration,
        /// End after so many looks; 0: go on
        #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 0)]
        count: u64,
        /// What is on top
        #[arg(long, value_enum, default_value_t = Sort::Bytes)]
        sort: Sort,
        /// A row for each process instead of each queue pair
        #[arg(long, short)]
        processes: bool,
    },
    /// Print the messages of a running process, or of a capture, one line each
    ///
    /// A process is named by its number, and tells what its requests and receives have ended with. At most 512 messages are told
    /// each tenth of a second: how long nothing was noted is said. One-sided operations are told by the process that has asked for
    /// them. A capture is a file of `ferroce run --capture`, tcpdump or Wireshark; of a capture, acknowledgements that say nothing
    /// else are left out.
    Trace {
        /// Go on when the end is reached: the capture is being written
        #[arg(long, short)]
        follow: bool,
        /// Print JSON, one object a line
        #[arg(long)]
        json: bool,
        /// Only what is for this queue pair (0x12abcd or decimal); may be repeated
        #[arg(long, value_name = "QPN", value_parser = number)]
        qp: Vec<u32>,
        /// Only operations with this in their name, such as read
        #[arg(long, value_name = "NAME")]
        op: Option<String>,
        /// Only refusals, or messages that end with an error
        #[arg(long)]
        errors: bool,
        /// Of a capture: acknowledgements too
        #[arg(long)]
        acks: bool,
        /// End after so many messages
        #[arg(long, short = 'n', value_name = "COUNT")]
        count: Option<u64>,
        /// The process's number, or the capture (./123 if its name is a number)
        #[arg(value_name = "PID|FILE")]
        what: PathBuf,
    },
    /// Print the completions of a shell, for it to read
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages to a directory
    #[command(hide = true)]
    Man {
        /// Made if it isn't there
        directory: PathBuf,
    },
    /// Print the version
    Version {
        /// With what it runs on, for reports of bugs
        #[arg(long, short)]
        verbose: bool,
    },
    /// What `rdma` does under `ferroce run`, where that isn't a link to this command
    #[command(hide = true, disable_help_flag = true)]
    Rdma {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
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

fn main() -> ExitCode {
    if rdma::is_called(std::env::args_os().next().as_deref().map(Path::new)) {
        return rdma::rdma(&std::env::args_os().skip(1).collect::<Vec<_>>());
    }
    match Arguments::parse().command {
        Command::Run { capture, fault, no_preload, sockets, link_layer, checking, command } => {
            run::run(&run::Options {
                capture: capture.as_deref(),
                fault: fault.as_deref(),
                preload: !no_preload,
                sockets,
                link_layer,
                checking: &checking,
                command: &command,
            })
        }
        Command::Env { format, no_preload, sockets, link_layer } => {
            env::env(format, !no_preload, sockets, link_layer)
        }
        Command::Devices { json } => devices::devices(json),
        Command::Sysfs { directory } => sysfs::sysfs(&directory),
        Command::Explain { word } => explain::explain(word.as_deref()),
        Command::Ps { json, regions, pids } => {
            watch::ps::ps(&watch::ps::Options { json, regions, pids: &pids })
        }
        Command::Stats { json, qp, device } => {
            watch::stats::stats(&watch::stats::Options { json, pairs: qp, device: device.as_deref() })
        }
        Command::Trace { follow, json, qp, op, errors, acks, count, what } => trace::trace(&trace::Options {
            what: &what,
            count: count.unwrap_or(u64::MAX),
            follow,
            json,
            pairs: &qp,
            operation: op.as_deref(),
            errors,
            acks,
        }),
        Command::Top { json, once, interval, count, sort, processes } => {
            watch::top::top(&watch::top::Options { json, once, interval, count, sort, processes })
        }
        Command::Completions { shell } => pages::completions(Arguments::command(), shell),
        Command::Man { directory } => pages::man(Arguments::command(), &directory),
        Command::Version { verbose } => version::version(verbose),
        Command::Rdma { arguments } => rdma::rdma(&arguments),
        Command::Doctor { peer, program, json } => doctor::doctor(peer.as_deref(), program.as_deref(), json),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_command_line_is_free_of_contradictions() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn each_command_has_a_page() {
        let directory = std::env::temp_dir().join(format!("ferroce-man-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let written = pages::write_pages(Arguments::command(), &directory);
        let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        let (whole, ps) = (text("ferroce.1"), text("ferroce-ps.1"));
        let hidden = directory.join("ferroce-rdma.1").exists();
        fs::remove_dir_all(&directory).unwrap();
        written.unwrap();
        assert!(whole.contains(".TH FERROCE 1") && whole.contains("FERROCE_LOG"), "{whole}");
        assert!(ps.contains("ferroce ps") && ps.contains("json"), "{ps}");
        assert!(!hidden);
    }
}
