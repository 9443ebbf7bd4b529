//! Which process holds an abstract socket name, and what processes hold open.

use crate::{Host, Process};
use std::fs;
use std::path::PathBuf;

impl Host {
    /// The process of this host that holds an abstract socket name (without the `@`), as far as we may look.
    pub fn holder_of(&self, name: &str) -> Option<u32> {
        let residents = self.residents();
        let table =
            residents.iter().find_map(|pid| fs::read_to_string(format!("/proc/{pid}/net/unix")).ok())?;
        let name = format!("@{name}");
        let socket = table.lines().find_map(|line| {
            let mut words = line.split_whitespace().rev();
            (words.next() == Some(&name)).then(|| words.next().map(|inode| format!("socket:[{inode}]")))?
        })?;
        residents.into_iter().find(|pid| {
            let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
            let mut targets = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
            targets.any(|target| target.as_os_str() == socket.as_str())
        })
    }

    /// The process that hands out the sockets of UDP port 4791: it holds the leader's name.
    pub fn leader(&self) -> Option<u32> {
        let uid = if crate::namespace::is_root() {
            crate::namespace::NOBODY
        } else {
            // SAFETY: geteuid has no preconditions.
            unsafe { libc::geteuid() }
        };
        self.holder_of(&format!("ferroce-2-u{uid}-leader"))
    }
}

/// What a process holds that could leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open sockets.
    pub sockets: usize,
    /// Other open descriptors.
    pub other_descriptors: usize,
    /// Mappings of memory.
    pub mappings: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory.
    pub resident_kib: u64,
}

impl Process {
    /// What the process, if it lives, holds now. (Of a program started by `ferroce run`: that program, which has taken the
    /// process over.)
    pub fn holdings(&self) -> Holdings {
        let proc = |file: &str| format!("/proc/{}/{file}", self.id());
        let descriptors: Vec<PathBuf> = fs::read_dir(proc("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .collect();
        let sockets =
            descriptors.iter().filter(|target| target.to_string_lossy().starts_with("socket:")).count();
        let status = fs::read_to_string(proc("status")).unwrap_or_default();
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        Holdings {
            sockets,
            other_descriptors: descriptors.len() - sockets,
            mappings: fs::read_to_string(proc("maps")).unwrap_or_default().lines().count(),
            threads: value("Threads:") as usize,
            resident_kib: value("VmRSS:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{World, require};
    use std::time::Duration;

    #[test]
    fn holder_of_a_name_is_found() {
        let world = require!(World::one_host(1500));
        let script = "import socket,time; s=socket.socket(socket.AF_UNIX); s.bind('\\0held'); s.listen(); \
                      print('bound',flush=True); time.sleep(60)";
        let mut holder = world.first().start(&["python3", "-c", script], &[]);
        holder.wait_for_output("bound", Duration::from_secs(10));
        assert_eq!(world.first().holder_of("held"), Some(holder.id()));
        assert_eq!(world.first().holder_of("unbound"), None);
    }

    #[test]
    fn holdings_are_counted() {
        let world = require!(World::one_host(1500));
        let script = "import socket,time; s=[socket.socket() for _ in range(9)]; f=[open('/dev/null') for _ in range(5)]; \
                      m=bytearray(1<<25); print('open',flush=True); time.sleep(60)";
        let mut holder = world.first().start(&["python3", "-c", script], &[]);
        holder.wait_for_output("open", Duration::from_secs(10));
        let holdings = holder.holdings();
        assert_eq!((holdings.sockets, holdings.threads), (9, 1), "{holdings:?}");
        assert!(holdings.other_descriptors >= 3 + 5, "{holdings:?}");
        assert!(holdings.resident_kib > 1 << 15 && holdings.mappings > 10, "{holdings:?}");
    }
}
