//! The `ferroce` command: `run` a program with the Ferroce adapter, or print the `env` for it, show `devices`, write their
//! `sysfs` entries, have `doctor` check the machine, and `explain` why requests fail; `ps`, `stats` and
//! `top` show what processes do, `trace` and `view` what a capture contains.
//!
//! In here: what a person types and reads. Out of here: everything that a program needs at run time (`ferroce-nic`
//! and the libraries); a program that is started by `ferroce run` needs nothing of this command afterwards.

mod arguments;
mod check;
mod devices;
mod env;
mod explain;
mod help;
mod output;
mod pages;
mod progress;
mod rdma;
mod run;
mod sysfs;
mod table;
mod trace;
mod version;
mod view;
mod watch;

use std::path::Path;
use std::process::ExitCode;

use arguments::{Arguments, Command, DeviceList};
use clap::FromArgMatches as _;
use ferroce_netdev::DEVICES_VARIABLE;

impl Command {
    /// Which devices this very process is to see.
    fn devices(&self) -> Option<&str> {
        let devices = match self {
            Self::Run { surroundings, .. } | Self::Env { surroundings, .. } => &surroundings.devices,
            Self::Devices { devices, .. } | Self::Sysfs { devices, .. } | Self::Doctor { devices, .. } => {
                devices
            }
            _ => return None,
        };
        let DeviceList { devices } = devices;
        devices.as_deref()
    }
}

fn main() -> ExitCode {
    if rdma::is_called(std::env::args_os().next().as_deref().map(Path::new)) {
        return rdma::rdma(&std::env::args_os().skip(1).collect::<Vec<_>>());
    }
    let matches = arguments::command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let Some(devices) = arguments.command.devices() {
        // SAFETY: this process has one thread.
        unsafe { std::env::set_var(DEVICES_VARIABLE, devices) };
    }
    match arguments.command {
        Command::Run { capture, fault, checking, surroundings, print_env, command } => {
            let options = run::RunOptions {
                capture: capture.as_deref(),
                fault: fault.as_deref(),
                surroundings: &surroundings,
                checking: &checking,
                command: &command,
            };
            if print_env { env::print("run", env::Format::Shell, &options) } else { run::run(&options) }
        }
        Command::Env { lines, json, surroundings } => {
            let format = match (lines, json) {
                (true, _) => env::Format::Lines,
                (_, true) => env::Format::Json,
                _ => env::Format::Shell,
            };
            env::print("env", format, &run::RunOptions::with(&surroundings))
        }
        Command::Devices { json, .. } => devices::devices(json),
        Command::Sysfs { directory, .. } => sysfs::sysfs(&directory),
        Command::Explain { word } => explain::explain(word.as_deref()),
        Command::Ps { json, regions, pids } => {
            watch::ps::ps(&watch::ps::PsOptions { json, regions, pids: &pids })
        }
        Command::Stats { json, qp, device } => watch::stats::stats(&watch::stats::StatsOptions {
            json,
            pairs: qp,
            device: device.as_deref(),
            table: true,
        }),
        Command::Trace { pid, file, follow, json, qp, op, errors, acks, count } => {
            let what = match (&file, pid) {
                (Some(file), _) => trace::TraceInput::Capture(file),
                (None, pid) => trace::TraceInput::Process(pid.unwrap_or_default()),
            };
            trace::trace(&trace::TraceOptions {
                what,
                count: count.unwrap_or(u64::MAX),
                follow,
                json,
                pairs: &qp,
                operation: op.as_deref(),
                errors,
                acks,
            })
        }
        Command::View { file, output, count } => view::view(&file, output.as_deref(), count),
        Command::Top { json, once, interval, count, sort, processes } => {
            watch::top::top(&watch::top::TopOptions { json, once, interval, count, sort, processes })
        }
        Command::Completions { shell } => pages::completions(arguments::command(), shell),
        Command::Man { directory } => pages::man(arguments::command(), &directory),
        Command::Version { verbose } => version::version(verbose),
        Command::Rdma { arguments } => rdma::rdma(&arguments),
        Command::Doctor { peer, program, json, .. } => {
            ferroce_doctor::doctor(peer.as_deref(), program.as_deref(), json)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_command_line_is_free_of_contradictions() {
        arguments::command().debug_assert();
    }

    #[test]
    fn each_command_has_a_page() {
        let directory = std::env::temp_dir().join(format!("ferroce-man-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let written = pages::write_pages(arguments::command(), &directory);
        let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        let (whole, ps) = (text("ferroce.1"), text("ferroce-ps.1"));
        let hidden = directory.join("ferroce-rdma.1").exists();
        fs::remove_dir_all(&directory).unwrap();
        written.unwrap();
        assert!(whole.contains(".TH FERROCE 1") && whole.contains("ferroce\\-run"), "{whole}");
        assert!(ps.contains("ferroce ps") && ps.contains("json"), "{ps}");
        assert!(!hidden);
    }
}
