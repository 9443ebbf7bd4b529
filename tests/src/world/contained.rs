//! Processes in PID namespaces of their own within a host, as containers of one pod are.

use super::Host;
use crate::namespace::{self, Rights};
use crate::{Artifacts, Process, Skip, tool};
use std::process::Command;

impl Host {
    /// Starts a program through `ferroce run`, as an ordinary user, in a PID namespace of its own with a `/proc` to match.
    /// The network and everything else is the host's. The process that is returned is the one that keeps the namespace.
    ///
    /// # Errors
    /// A tool that is needed isn't installed.
    pub fn start_contained(&self, words: &[&str], settings: &[(&str, &str)]) -> Result<Process, Skip> {
        let unshare = tool("unshare", "util-linux")?;
        let setpriv = tool("setpriv", "util-linux")?;
        let mut command = Command::new(unshare);
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child=KILL"]).arg(setpriv);
        if namespace::is_root() {
            let nobody = namespace::NOBODY.to_string();
            command.args(["--reuid", &nobody, "--regid", &nobody, "--clear-groups"]);
        }
        command.args(["--inh-caps=-all", "--ambient-caps=-all"]);
        command.arg(Artifacts::get().ferroce()).args(["run", "--"]).args(words);
        super::bare_environment(&mut command, settings);
        Ok(self.spawn(command, Rights::Admin))
    }
}

#[cfg(test)]
mod tests {
    use crate::{World, require};
    use std::time::Duration;

    #[test]
    fn contained_program_is_alone_and_holds_no_capability() {
        let world = require!(World::one_host(1500));
        let script = "echo $$; grep -E 'CapEff|Uid' /proc/self/status; ls -d /proc/[0-9]* | wc -l";
        let mut process = require!(world.first().start_contained(&["sh", "-c", script], &[]));
        let outcome = process.wait(Duration::from_secs(20));
        let stdout = &outcome.expect_success().stdout;
        assert!(stdout.starts_with("1\n") && stdout.contains("CapEff:\t0000000000000000"), "{outcome}");
        assert!(!stdout.contains("Uid:\t0\t"), "{outcome}");
    }
}
