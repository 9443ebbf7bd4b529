//! Processes by the sockets that they have open.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

/// The processes that have sockets open, by the sockets' numbers, as far as this user may inspect them: more than one between a fork and an
/// exec, and where one has passed a socket on.
#[must_use]
pub fn openers_of(inodes: &[u32]) -> BTreeMap<u32, Vec<i32>> {
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

/// The process is one of a user.
#[must_use]
pub fn is_process_of(pid: i32, uid: u32) -> bool {
    std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_process_is_found_by_its_socket() {
        let (socket, _other) = UnixDatagram::pair().unwrap();
        let copy = socket.try_clone().unwrap();
        let link = format!("/proc/self/fd/{}", copy.as_raw_fd());
        let inode = u32::try_from(std::fs::metadata(link).unwrap().ino()).unwrap();
        let own = std::process::id().cast_signed();
        assert_eq!(openers_of(&[inode]), BTreeMap::from([(inode, vec![own])]));
        drop((socket, copy));
        assert_eq!(openers_of(&[inode]), BTreeMap::new());
    }
}
