//! The processes of this host that use Ferroce, as they report themselves: `ferroce ps`, `stats` and `top`.
//!
//! In here: the choice of processes, and the texts about their accounts. Not here: the requests (`ferroce_host`), and the validation of
//! answers (`ferroce_watch`).

mod connections;
mod kept;
pub mod ps;
pub mod rates;
pub mod stats;
pub mod top;
mod waits;

use ferroce_host::{QueriedProcess, QueryResult, ask_all};
use ferroce_os::sys;
use ferroce_watch::{LONGEST, Process, Wish, harmless};
use kept::KeptAccounts;
use std::fs;
use std::time::Duration;

/// Why no process is found.
pub const NO_LIST: &str = "neither sock_diag(7) nor /proc/net/unix can be read, which list the processes";
/// How long processes that don't answer are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// A process, and its answer.
#[derive(Debug)]
pub struct WatchedProcess {
    pub uid: u32,
    /// `None`: of another PID namespace, or too many wait to ask it and its number can't be found out.
    pub pid: Option<u32>,
    /// Its command line, as far as it can be known.
    pub command: String,
    /// Slots of queue pairs' numbers that it has.
    pub slots: Vec<u16>,
    pub answer: ProcessAnswer,
}

/// What has come of asking.
#[derive(Debug)]
pub enum ProcessAnswer {
    /// An account.
    Account(Box<Process>),
    Stopped,
    Silent,
    /// Too many wait to ask it.
    Crowded,
    /// Of another version, or making no sense.
    Strange,
    /// An account that isn't read: those of the process's user have taken all the room that they have.
    TooMuch,
}

impl WatchedProcess {
    /// The account, if there is one.
    pub fn account(&self) -> Option<&Process> {
        match &self.answer {
            ProcessAnswer::Account(account) => Some(account),
            _ => None,
        }
    }

    /// "process 12".
    pub fn name(&self) -> String {
        match (self.pid, &self.answer, self.slots.first()) {
            (Some(pid), ..) => format!("process {pid}"),
            (None, ProcessAnswer::Crowded, Some(slot)) => format!("the process with slot {slot}"),
            (None, ..) => "a process of another PID namespace".to_owned(),
        }
    }

    /// Why there is no account, in a word.
    pub fn condition(&self) -> &'static str {
        match self.answer {
            ProcessAnswer::Account(_) => "running",
            ProcessAnswer::Stopped => "stopped",
            ProcessAnswer::Silent => "silent",
            ProcessAnswer::Crowded => "crowded",
            ProcessAnswer::Strange | ProcessAnswer::TooMuch => "unknown",
        }
    }
}

/// The processes that this user may watch, in the order of their numbers.
///
/// # Errors
/// They can't be found here.
pub fn processes(wish: Wish) -> Result<Vec<WatchedProcess>, String> {
    let mut kept = KeptAccounts::new(sys::user_id());
    let read = |uid, account: Vec<u8>| Some(kept.read(uid, &account));
    let all = ask_all(wish.to_byte(), LONGEST, PATIENCE, read).ok_or(NO_LIST)?;
    let mut seen: Vec<WatchedProcess> = Vec::new();
    for watched in all {
        let answer = match watched.told {
            QueryResult::Account(answer) => answer,
            QueryResult::Stopped => ProcessAnswer::Stopped,
            QueryResult::Silence => ProcessAnswer::Silent,
            QueryResult::Crowded => ProcessAnswer::Crowded,
            QueryResult::Nonsense => ProcessAnswer::Strange,
            QueryResult::Gone => continue,
        };
        // A process without a PID here has answered once for each slot.
        let again = |other: &WatchedProcess| match (&answer, other.account()) {
            (ProcessAnswer::Account(account), Some(known)) => {
                watched.pid.is_none() && other.pid.is_none() && known.slots == account.slots
            }
            _ => false,
        };
        if !seen.iter().any(again) {
            let QueriedProcess { uid, pid, slots, .. } = watched;
            let command = pid.map(command_of).unwrap_or_default();
            seen.push(WatchedProcess { uid, pid, command, slots, answer });
        }
    }
    seen.sort_by_key(|seen| (seen.pid, seen.uid));
    Ok(seen)
}

/// The command line of a process, or its name where that can't be read.
fn command_of(pid: u32) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&words).trim_end_matches('\0').replace('\0', " ");
    match text.is_empty() {
        true => harmless(fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end()),
        false => harmless(&text),
    }
}
