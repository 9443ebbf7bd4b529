//! The messages of a running process, as it reports them.

use super::TraceOptions;
use crate::output;
use crate::watch::NO_LIST;
use ferroce_explain::STATUSES;
use ferroce_host::{QueriedProcess, QueryResult, TracerConnection, ask_all};
use ferroce_watch::{Filter, LONGEST, NAMED, TraceBatch, TracedMessage, Wish};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// Time between questions.
const LOOK: Duration = Duration::from_millis(100);
/// How long the command waits for an answer before it prints a line about that.
const PATIENCE: Duration = Duration::from_secs(1);

/// Prints messages until the process ends.
pub fn trace(options: &TraceOptions<'_>, pid: u32) -> Result<ExitCode, String> {
    if options.pairs.len() > NAMED {
        return Err(format!("at most {NAMED} queue pairs can be chosen of a process"));
    }
    let filter = Filter { errors: options.errors, numbers: options.pairs.to_vec() }.to_bytes();
    let watched = find(pid)?;
    let tracer = TracerConnection::attach(&watched, &filter, LONGEST, PATIENCE).map_err(why)?;
    let mut lines = LiveOutput { options, pid, first: None, left: options.count };
    let mut told = None;
    let mut complained = false;
    while lines.left > 0 {
        let answer = match told {
            Some(QueryResult::Silence | QueryResult::Stopped) => tracer.answer(PATIENCE),
            _ => {
                std::thread::sleep(LOOK);
                tracer.ask(&filter, PATIENCE)
            }
        };
        match &answer {
            QueryResult::Account(bytes) => {
                let trace = TraceBatch::from_bytes(bytes).ok_or_else(|| why(QueryResult::Nonsense))?;
                complained = false;
                if !lines.print(&trace)? {
                    break;
                }
            }
            QueryResult::Gone => {
                eprintln!("ferroce trace: process {pid} has ended, or executes another program");
                break;
            }
            QueryResult::Nonsense => return Err(why(QueryResult::Nonsense)),
            QueryResult::Silence | QueryResult::Stopped | QueryResult::Crowded => {
                let what = if answer == QueryResult::Stopped { "is stopped" } else { "doesn't answer" };
                if !std::mem::replace(&mut complained, true) {
                    eprintln!("ferroce trace: process {pid} {what}: waiting for it");
                }
            }
        }
        told = Some(answer);
    }
    Ok(ExitCode::SUCCESS)
}

/// The process, if it is one that may be watched.
fn find(pid: u32) -> Result<QueriedProcess<()>, String> {
    let all = ask_all(Wish::Devices.to_byte(), LONGEST, PATIENCE, |_, _| Some(())).ok_or(NO_LIST)?;
    let missing = || "it doesn't use Ferroce, or isn't yours, or is in another network namespace".to_owned();
    all.into_iter().find(|watched| watched.pid == Some(pid)).ok_or_else(missing)
}

fn why(told: QueryResult) -> String {
    match told {
        QueryResult::Stopped => "it is stopped",
        QueryResult::Silence => "it has not answered within a second",
        QueryResult::Crowded => "too many processes wait to ask it",
        QueryResult::Gone => "it has ended",
        QueryResult::Nonsense | QueryResult::Account(_) => {
            "it is being traced already, or is of another version"
        }
    }
    .to_owned()
}

/// What is printed.
struct LiveOutput<'a> {
    options: &'a TraceOptions<'a>,
    pid: u32,
    /// When the first message ended.
    first: Option<u64>,
    /// Messages that may still be shown.
    left: u64,
}

impl LiveOutput<'_> {
    /// Prints what has ended; false: the reader has seen enough.
    fn print(&mut self, trace: &TraceBatch) -> Result<bool, String> {
        let mut text = String::new();
        let chosen = trace.messages.iter().filter(|message| self.options.names(message.operation.as_str()));
        for message in chosen.take(usize::try_from(self.left).unwrap_or(usize::MAX)) {
            let seconds = message.at.saturating_sub(*self.first.get_or_insert(message.at)) as f64 / 1e9;
            self.left -= 1;
            text.push_str(&match self.options.json {
                true => self.to_json(message, seconds).to_string(),
                false => self.line(message, seconds),
            });
            text.push('\n');
        }
        if trace.unseen > 0 && self.left > 0 {
            let (unseen, passed) = (trace.unseen as f64 / 1e6, trace.passed as f64 / 1e6);
            text.push_str(&match self.options.json {
                true => json!({ "pid": self.pid, "unseen_milliseconds": unseen }).to_string(),
                false => format!("             … not noted: what ended in {unseen:.1} of {passed:.1} ms"),
            });
            text.push('\n');
        }
        // One write for all lines, since each write is a system call.
        let text = text.trim_end_matches('\n');
        match text.is_empty() {
            true => Ok(true),
            false => output::line(text).map_err(|error| format!("standard output: {error}")),
        }
    }

    fn line(&self, message: &TracedMessage, seconds: f64) -> String {
        let TracedMessage { number, operation, bytes, wr_id, .. } = message;
        let way = if message.received { "in" } else { "out" };
        format!(
            "{seconds:12.6} {way:3} {} QP {number:#08x} {operation}, {bytes} bytes, request {wr_id}: {}",
            self.pid,
            status(message.status)
        )
    }

    fn to_json(&self, message: &TracedMessage, seconds: f64) -> Value {
        json!({
            "seconds": seconds,
            "direction": if message.received { "in" } else { "out" },
            "pid": self.pid,
            "qp": message.number,
            "operation": message.operation,
            "bytes": message.bytes,
            "wr_id": message.wr_id,
            "status": status(message.status),
        })
    }
}

/// The name of a status.
fn status(value: u8) -> String {
    match STATUSES.iter().find(|word| word.value == i32::from(value)) {
        Some(word) => word.name.to_owned(),
        None => format!("status {value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceInput;

    #[test]
    fn a_message_is_a_line_with_its_end() {
        let options = TraceOptions {
            what: TraceInput::Process(7),
            count: 1,
            follow: false,
            json: false,
            pairs: &[],
            operation: None,
            errors: false,
            acks: false,
        };
        let lines = LiveOutput { options: &options, pid: 7, first: None, left: 1 };
        let message = TracedMessage {
            number: 0x12_3456,
            operation: "RDMA WRITE".into(),
            bytes: 64,
            wr_id: 5,
            status: 10,
            ..TracedMessage::default()
        };
        let line = "    0.500000 out 7 QP 0x123456 RDMA WRITE, 64 bytes, request 5: IBV_WC_REM_ACCESS_ERR";
        assert_eq!(lines.line(&message, 0.5), line);
        let receive = TracedMessage { received: true, status: 0, ..message };
        assert!(lines.line(&receive, 0.5).ends_with(": IBV_WC_SUCCESS"));
        assert_eq!(lines.to_json(&receive, 0.5)["direction"], "in");
        assert_eq!(status(255), "status 255");
    }
}
