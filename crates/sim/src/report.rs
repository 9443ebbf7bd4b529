//! What a world that hangs is waiting for.

use crate::adapter::{HostState, QpState};
use crate::state::State;
use crate::wait::Wait;
use std::fmt::Write;
use std::time::Duration;

/// Packets that a report contains.
const PACKETS: usize = 12;

/// Why nothing happens any more: what each program and each queue pair waits for.
pub(crate) fn hang(state: &State) -> String {
    let now = Duration::from_nanos(state.now.0);
    let mut text = match state.next_event() {
        None => format!("the simulated network hangs at {now:?}: nothing is in transit, and no timer runs\n"),
        Some(_) => {
            let since = state.now.since(state.progress);
            format!("the simulated network hangs at {now:?}: no request has completed for {since:?}\n")
        }
    };
    describe(state, &mut text);
    text
}

/// What each program and each queue pair waits for.
pub(crate) fn describe(state: &State, text: &mut String) {
    let _ = writeln!(text, "packets in transit: {}", state.in_transit());
    for program in state.programs.iter().filter(|program| !program.ended) {
        let _ = writeln!(text, "program {}: {}", program.name, waits(state, program.wait.as_ref()));
    }
    for host in &state.hosts {
        let how = match host {
            HostState { up: false, .. } => " (crashed)",
            HostState { paused: true, .. } => " (paused)",
            HostState { plugged: false, .. } => " (unplugged)",
            _ => "",
        };
        let _ = writeln!(text, "host {}{how}, {}:", host.name, host.ip);
        for (qpn, qp) in &host.qps {
            let _ = writeln!(text, "  QP {qpn:#x}: {}", waits_for(host, qp));
        }
    }
    let _ = writeln!(text, "the last packets:");
    for event in state.last_packets(PACKETS) {
        let _ = writeln!(text, "{event}");
    }
}

/// What a test has left: objects of adapters, and programs that haven't ended.
pub(crate) fn left(state: &State) -> Vec<String> {
    let mut left: Vec<String> = state.ended.iter().map(|why| why.to_string()).collect();
    for program in state.programs.iter().skip(1).filter(|program| !program.ended) {
        left.push(format!(
            "program {} hasn't ended: it {}",
            program.name,
            waits(state, program.wait.as_ref())
        ));
    }
    for host in &state.hosts {
        let name = &host.name;
        for (qpn, qp) in &host.qps {
            left.push(format!("{name}: QP {qpn:#x} exists: {}", waits_for(host, qp)));
        }
        for (number, cq) in host.cqs.iter().filter(|(_, cq)| !cq.entries.is_empty()) {
            left.push(format!(
                "{name}: CQ {number:#x} has {} completions that weren't polled",
                cq.entries.len()
            ));
        }
        for key in host.tables.keys.values() {
            let what = if key.remote.is_some() { "is exposed" } else { "is registered" };
            left.push(format!("{name}: memory of {} bytes {what}", key.tap.len()));
        }
    }
    left
}

fn waits(state: &State, wait: Option<&Wait>) -> String {
    match wait {
        None => "runs".into(),
        Some(Wait::Start) => "hasn't begun".into(),
        Some(Wait::Cq { host, cq, until, .. }) => {
            let limit = until.map(|until| format!(" until {:?}", Duration::from_nanos(until.0)));
            let limit = limit.unwrap_or_default();
            format!("waits for a completion in CQ {cq:#x} of {}{limit}", state.hosts[*host].name)
        }
        Some(Wait::Event { host, .. }) => format!("waits for an event of {}", state.hosts[*host].name),
        Some(Wait::Look(_)) => "polls exposed memory".into(),
        Some(Wait::Gone(host)) => format!("waits for the end of the programs of {}", state.hosts[*host].name),
        Some(Wait::Sleep(at)) => format!("sleeps until {:?}", Duration::from_nanos(at.0)),
        Some(Wait::End(program)) => format!("waits for the end of {}", state.programs[*program].name),
        Some(Wait::Mail(_)) => "waits for a message of another program".into(),
    }
}

fn waits_for(host: &HostState, QpState { qp, side, .. }: &QpState) -> String {
    let mut text = format!("{}", qp.state());
    if let Some((_, fault)) = &side.first {
        let _ = write!(text, " after {fault}");
    }
    match qp.oldest() {
        Some(oldest) => {
            let _ = write!(
                text,
                ", {} sends outstanding, the oldest is {:?} of {} bytes",
                qp.sq_len(),
                oldest.wr.op,
                oldest.len
            );
            text.push_str(match (oldest.started, oldest.not_ready_since) {
                (_, Some(_)) => ", which waits for a receive of the peer",
                (true, None) => ", which waits for the peer's answer",
                (false, None) => ", which hasn't been sent",
            });
        }
        None => text.push_str(", no send outstanding"),
    }
    let shared = side.srq.and_then(|srq| host.tables.srqs.get(&srq));
    let receives = shared.map_or(&side.receives, |srq| &srq.receives);
    let _ = write!(text, "; {} receives posted", receives.len());
    let held: usize = [side.send_cq, side.recv_cq]
        .iter()
        .filter_map(|cq| host.cqs.get(cq))
        .map(|cq| cq.entries.len())
        .sum();
    if held > 0 {
        text.push_str("; completions wait to be polled");
    }
    text
}
