//! Whether processes that can't be asked are held up: stopped, or in a frozen cgroup.

use super::names::{self, Name};
use super::openers::openers_of;
use super::watch;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Processes that can't be asked, because their queues of connections are full. The kernel names a process only to one that is connected
/// to it, so the process is searched for by its socket, among those that this user may inspect.
#[derive(Default)]
pub(super) struct FullQueues(BTreeMap<u32, Vec<i32>>);

impl FullQueues {
    /// As [`watch::are_held_up`], of the processes that listen at `names`. False where one of them can't be found, or has taken connections
    /// meanwhile: no request of this process lies in a full queue, so one that sleeps may have nothing left to do.
    pub(super) fn are_held_up(&mut self, names: &[Name], idle: &mut dyn FnMut()) -> bool {
        let has_room = || {
            let is_full =
                |name: &Name| matches!(name.connect(), Err(e) if e.kind() == io::ErrorKind::WouldBlock);
            !names.iter().all(is_full)
        };
        // The search may have taken long.
        self.processes_at(names).is_some_and(|pids| {
            !has_room()
                && watch::are_held_up(pids, &mut || {
                    idle();
                    has_room()
                })
        })
    }

    /// The processes that have the listeners of `names`; `None` where one of them can't be found.
    fn processes_at(&mut self, names: &[Name]) -> Option<Vec<i32>> {
        let listeners = names::listeners_of(names);
        // A process that has ended may have left its listener to another.
        self.0.retain(|_, pids| pids.iter().all(|pid| Path::new(&format!("/proc/{pid}")).exists()));
        let unknown: Vec<u32> =
            listeners.values().copied().filter(|inode| !self.0.contains_key(inode)).collect();
        if !unknown.is_empty() {
            self.0.extend(openers_of(&unknown));
        }
        names
            .iter()
            .map(|name| self.0.get(listeners.get(&name.address().text())?).map(Vec::as_slice))
            .collect::<Option<Vec<&[i32]>>>()
            .map(|pids| pids.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that sleeps, as if it had the listeners.
    struct Sleeper(std::process::Child);

    impl Sleeper {
        fn start() -> Self {
            let this = Self(std::process::Command::new("sleep").arg("60").spawn().unwrap());
            let begun = std::time::Instant::now();
            while watch::may_run(this.pid()) {
                assert!(begun.elapsed() < std::time::Duration::from_secs(30), "it sleeps");
                ferroce_os::sys::pause(std::time::Duration::from_millis(1));
            }
            this
        }

        fn pid(&self) -> i32 {
            self.0.id().cast_signed()
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = (self.0.kill(), self.0.wait());
        }
    }

    /// A name of a user without processes, so that nothing real is disturbed.
    fn test_name(slot: u16) -> Name {
        Name::listed_slot(4_000_000_000 + std::process::id() % 1000, slot)
    }

    #[test]
    fn a_process_that_sleeps_after_it_has_emptied_its_queue_is_not_held_up() {
        let name = test_name(8);
        let listener = name.listen().unwrap().expect("a free name");
        let inode = names::listeners_of(&[name])[&name.address().text()];
        let sleeper = Sleeper::start();
        let mut queues = FullQueues(BTreeMap::from([(inode, vec![sleeper.pid()])]));
        let mut are_held_up = |idle: &mut dyn FnMut()| queues.are_held_up(&[name], idle);
        let empty = || while listener.accept().is_ok() {};

        while name.connect().is_ok() {}
        assert!(are_held_up(&mut || ()));
        assert!(!are_held_up(&mut || empty()), "while it is looked at");
        empty();
        assert!(!are_held_up(&mut || unreachable!("its queue has room")));
    }

    #[test]
    fn a_process_that_has_ended_is_searched_for_once_more() {
        let name = test_name(9);
        let _listener = name.listen().unwrap().expect("a free name");
        let inode = names::listeners_of(&[name])[&name.address().text()];
        let own = std::process::id().cast_signed();
        // No process has that number.
        let mut queues = FullQueues(BTreeMap::from([(inode, vec![i32::MAX])]));
        assert_eq!(queues.processes_at(&[name]), Some(vec![own]));
    }
}
