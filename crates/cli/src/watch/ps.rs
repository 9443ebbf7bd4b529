//! `ferroce ps`: the processes of this host that use Ferroce, and what their queue pairs wait for.

use super::connections;
use super::waits::Pairs;
use super::{ProcessAnswer, WatchedProcess, processes};
use crate::output;
use crate::table::aligned;
use ferroce_watch::{CompletionQueue, Process, QueuePair, Wish, WorkQueue};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::process::ExitCode;

/// Columns before each line of a process.
const INDENT: usize = 2;
/// Regions that are shown one by one without `--regions`.
const FEW: usize = 4;

/// What is shown.
pub struct PsOptions<'a> {
    /// As JSON.
    pub json: bool,
    /// Each region, however many there are.
    pub regions: bool,
    /// Only these processes.
    pub pids: &'a [u32],
}

/// Prints the processes' accounts.
pub fn ps(options: &PsOptions<'_>) -> ExitCode {
    let all = match processes(Wish::Everything) {
        Ok(all) => all,
        Err(says) => {
            eprintln!("ferroce ps: {says}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(missing) = options.pids.iter().find(|&&pid| all.iter().all(|seen| seen.pid != Some(pid))) {
        eprintln!(
            "ferroce ps: process {missing} doesn't use Ferroce, or isn't yours, or is in another network namespace"
        );
        return ExitCode::FAILURE;
    }
    let chosen: Vec<&WatchedProcess> = all
        .iter()
        .filter(|seen| options.pids.is_empty() || seen.pid.is_some_and(|pid| options.pids.contains(&pid)))
        .collect();
    let pairs = Pairs::of(&all);
    if options.json {
        let list: Vec<Value> = chosen.iter().map(|seen| to_json(seen, &pairs, &all)).collect();
        return output::print(&format!("{:#}\n", Value::from(list)));
    }
    if chosen.is_empty() {
        eprintln!("ferroce ps: no process of this user uses Ferroce in this network namespace");
        return ExitCode::SUCCESS;
    }
    let mut text = String::new();
    let columns = || ratatui::crossterm::terminal::size().ok().map(|(columns, _)| usize::from(columns));
    let width = std::io::stdout().is_terminal().then(columns).flatten();
    for seen in &chosen {
        process(&mut text, seen, &pairs, &all, options.regions, width);
        text.push('\n');
    }
    mutual(&mut text, &chosen, &pairs);
    output::print(&text)
}

/// The rows; if they are wider than `width`, what each queue pair waits for is below its row.
fn fitting<const COLUMNS: usize>(mut rows: Vec<[String; COLUMNS]>, width: Option<usize>) -> String {
    let table = aligned(&rows);
    let widest = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let Some(width) = width.filter(|width| widest + INDENT > *width) else { return table };
    let waits: Vec<String> =
        rows.iter_mut().map(|row| row.last_mut().map(std::mem::take).unwrap_or_default()).collect();
    let narrow = aligned(&rows);
    let mut text = String::new();
    for (at, (line, waits)) in narrow.lines().zip(waits).enumerate() {
        let _ = writeln!(text, "{line}");
        // The head of the column isn't needed.
        if at > 0 {
            text.push_str(&wrapped(&waits, width.saturating_sub(INDENT)));
        }
    }
    text
}

/// Words in lines of at most `width` columns, where they fit.
fn wrapped(words: &str, width: usize) -> String {
    const BEGIN: &str = "   ";
    let (mut text, mut line) = (String::new(), BEGIN.to_owned());
    for word in words.split_whitespace() {
        if line.len() > BEGIN.len() && line.chars().count() + 1 + word.chars().count() > width {
            let _ = writeln!(text, "{line}");
            line = BEGIN.to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
    text
}

fn process(
    text: &mut String,
    seen: &WatchedProcess,
    pairs: &Pairs<'_>,
    all: &[WatchedProcess],
    regions: bool,
    width: Option<usize>,
) {
    let line = |text: &mut String, says: &str| {
        let _ = writeln!(text, "{says}");
    };
    let mut name = seen.name();
    name[..1].make_ascii_uppercase();
    line(text, &format!("{name} of user {}: {}", seen.uid, seen.command));
    let account = match &seen.answer {
        ProcessAnswer::Account(account) => account,
        ProcessAnswer::Stopped => return line(text, "  stopped (no details)"),
        ProcessAnswer::Silent => return line(text, "  no answer within a second"),
        ProcessAnswer::Crowded => {
            return line(
                text,
                "  too many wait to ask it: it is very busy, or another user's processes fill its queue of connections",
            );
        }
        ProcessAnswer::Strange => return line(text, "  incompatible Ferroce version"),
        ProcessAnswer::TooMuch => {
            return line(text, "  not read: its user's processes have too much to report");
        }
    };
    for device in &account.devices {
        let state = if device.active { "active" } else { "down" };
        line(text, &format!("  {} ({}, {state})", device.name, device.interface));
    }
    if account.queue_pairs.is_empty() {
        line(text, "  no queue pair");
    } else {
        let heads = ["QP", "TYPE", "STATE", "FABRIC", "PEER", "SENDS", "RECEIVES", "CQ", "WAITS"];
        let mut rows = vec![heads.map(str::to_owned)];
        rows.extend(account.queue_pairs.iter().map(|pair| row(pair, pairs.waits_for(pair, all))));
        indent(text, &fitting(rows, width));
    }
    if account.more_queue_pairs > 0 {
        line(text, &format!("  and {} more queue pairs", account.more_queue_pairs));
    }
    queues(text, account);
    if let Some(manager) = &account.connection_manager {
        indent(text, &connections::lines(manager));
    }
    if regions || account.regions.len() <= FEW {
        let heads = ["REGION", "ADDRESS", "BYTES", "ACCESS"].map(str::to_owned);
        let each = account.regions.iter().map(|region| {
            let access = if region.access.is_empty() { "local-read" } else { region.access.as_str() };
            [
                format!("{:#x}", region.key),
                format!("{:#x}", region.address),
                region.length.to_string(),
                access.to_owned(),
            ]
        });
        let rows: Vec<_> = std::iter::once(heads).chain(each).collect();
        if rows.len() > 1 {
            indent(text, &aligned(&rows));
        }
    } else {
        let count = account.regions.len() as u64 + account.more_regions;
        line(text, &format!("  {count} regions of {} bytes", account.registered));
    }
}

fn queues(text: &mut String, account: &Process) {
    let heads = ["CQ", "FILLED", "STATE"].map(str::to_owned);
    let each = account
        .completion_queues
        .iter()
        .map(|cq| [cq.number.to_string(), format!("{}/{}", cq.filled, cq.depth), cq_state(cq).to_owned()]);
    let rows: Vec<_> = std::iter::once(heads).chain(each).collect();
    if rows.len() > 1 {
        indent(text, &aligned(&rows));
    }
    let heads = ["SRQ", "RECEIVES", "LIMIT"].map(str::to_owned);
    let each = account
        .shared_receive_queues
        .iter()
        .map(|srq| [srq.number.to_string(), fill(srq.receive), srq.limit.to_string()]);
    let rows: Vec<_> = std::iter::once(heads).chain(each).collect();
    if rows.len() > 1 {
        indent(text, &aligned(&rows));
    }
}

fn cq_state(cq: &CompletionQueue) -> &'static str {
    match (cq.overrun, cq.armed, cq.filled) {
        (true, ..) => "has overrun",
        (_, true, _) => "an event is asked for",
        (_, false, 0) => "polled until it was empty",
        (_, false, _) => "completions wait to be polled",
    }
}

fn row(pair: &QueuePair, waits: String) -> [String; 9] {
    let peer = match &pair.peer {
        None => "-".to_owned(),
        Some(peer) => match peer.process {
            Some(pid) => format!("{:#08x} in {pid}", peer.number),
            None => format!("{:#08x} at {}", peer.number, peer.address),
        },
    };
    let receives = match (pair.receive, pair.shared_receive_queue) {
        (Some(receive), _) => fill(receive),
        (None, Some(srq)) => format!("SRQ {srq}"),
        (None, None) => "-".to_owned(),
    };
    let cqs = match pair.completion_queues {
        [send, receive] if send == receive => send.to_string(),
        [send, receive] => format!("{send},{receive}"),
    };
    let fabric = if pair.fabric.is_empty() { "-" } else { pair.fabric.as_str() };
    [
        format!("{:#08x}", pair.number),
        pair.service.to_string(),
        pair.state.to_string(),
        fabric.to_owned(),
        peer,
        fill(pair.send),
        receives,
        cqs,
        waits,
    ]
}

fn fill(queue: WorkQueue) -> String {
    format!("{}/{}", queue.outstanding, queue.depth)
}

fn indent(text: &mut String, block: &str) {
    for line in block.lines() {
        let _ = writeln!(text, "  {line}");
    }
}

/// Prints the queue pairs that wait for each other, each two of them once.
fn mutual(text: &mut String, chosen: &[&WatchedProcess], pairs: &Pairs<'_>) {
    for seen in chosen {
        for pair in seen.account().into_iter().flat_map(|account| &account.queue_pairs) {
            // If both are chosen, the line is printed for the one with the lower number.
            let is_first = |(other, peer): &(&WatchedProcess, &QueuePair)| {
                peer.number > pair.number || !chosen.iter().any(|one| std::ptr::eq(*one, *other))
            };
            if let Some((other, peer)) = pairs.wait_for_each_other(seen, pair).filter(is_first) {
                let _ = writeln!(
                    text,
                    "{:#08x} ({}) and {:#08x} ({}) wait for each other's message: both have receives posted, and neither \
                     has anything to send.",
                    pair.number,
                    seen.name(),
                    peer.number,
                    other.name(),
                );
            }
        }
    }
}

fn to_json(seen: &WatchedProcess, pairs: &Pairs<'_>, all: &[WatchedProcess]) -> Value {
    let mut value = json!({
        "pid": seen.pid,
        "uid": seen.uid,
        "command": seen.command,
        "condition": seen.condition(),
    });
    let Some(account) = seen.account() else { return value };
    let mut account_value = serde_json::to_value(account).unwrap_or_default();
    if let Some(list) = account_value["queue_pairs"].as_array_mut() {
        for (entry, pair) in list.iter_mut().zip(&account.queue_pairs) {
            entry["waits"] = pairs.waits_for(pair, all).into();
            let other = pairs.wait_for_each_other(seen, pair).map(|(_, peer)| peer.number);
            entry["waits_mutually_with"] = other.into();
        }
    }
    if let (Value::Object(all), Value::Object(more)) = (&mut value, account_value) {
        all.extend(more);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::super::waits::tests::{pair, process};
    use super::*;

    #[test]
    fn what_is_waited_for_is_below_a_row_that_is_too_wide() {
        let rows =
            || vec![["QP", "WAITS"].map(str::to_owned), ["0x1", "waits for a message"].map(str::to_owned)];
        assert_eq!(fitting(rows(), Some(80)), aligned(&rows()));
        assert_eq!(fitting(rows(), None), aligned(&rows()));
        assert_eq!(fitting(rows(), Some(18)), "QP\n0x1\n    waits for a\n    message\n");
    }

    #[test]
    fn two_that_wait_for_each_other_are_named_once_whoever_is_chosen() {
        let seen = [process(1, vec![pair(1, 2, 0, 1)]), process(2, vec![pair(2, 1, 0, 1)])];
        let pairs = Pairs::of(&seen);
        for chosen in [&[&seen[0], &seen[1]][..], &[&seen[0]], &[&seen[1]]] {
            let mut text = String::new();
            mutual(&mut text, chosen, &pairs);
            assert_eq!(text.matches("wait for each other's message").count(), 1, "{text}");
        }
    }
}
