//! Whether processes that can't be asked are held up: stopped, or in a frozen cgroup.

use super::names::{self, Name};
use super::watch;
use std::collections::BTreeMap;

/// Processes that can't be asked, because their queues of connections are full. The kernel names a process only to one that is connected
/// to it, so the process is searched for by its socket, among those that this user may inspect.
#[derive(Default)]
pub(super) struct FullQueues(BTreeMap<u32, Vec<i32>>);

impl FullQueues {
    /// As [`watch::are_held_up`], of the processes that listen at `names`. False where one of them can't be found.
    pub(super) fn are_held_up(&mut self, names: &[Name], idle: &mut dyn FnMut()) -> bool {
        let listeners = names::listeners_of(names);
        let unknown: Vec<u32> =
            listeners.values().copied().filter(|inode| !self.0.contains_key(inode)).collect();
        if !unknown.is_empty() {
            self.0.extend(openers_of(&unknown));
        }
        let pids: Option<Vec<&[i32]>> = names
            .iter()
            .map(|name| self.0.get(listeners.get(&name.address().text())?).map(Vec::as_slice))
            .collect();
        pids.is_some_and(|pids| {
            watch::are_held_up(pids.concat(), &mut || {
                idle();
                false
            })
        })
    }
}

/// The processes that have sockets open, by the sockets' numbers: more than one between a fork and an exec.
fn openers_of(inodes: &[u32]) -> BTreeMap<u32, Vec<i32>> {
    let links: BTreeMap<String, u32> =
        inodes.iter().map(|inode| (format!("socket:[{inode}]"), *inode)).collect();
    let mut found: BTreeMap<u32, Vec<i32>> = BTreeMap::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let (Some(pid), Ok(open)) = (pid, std::fs::read_dir(process.path().join("fd"))) else { continue };
        for file in open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok()) {
            if let Some(&inode) = file.to_str().and_then(|link| links.get(link)) {
                let openers = found.entry(inode).or_default();
                if openers.last() != Some(&pid) {
                    openers.push(pid);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_process_is_found_by_its_socket() {
        let (socket, _other) = UnixDatagram::pair().unwrap();
        let copy = socket.try_clone().unwrap();
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&copy));
        let inode = u32::try_from(std::fs::metadata(link).unwrap().ino()).unwrap();
        let own = std::process::id().cast_signed();
        assert_eq!(openers_of(&[inode]), BTreeMap::from([(inode, vec![own])]));
        drop((socket, copy));
        assert_eq!(openers_of(&[inode]), BTreeMap::new());
    }
}
