//! `rdma` as `ferroce run` puts it first in PATH: answers `rdma link show`, `rdma dev show` and `rdma statistic show` for our devices, which
//! the kernel doesn't know, and leaves everything else to the `rdma` of iproute2.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use ferroce_netdev::{DeviceInfo, PortState, discover};
use serde_json::{Value, json};

use crate::devices::guid_text;
use crate::watch::stats::{StatsOptions, stats};
use ferroce_doctor::install;

/// The name under which this command is this one.
pub const NAME: &str = "rdma";

/// That of all ports of InfiniBand.
const SUBNET_PREFIX: &str = "fe80:0000:0000:0000";

/// What is asked of us.
#[derive(PartialEq, Eq, Debug)]
struct Question {
    object: RdmaObject,
    /// `DEV` or `DEV/PORT`.
    which: Option<String>,
    json: bool,
    pretty: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RdmaObject {
    Device,
    Link,
    /// What devices have counted, or each queue pair.
    Statistic {
        pairs: bool,
    },
}

/// Answers, or becomes the real command. `arguments`: those behind the name.
pub fn rdma(arguments: &[OsString]) -> ExitCode {
    match parse(arguments) {
        Some(question) => answer(&question),
        None => pass_on(arguments),
    }
}

/// The options may stand anywhere, and words may be shortened, as iproute2 has it. `None`: not for us.
fn parse(arguments: &[OsString]) -> Option<Question> {
    let mut words = Vec::new();
    let (mut json, mut pretty) = (false, false);
    for argument in arguments {
        match argument.to_str()? {
            "--json" => json = true,
            "--pretty" => pretty = true,
            "--details" => {}
            long if long.starts_with("--") => return None,
            short if short.len() > 1 && short.starts_with('-') => {
                for letter in short[1..].chars() {
                    match letter {
                        'j' => json = true,
                        'p' => pretty = true,
                        'd' => {}
                        _ => return None,
                    }
                }
            }
            word => words.push(word),
        }
    }
    let mut words = words.into_iter();
    let object = match words.next()? {
        "" => return None,
        word if "link".starts_with(word) => RdmaObject::Link,
        word if "dev".starts_with(word) => RdmaObject::Device,
        // One letter is `system`.
        word if word.len() > 1 && "statistic".starts_with(word) => {
            let mut words = words.peekable();
            let pairs = words.next_if(|word| *word == "qp").is_some();
            let which = match (words.next(), words.next(), words.next()) {
                (None, ..) => None,
                (Some(show), None, _) if is_show(show) => None,
                (Some(show), Some("link"), which) if is_show(show) => which.map(str::to_owned),
                _ => return None,
            };
            let object = RdmaObject::Statistic { pairs };
            return words.next().is_none().then_some(Question { object, which, json, pretty });
        }
        _ => return None,
    };
    match words.next() {
        None => {}
        Some(word) if is_show(word) => {}
        Some(_) => return None,
    }
    let which = words.next().map(str::to_owned);
    words.next().is_none().then_some(Question { object, which, json, pretty })
}

fn is_show(word: &str) -> bool {
    !word.is_empty() && ("show".starts_with(word) || "list".starts_with(word))
}

fn answer(question: &Question) -> ExitCode {
    if let RdmaObject::Statistic { pairs } = question.object {
        let device = question.which.as_deref().map(|which| which.split('/').next().unwrap_or(which));
        return stats(&StatsOptions { json: question.json, pairs, device, table: false });
    }
    let devices = match discover() {
        Ok(devices) => devices,
        Err(error) => {
            eprintln!("rdma (Ferroce): {error}");
            return ExitCode::FAILURE;
        }
    };
    let numbered: Vec<(usize, &DeviceInfo)> = devices.iter().enumerate().collect();
    let chosen: Vec<_> = match &question.which {
        None => numbered,
        Some(which) => numbered.into_iter().filter(|(_, device)| is_named(device, which)).collect(),
    };
    if let (Some(which), []) = (&question.which, &chosen[..]) {
        eprintln!("rdma (Ferroce): there is no device {which:?} (`ferroce devices` shows those there are)");
        return ExitCode::FAILURE;
    }
    if question.json {
        let all: Value =
            chosen.iter().map(|(index, device)| to_json(question.object, *index, device)).collect();
        if question.pretty { println!("{all:#}") } else { println!("{all}") }
    } else {
        for (index, device) in chosen {
            println!("{}", line(question.object, index, device));
        }
    }
    ExitCode::SUCCESS
}

/// A device has port 1, and no other.
fn is_named(device: &DeviceInfo, which: &str) -> bool {
    let (name, port) = which.split_once('/').unwrap_or((which, "1"));
    device.name == name && matches!(port, "" | "1" | "-")
}

/// Logical and physical state in the words of iproute2.
fn states(device: &DeviceInfo) -> (&'static str, &'static str) {
    match device.port().state {
        PortState::Active => ("ACTIVE", "LINK_UP"),
        PortState::Down => ("DOWN", "DISABLED"),
    }
}

fn to_json(object: RdmaObject, index: usize, device: &DeviceInfo) -> Value {
    let guid = guid_text(device.node_guid);
    let (state, physical_state) = states(device);
    let port = device.port();
    match object {
        RdmaObject::Link if port.link_layer.is_infiniband() => json!({
            "ifindex": index,
            "ifname": device.name,
            "port": 1,
            "subnet_prefix": SUBNET_PREFIX,
            "lid": port.lid(),
            "sm_lid": port.sm_lid(),
            "lmc": 0,
            "state": state,
            "physical_state": physical_state,
        }),
        RdmaObject::Link => json!({
            "ifindex": index,
            "ifname": device.name,
            "port": 1,
            "state": state,
            "physical_state": physical_state,
            "netdev": device.netdev.name,
            "netdev_index": device.netdev.ifindex,
        }),
        RdmaObject::Device | RdmaObject::Statistic { .. } => json!({
            "ifindex": index,
            "ifname": device.name,
            "node_type": "ca",
            "fw": env!("CARGO_PKG_VERSION"),
            "node_guid": guid,
            "sys_image_guid": guid,
        }),
    }
}

fn line(object: RdmaObject, index: usize, device: &DeviceInfo) -> String {
    let (name, guid, netdev) = (&device.name, guid_text(device.node_guid), &device.netdev.name);
    let (state, physical_state) = states(device);
    let port = device.port();
    match object {
        RdmaObject::Link if port.link_layer.is_infiniband() => {
            let (lid, sm_lid) = (port.lid(), port.sm_lid());
            format!(
                "link {name}/1 subnet_prefix {SUBNET_PREFIX} lid {lid} sm_lid {sm_lid} lmc 0 state {state} \
                 physical_state {physical_state} "
            )
        }
        RdmaObject::Link => {
            format!("link {name}/1 state {state} physical_state {physical_state} netdev {netdev} ")
        }
        RdmaObject::Device | RdmaObject::Statistic { .. } => {
            let version = env!("CARGO_PKG_VERSION");
            format!("{index}: {name}: node_type ca fw {version} node_guid {guid} sys_image_guid {guid} ")
        }
    }
}

/// Becomes the next `rdma` in PATH that isn't this command.
fn pass_on(arguments: &[OsString]) -> ExitCode {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = env::current_exe().and_then(fs::canonicalize).ok();
    // Where there are no links, a script beside our libraries calls this command.
    let script = install::library_directory()
        .ok()
        .and_then(|directory| fs::canonicalize(directory.join(install::COMMANDS).join(NAME)).ok());
    let is_other = |file: &PathBuf| {
        fs::canonicalize(file).is_ok_and(|file| {
            let file = Some(file);
            file != own && file != script
        })
    };
    let administrators = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut places = env::split_paths(&path).chain(administrators).map(|directory| directory.join(NAME));
    let Some(real) = places.find(is_other) else {
        eprintln!(
            "rdma (Ferroce): only `rdma link show`, `rdma dev show` and `rdma statistic show` are answered here; for the rest, the rdma of \
             iproute2 is not installed"
        );
        return ExitCode::FAILURE;
    };
    let error = Command::new(&real).args(arguments).exec();
    eprintln!("rdma (Ferroce): {}: {error}", real.display());
    ExitCode::FAILURE
}

/// Whether the command was started by that name.
pub fn is_called(first_argument: Option<&Path>) -> bool {
    first_argument.and_then(Path::file_name).is_some_and(|name| name == NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Option<Question> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_stand_anywhere_and_words_may_be_short() {
        let link = |which: Option<&str>, json, pretty| {
            Some(Question { object: RdmaObject::Link, which: which.map(str::to_owned), json, pretty })
        };
        assert_eq!(asked("link show -j"), link(None, true, false));
        assert_eq!(asked("-j link"), link(None, true, false));
        assert_eq!(asked("-jp l s mlx5_0/1"), link(Some("mlx5_0/1"), true, true));
        assert_eq!(asked("link show mlx5_0/1"), link(Some("mlx5_0/1"), false, false));
        assert_eq!(asked("--json dev list").map(|q| (q.object, q.json)), Some((RdmaObject::Device, true)));
    }

    #[test]
    fn statistics_are_those_of_devices_or_of_queue_pairs() {
        let of = |line| asked(line).map(|question| (question.object, question.which));
        let devices = RdmaObject::Statistic { pairs: false };
        assert_eq!(of("statistic"), Some((devices, None)));
        assert_eq!(of("stat show link mlx5_0/1"), Some((devices, Some("mlx5_0/1".into()))));
        assert_eq!(of("statistic qp show"), Some((RdmaObject::Statistic { pairs: true }, None)));
        assert_eq!(of("statistic qp bind"), None);
    }

    #[test]
    fn everything_else_is_for_the_real_command() {
        for line in [
            "",
            "-V",
            "resource show",
            "link add rxe0 type rxe netdev eth0",
            "link help",
            "dev set x",
            "-f x",
        ] {
            assert_eq!(asked(line), None, "{line}");
        }
    }

    #[test]
    fn own_name_is_that_of_the_file() {
        assert!(is_called(Some(Path::new("/x/lib/ferroce/bin/rdma"))));
        assert!(is_called(Some(Path::new("rdma"))));
        assert!(!is_called(Some(Path::new("/x/rdma/ferroce"))));
        assert!(!is_called(None));
    }
}
