//! `ferroce stats`: what queue pairs and devices have counted.

use super::{WatchedProcess, processes};
use crate::output;
use crate::table::aligned;
use ferroce_watch::{Counters, QueuePair, Wish};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

/// What is shown.
pub struct StatsOptions<'a> {
    /// As JSON.
    pub json: bool,
    /// Each queue pair instead of each device.
    pub pairs: bool,
    /// Only this device.
    pub device: Option<&'a str>,
    /// On a terminal, a table; otherwise the form of rdma-statistic(8).
    pub table: bool,
}

/// Prints the counters.
pub fn stats(options: &StatsOptions<'_>) -> ExitCode {
    let wish = if options.pairs { Wish::Everything } else { Wish::Devices };
    let seen = match processes(wish) {
        Ok(seen) => seen,
        Err(says) => {
            eprintln!("ferroce stats: {says}");
            return ExitCode::FAILURE;
        }
    };
    let wanted = |name: &str| options.device.is_none_or(|device| device == name);
    let lines: Vec<Line> = match options.pairs {
        true => of_pairs(&seen).into_iter().filter(|line| wanted(&line.device)).collect(),
        false => of_devices(&seen).into_iter().filter(|line| wanted(&line.device)).collect(),
    };
    for silent in seen.iter().filter(|seen| seen.account().is_none()) {
        eprintln!("ferroce stats: {} is left out: it is {}", silent.name(), silent.condition());
    }
    if options.json {
        return output::print(&format!(
            "{:#}\n",
            Value::from(lines.iter().map(Line::to_json).collect::<Vec<_>>())
        ));
    }
    if lines.is_empty() {
        eprintln!("ferroce stats: no process of this user uses {} here", options.device.unwrap_or("Ferroce"));
    }
    let to_text = if options.table && io::stdout().is_terminal() { Line::to_table } else { Line::to_text };
    output::print(&lines.iter().map(to_text).collect::<String>())
}

/// What a device, or a queue pair of it, has counted.
struct Line {
    device: String,
    /// Its process and number.
    pair: Option<(Option<u32>, u32)>,
    counters: Counters,
}

fn of_pairs(seen: &[WatchedProcess]) -> Vec<Line> {
    let of_one = |seen: &WatchedProcess| {
        let line = |pair: &QueuePair| Line {
            device: pair.device.to_string(),
            pair: Some((seen.pid, pair.number)),
            counters: pair.counters,
        };
        seen.account().into_iter().flat_map(|account| &account.queue_pairs).map(line).collect::<Vec<_>>()
    };
    seen.iter().flat_map(of_one).collect()
}

/// All processes together.
fn of_devices(seen: &[WatchedProcess]) -> Vec<Line> {
    devices(seen).into_iter().map(|(device, counters)| Line { device, pair: None, counters }).collect()
}

/// What the devices have counted, by name.
pub fn devices(seen: &[WatchedProcess]) -> BTreeMap<String, Counters> {
    let mut devices: BTreeMap<String, Counters> = BTreeMap::new();
    for device in seen.iter().filter_map(WatchedProcess::account).flat_map(|account| &account.devices) {
        devices.entry(device.name.to_string()).or_default().add(&device.counters);
    }
    devices
}

impl Line {
    /// For people: the counters that have counted something.
    fn to_table(&self) -> String {
        let name = match self.pair {
            Some((Some(pid), number)) => format!("{}, QP {number:#08x} of process {pid}", self.device),
            Some((None, number)) => format!("{}, QP {number:#08x}", self.device),
            None => self.device.clone(),
        };
        let each = self.counters.each();
        let rows: Vec<_> = each
            .iter()
            .filter(|(_, value)| *value > 0)
            .map(|(name, value)| [format!("  {name}"), value.to_string()])
            .collect();
        let rest = match each.len() - rows.len() {
            0 => String::new(),
            zero => format!("  ({zero} counters are 0)\n"),
        };
        format!("{name}\n{}{rest}", aligned(&rows))
    }

    /// The form of rdma-statistic(8).
    fn to_text(&self) -> String {
        let mut text = format!("link {}/1", self.device);
        if let Some((pid, number)) = self.pair {
            let pid = pid.map_or("-".to_owned(), |pid| pid.to_string());
            let _ = write!(text, " lqpn {number} pid {pid}");
        }
        for (name, value) in self.counters.each() {
            let _ = write!(text, " {name} {value}");
        }
        text + "\n"
    }

    fn to_json(&self) -> Value {
        let counters: Map<String, Value> =
            self.counters.each().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let mut value = json!({ "ifname": self.device, "port": 1 });
        if let Some((pid, number)) = self.pair {
            value["lqpn"] = number.into();
            value["pid"] = pid.into();
        }
        value["counters"] = counters.into();
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_the_counters_that_have_counted() {
        let counters = Counters { rdma_sends: 12, sent_bytes: 3456, ..Counters::default() };
        let line = Line { device: "ferroce0".into(), pair: Some((Some(7), 0x12_3456)), counters };
        let table = line.to_table();
        assert!(table.starts_with("ferroce0, QP 0x123456 of process 7\n"), "{table}");
        assert!(table.contains("rdma_sends  12\n") && table.ends_with(" counters are 0)\n"), "{table}");
        assert!(line.to_text().starts_with("link ferroce0/1 lqpn 1193046 pid 7 "));
    }
}
