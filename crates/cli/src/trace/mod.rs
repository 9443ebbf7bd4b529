//! `ferroce trace`: the messages of a running process, or of a capture, a line each, also while it is being written.

pub mod capture;
mod live;
mod messages;
pub mod packet;

use crate::output;
use messages::{MessageTracker, PacketMessage};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

/// What is traced.
#[derive(Clone, Copy)]
pub enum TraceInput<'a> {
    Process(u32),
    Capture(&'a Path),
}

/// What is shown of which capture or process.
pub struct TraceOptions<'a> {
    pub what: TraceInput<'a>,
    /// How many messages are shown.
    pub count: u64,
    /// Goes on when the file's end is reached.
    pub follow: bool,
    pub json: bool,
    /// Only messages for these queue pairs; none: for all.
    pub pairs: &'a [u32],
    /// Only operations whose names have this in them.
    pub operation: Option<&'a str>,
    /// Only refusals.
    pub errors: bool,
    /// Also what does nothing but acknowledge.
    pub acks: bool,
}

/// Prints the messages of a capture, or of a process.
pub fn trace(options: &TraceOptions<'_>) -> ExitCode {
    let (name, traced) = match options.what {
        TraceInput::Process(pid) => (format!("process {pid}"), live::trace(options, pid)),
        TraceInput::Capture(file) => (file.display().to_string(), read(options, file)),
    };
    match traced {
        Ok(code) => code,
        Err(says) => {
            eprintln!("ferroce trace: {name}: {says}");
            ExitCode::FAILURE
        }
    }
}

fn read(options: &TraceOptions<'_>, file: &Path) -> Result<ExitCode, String> {
    let is_pid = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(pid) = file.to_str().filter(|name| is_pid(name) && !file.exists()) {
        return Err(format!("there is no such file; for process {pid}: `ferroce trace --pid {pid}`"));
    }
    let (mut messages, mut shown, mut left_out) = (MessageTracker::default(), 0, 0_u64);
    capture::read(file, options.follow, |packet, reading| {
        if shown == options.count {
            return Ok(ControlFlow::Break(()));
        }
        let Some(message) = messages.packet(packet) else { return Ok(ControlFlow::Continue(())) };
        if !options.wants(&message) {
            left_out += 1;
            return Ok(ControlFlow::Continue(()));
        }
        let line = if options.json { message.to_json().to_string() } else { message.to_string() };
        shown += 1;
        reading.make_way();
        match output::line(&line) {
            Ok(true) if shown < options.count => Ok(ControlFlow::Continue(())),
            Ok(_) => Ok(ControlFlow::Break(())),
            Err(error) => Err(format!("standard output: {error}")),
        }
    })?;
    if shown == 0 && options.count > 0 {
        let file = file.display();
        match left_out {
            0 => eprintln!("ferroce trace: {file} contains no RoCEv2 message"),
            _ => {
                eprintln!("ferroce trace: none of the {left_out} messages in {file} is wanted by the options")
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl TraceOptions<'_> {
    /// An operation is to be shown.
    fn names(&self, operation: &str) -> bool {
        let named = |part: &str| operation.to_lowercase().contains(&part.to_lowercase());
        self.operation.is_none_or(named)
    }

    fn wants(&self, message: &PacketMessage) -> bool {
        (self.acks || !message.acknowledges || message.refusal.is_some())
            && (!self.errors || message.refusal.is_some())
            && (self.pairs.is_empty() || self.pairs.contains(&message.number))
            && self.names(message.operation)
    }
}
