//! Hosts that crash, restart, stop and go on.

use crate::planned::Planned;
use crate::state::State;
use crate::trace::What;
use crate::wait::{ProgramState, Wait};

impl State {
    fn note_host(&mut self, host: usize, what: &str) {
        let at = self.hosts[host].name.clone();
        self.note(What::Host { at, what: what.into() });
    }

    /// Ends a host: its programs, and all objects of its adapter. Nothing is sent for them any more.
    pub(crate) fn crash(&mut self, host: usize) {
        if !self.hosts[host].up {
            return;
        }
        self.note_host(host, "crashes");
        self.timers.retain(|(_, of, _)| *of != host);
        self.hosts[host].crash();
        let ends = |program: &&mut ProgramState| program.host == Some(host) && !program.ended;
        self.programs.iter_mut().filter(ends).for_each(|program| program.killed = true);
    }

    /// Starts a host that has crashed, with a new adapter, and its programs.
    pub(crate) fn restart(&mut self, host: usize) {
        if self.hosts[host].up {
            return;
        }
        self.note_host(host, "restarts");
        self.hosts[host].up = true;
        self.hosts[host].paused = false;
        for boot in 0..self.hosts[host].boots.len() {
            self.start_boot(host, boot);
        }
    }

    /// Starts a program that a host starts by itself. Its thread is made by the program that runs now.
    pub(crate) fn start_boot(&mut self, host: usize, boot: usize) {
        let name = self.hosts[host].name.clone();
        let state = ProgramState { wait: Some(Wait::Start), ..ProgramState::new(name, Some(host)) };
        self.programs.push(state);
        let body = self.hosts[host].boots[boot].clone();
        self.unstarted.push((self.programs.len() - 1, body));
    }

    pub(crate) fn pause(&mut self, host: usize, paused: bool) {
        self.note_host(host, if paused { "is paused" } else { "goes on" });
        self.hosts[host].paused = paused;
    }

    /// The programs that ran on a host when it crashed have ended.
    pub(crate) fn is_gone(&self, host: usize) -> bool {
        self.programs.iter().all(|program| program.host != Some(host) || !program.killed || program.ended)
    }

    /// A program whose host has crashed and that hasn't ended.
    pub(crate) fn next_killed(&self) -> Option<usize> {
        self.programs.iter().position(|program| program.killed && !program.ended)
    }

    /// Does what was planned for this moment.
    pub(crate) fn upset(&mut self, planned: &Planned) {
        match planned {
            Planned::Crash(host) => self.crash(*host),
            Planned::Restart(host) => self.restart(*host),
            Planned::Pause(host) => self.pause(*host, true),
            Planned::Resume(host) => self.pause(*host, false),
            Planned::Partition(some, others) => self.partition(some, others),
            Planned::Heal => self.heal(),
        }
        self.progress = self.now;
    }
}
