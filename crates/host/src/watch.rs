//! Asking the host's processes what they are doing.
//!
//! Whom a user asks are the processes of that user; root asks all processes. A process answers by handing over a sealed memfd,
//! so neither side ever waits for the other, and what was handed over is read, never mapped. A stopped process, which never
//! answers, is reported as such.

use super::frame;
use super::names::{Name, slots_of, taken_slots};
use super::openers::{is_process_of, openers_of};
use super::user::User;
use ferroce_os::sys::{self, EngineFd};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

/// The kind of a request for an account of a process.
pub const KIND_WATCH: u8 = 7;
/// Frame, wish.
const REQUEST: usize = frame::HEADER + 1;
/// Bytes of the longest answer, to whatever question.
const LONGEST_ANSWER: usize = 128;
/// Processes asked at a time.
const CROWD: usize = 128;
/// How long answers are waited for before a process's state is looked at.
const STATE_AFTER: Duration = Duration::from_millis(30);
/// How long processes that too many wait to ask are tried again, all together.
const CROWD_PATIENCE: Duration = Duration::from_millis(200);

/// A process of the host.
#[derive(Debug)]
pub struct QueriedProcess<T> {
    /// Its user.
    pub uid: u32,
    /// Its number; `None`: it is of another PID namespace, or too many wait to ask it and it can't be found by its socket.
    pub pid: Option<u32>,
    /// Slots of the QPN space whose names it holds; of a process without a number here one of them.
    pub slots: Vec<u16>,
    /// Its answer.
    pub told: QueryResult<T>,
}

/// What has come of asking a process.
#[derive(Debug, PartialEq, Eq)]
pub enum QueryResult<T = Vec<u8>> {
    /// This.
    Account(T),
    /// Nothing: it is stopped (by a signal or a debugger, or frozen with its cgroup).
    Stopped,
    /// Nothing in time.
    Silence,
    /// Nothing: too many wait to ask it. It is stopped or very busy, or another user's processes fill its queue of connections.
    Crowded,
    /// It has ended meanwhile.
    Gone,
    /// It doesn't know the question, or its answer makes no sense.
    Nonsense,
}

/// A connection to the holder of a slot, if this process's user may watch it, and the holder's user and process. A holder that too many wait to
/// ask is tried again for `within` at most.
pub(super) fn reach(slot: u16, within: Duration) -> io::Result<(EngineFd, libc::ucred)> {
    let connection = Name::slot(slot).connect_within(within, &mut || ())?;
    let user = User::current();
    let proof = if user.uid() == 0 { Ok(()) } else { user.check_peer(connection.raw()) };
    let connection = connection.proven(proof)?;
    let peer = sys::peer_credentials(connection.raw())?;
    Ok((connection, peer))
}

/// Asks each process that this process's user may watch, in no order. `wish` goes with the request; no account is longer than
/// `longest`. Takes `patience` at most for each 128 processes. `None` where the names of processes can't be read.
///
/// `read` gets a process's user and its account as it comes, and returns what is kept of it: `None` if it makes no sense.
#[must_use]
pub fn ask_all<T>(
    wish: u8,
    longest: usize,
    patience: Duration,
    mut read: impl FnMut(u32, Vec<u8>) -> Option<T>,
) -> Option<Vec<QueriedProcess<T>>> {
    let own = User::current().uid();
    let slots = if own == 0 { taken_slots()? } else { slots_of(own)? };
    let mut question = WatchQuestion { wish, longest, patience, read: &mut read };
    let mut found = BTreeMap::new();
    let mut all = Vec::new();
    let mut crowded = Vec::new();
    let mut crowd_patience = CROWD_PATIENCE;
    for (slot, owner) in slots {
        let begun = Instant::now();
        let (connection, peer) = match question.put(slot, crowd_patience) {
            Ok(asked) => asked,
            Err(error) => {
                if error.kind() == io::ErrorKind::WouldBlock {
                    crowd_patience = crowd_patience.saturating_sub(begun.elapsed());
                    // Its user is that of the listener.
                    let uid = owner.uid.filter(|&uid| own == 0 || uid == own);
                    crowded.extend(uid.map(|uid| CrowdedSlot { slot, uid, inode: owner.inode }));
                }
                continue;
            }
        };
        if let Some(known) = find_process(&mut all, peer.uid, number_of(peer.pid)) {
            known.slots.push(slot);
            continue;
        }
        // A process without a number here can't be known by it.
        let which = (peer.uid, peer.pid, if peer.pid == 0 { slot } else { 0 });
        found
            .entry(which)
            .or_insert_with(|| PendingQuery {
                uid: peer.uid,
                pid: peer.pid,
                slots: Vec::new(),
                connection: Some(connection),
                told: QueryResult::Silence,
            })
            .slots
            .push(slot);
        if found.len() == CROWD {
            all.extend(question.answers(std::mem::take(&mut found).into_values().collect()));
        }
    }
    all.extend(question.answers(found.into_values().collect()));
    add_crowded(&mut all, &crowded);
    Some(all)
}

/// A slot at which too many wait to ask its process.
struct CrowdedSlot {
    slot: u16,
    /// The user of its listener, and the listener's number in `/proc/PID/fd`, as far as the kernel lists it.
    uid: u32,
    inode: Option<u32>,
}

/// Adds slots whose processes couldn't be asked there. A process may have answered at another slot.
fn add_crowded<T>(all: &mut Vec<QueriedProcess<T>>, crowded: &[CrowdedSlot]) {
    let inodes: Vec<u32> = crowded.iter().filter_map(|slot| slot.inode).collect();
    let openers = if inodes.is_empty() { BTreeMap::new() } else { openers_of(&inodes) };
    for &CrowdedSlot { slot, uid, inode } in crowded {
        let mut pids = inode.and_then(|inode| openers.get(&inode)).into_iter().flatten().copied();
        // One that has answered is the holder, whichever others have the listener open between a fork and an exec. The owner of its files in /proc may be
        // another: root, where it isn't dumpable.
        let answered = pids.clone().find(|&pid| find_process(all, uid, number_of(pid)).is_some());
        let pid = answered.or_else(|| pids.find(|&pid| is_process_of(pid, uid)));
        let number = pid.and_then(number_of);
        match find_process(all, uid, number) {
            Some(known) => known.slots.push(slot),
            None => {
                let told =
                    if pid.is_some_and(is_stopped) { QueryResult::Stopped } else { QueryResult::Crowded };
                all.push(QueriedProcess { uid, pid: number, slots: vec![slot], told });
            }
        }
    }
}

/// The number of a process, if it has one in this PID namespace.
fn number_of(pid: i32) -> Option<u32> {
    u32::try_from(pid).ok().filter(|&pid| pid != 0)
}

/// The process of a user that has the number. None has the number `None`.
fn find_process<T>(
    all: &mut [QueriedProcess<T>],
    uid: u32,
    pid: Option<u32>,
) -> Option<&mut QueriedProcess<T>> {
    all.iter_mut().find(|process| pid.is_some() && (process.uid, process.pid) == (uid, pid))
}

/// A process that is being asked.
struct PendingQuery<T> {
    uid: u32,
    pid: i32,
    slots: Vec<u16>,
    /// Until it has answered; it may be too busy for one.
    connection: Option<EngineFd>,
    told: QueryResult<T>,
}

/// What all are asked.
struct WatchQuestion<'a, T> {
    wish: u8,
    longest: usize,
    patience: Duration,
    read: &'a mut dyn FnMut(u32, Vec<u8>) -> Option<T>,
}

impl<T> WatchQuestion<'_, T> {
    /// Asks the holder of a slot: a connection to it, and its user and process. `within` as in [`reach`].
    fn put(&self, slot: u16, within: Duration) -> io::Result<(EngineFd, libc::ucred)> {
        let (connection, peer) = reach(slot, within)?;
        let mut request = [0; REQUEST];
        request[..frame::HEADER].copy_from_slice(&frame::header(KIND_WATCH));
        request[frame::HEADER] = self.wish;
        frame::send(connection.raw(), &mut request, &[])?;
        Ok((connection, peer))
    }

    /// Waits for the answers.
    fn answers(&mut self, mut asked: Vec<PendingQuery<T>>) -> Vec<QueriedProcess<T>> {
        let begin = Instant::now();
        let mut states_known = false;
        while asked.iter().any(|process| process.connection.is_some()) {
            let passed = begin.elapsed();
            if passed >= self.patience {
                // These may have answered while the accounts of others were read.
                self.wait(&mut asked, Duration::ZERO);
                break;
            }
            if passed >= STATE_AFTER && !states_known {
                states_known = true;
                for process in asked.iter_mut().filter(|process| process.connection.is_some()) {
                    if is_stopped(process.pid) {
                        process.end(QueryResult::Stopped);
                    }
                }
                continue;
            }
            let until = if states_known { self.patience } else { STATE_AFTER.min(self.patience) };
            self.wait(&mut asked, until - passed);
        }
        let watched = |PendingQuery { uid, pid, slots, told, .. }| QueriedProcess {
            uid,
            pid: number_of(pid),
            slots,
            told,
        };
        asked.into_iter().map(watched).collect()
    }

    /// Waits for answers, and takes those that have come.
    fn wait(&mut self, asked: &mut [PendingQuery<T>], patience: Duration) {
        let mut waiting: Vec<_> = asked.iter_mut().filter(|process| process.connection.is_some()).collect();
        let poll_of = |process: &&mut PendingQuery<T>| libc::pollfd {
            fd: process.connection.as_ref().map_or(-1, EngineFd::raw),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut polls: Vec<_> = waiting.iter().map(poll_of).collect();
        if sys::poll(&mut polls, patience).is_err() {
            return sys::pause(Duration::from_millis(1));
        }
        for (process, poll) in waiting.iter_mut().zip(&polls).filter(|(_, poll)| poll.revents != 0) {
            process.end(receive(poll.fd, self.longest, |account| (self.read)(process.uid, account)));
        }
    }
}

impl<T> PendingQuery<T> {
    fn end(&mut self, told: QueryResult<T>) {
        self.connection = None;
        self.told = told;
    }
}

/// Takes an answer, of which `keep` makes what the caller needs. Nothing is believed of it: what is behind the descriptor is memory that can't be made shorter, and is
/// read by a call that neither blocks nor faults, whichever process has made it.
pub(super) fn receive<T>(
    connection: i32,
    longest: usize,
    keep: impl FnOnce(Vec<u8>) -> Option<T>,
) -> QueryResult<T> {
    let mut answer = [0; LONGEST_ANSWER];
    let Ok((length, fds)) = frame::receive(connection, &mut answer) else { return QueryResult::Gone };
    if length == 0 {
        return QueryResult::Gone;
    }
    let granted = frame::kind_of(&answer[..length]) == Some(frame::GRANTED);
    let account = match (granted, &fds[..]) {
        (true, [memory]) => read(memory, longest),
        _ => None,
    };
    frame::discard(fds);
    account.and_then(keep).map_or(QueryResult::Nonsense, QueryResult::Account)
}

fn read(memory: &EngineFd, longest: usize) -> Option<Vec<u8>> {
    let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let fd = memory.raw();
    if sys::seals(fd).ok()? & wanted != wanted {
        return None;
    }
    let length = usize::try_from(sys::file_size(fd).ok()?).ok().filter(|&length| length <= longest)?;
    let mut bytes = vec![0; length];
    (sys::read_at(fd, &mut bytes, 0).ok()? == length).then_some(bytes)
}

/// The process is stopped, being traced and at a halt, or in a frozen cgroup. False of 0, a process of another PID namespace, and of all
/// processes where `/proc` is another namespace's.
#[must_use]
pub fn is_stopped(pid: i32) -> bool {
    let entry = |name| if pid == 0 { None } else { sys::proc_entry(pid, name).ok() };
    let has_stopped = |path| matches!(state_at(path), Some(b'T' | b't'));
    entry("stat").is_some_and(has_stopped)
        || entry("cgroup").and_then(text_at).is_some_and(|cgroups| is_frozen(&cgroups, text_at))
}

/// One of the cgroups in the text of `/proc/PID/cgroup` is frozen (`docker pause`). Its file, which any process may read, is where it is
/// mounted as a rule: the states of processes don't show it, S of cgroup v2 and D of v1. A cgroup outside of this process's cgroup namespace
/// can't be seen.
fn is_frozen(cgroups: &str, read: impl Fn(String) -> Option<String>) -> bool {
    let contains =
        |path: String, word: &str| read(path).is_some_and(|text| text.lines().any(|line| line == word));
    cgroups.lines().any(|line| {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            return false;
        };
        if path.split('/').any(|name| name == "..") {
            return false;
        }
        match controllers {
            "" => ["", "/unified"]
                .iter()
                .any(|mount| contains(format!("/sys/fs/cgroup{mount}{path}/cgroup.events"), "frozen 1")),
            "freezer" => contains(format!("/sys/fs/cgroup/freezer{path}/freezer.state"), "FROZEN"),
            _ => false,
        }
    })
}

/// A process that doesn't answer what it was asked, and of which no thread [may run](may_run) for so long, is held up: in a frozen cgroup that
/// can't be seen. One that waits for a processor or for a slow disk isn't.
pub(super) const ASLEEP: Duration = Duration::from_millis(200);
/// Between two looks at processes that don't answer.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Each of the processes is held up: it is stopped, or doesn't run. `has_answered` is called between two looks: true if one of them has
/// answered.
pub(super) fn are_held_up(mut pids: Vec<i32>, has_answered: &mut dyn FnMut() -> bool) -> bool {
    pids.retain(|&pid| !is_stopped(pid));
    let begun = Instant::now();
    while !pids.is_empty() && begun.elapsed() < ASLEEP {
        if has_answered() || pids.iter().any(|&pid| may_run(pid)) {
            return false;
        }
        sys::pause(LOOK_INTERVAL);
    }
    true
}

/// A thread of the process runs, waits for a processor, a disk or memory (state D, also that of frozen processes before cgroup v2), or is ending
/// (perhaps with a core dump). True of 0, and where `/proc` doesn't have the process.
pub(super) fn may_run(pid: i32) -> bool {
    let directory = if pid == 0 { None } else { sys::proc_entry(pid, "task").ok() };
    let Some(threads) = directory.and_then(|path| std::fs::read_dir(path).ok()) else { return true };
    threads.flatten().any(|thread| {
        let path = thread.path().join("stat").into_os_string().into_string();
        path.is_ok_and(|path| state_at(path).is_some_and(|state| !b"STt".contains(&state)))
    })
}

/// The text of a file of the kernel's.
fn text_at(path: String) -> Option<String> {
    String::from_utf8(sys::read_file(&CString::new(path).ok()?, 64 << 10).ok()?).ok()
}

/// The state in the file `stat` of a process or a thread.
fn state_at(path: String) -> Option<u8> {
    let stat = sys::read_file(&CString::new(path).ok()?, 4096).ok()?;
    // The name before it may have any letters.
    let end = stat.iter().rposition(|&b| b == b')')?;
    stat.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_answered_holds_the_listener_that_it_has_open() {
        let [listener, _other] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let (_, inode) = sys::device_and_inode(listener.raw()).unwrap();
        let own = std::process::id();
        // As of a process that isn't dumpable, whose files in /proc have another owner.
        let uid = User::current().uid() + 1;
        let answered = QueriedProcess { uid, pid: Some(own), slots: vec![1], told: QueryResult::Account(()) };
        let mut all = vec![answered];
        add_crowded(&mut all, &[CrowdedSlot { slot: 2, uid, inode: u32::try_from(inode).ok() }]);
        let rows: Vec<_> = all.iter().map(|process| (process.pid, &process.slots[..])).collect();
        assert_eq!(rows, [(Some(own), &[1, 2][..])]);
    }

    /// What is made of an answer with this status, these bytes behind it, and these descriptors.
    fn told(status: u8, more: &[u8], fds: &[i32]) -> QueryResult {
        let [watcher, watched] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let mut answer = [&frame::header(status)[..], more].concat();
        frame::send(watched.raw(), &mut answer, fds).unwrap();
        receive(watcher.raw(), 4096, Some)
    }

    fn memory(length: usize, seals: i32) -> EngineFd {
        let memory = sys::memfd(c"test", length).unwrap();
        sys::add_seals(memory.raw(), seals).unwrap();
        memory
    }

    /// The state of this process's main thread is that of a sleeper.
    #[test]
    fn process_may_run_while_one_of_its_threads_does() {
        let own = std::process::id().cast_signed();
        assert!(may_run(own) && may_run(0));
        let mut asleep = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = asleep.id().cast_signed();
        let begun = std::time::Instant::now();
        while may_run(pid) {
            assert!(begun.elapsed() < Duration::from_secs(30), "it sleeps");
            sys::pause(Duration::from_millis(1));
        }
        assert!(!is_stopped(pid));
        assert!(are_held_up(vec![pid], &mut || false), "it looks like one in a frozen cgroup");
        assert!(!are_held_up(vec![pid], &mut || true), "it has answered");
        assert!(!are_held_up(vec![pid, own], &mut || false), "one of the two runs");
        asleep.kill().unwrap();
        asleep.wait().unwrap();
        assert!(may_run(pid), "it is gone");
    }

    #[test]
    fn process_is_frozen_with_its_cgroup_of_either_version() {
        let files = |path: String| match &*path {
            "/sys/fs/cgroup/a/cgroup.events" => Some("populated 1\nfrozen 1\n".to_owned()),
            "/sys/fs/cgroup/unified/b:c/cgroup.events" => Some("frozen 1\n".to_owned()),
            "/sys/fs/cgroup/freezer/d/freezer.state" => Some("FROZEN\n".to_owned()),
            "/sys/fs/cgroup/freezer/e/freezer.state" => Some("THAWED\n".to_owned()),
            _ => Some("populated 1\nfrozen 0\n".to_owned()),
        };
        for frozen in ["0::/a\n", "9:name=systemd:/\n0::/b:c\n", "6:freezer:/d\n0::/\n"] {
            assert!(is_frozen(frozen, files), "{frozen}");
        }
        for thawed in ["", "0::/\n", "0::/../a\n", "6:freezer:/e\n0::/f\n", "5:devices:/a\n", "0:/a"] {
            assert!(!is_frozen(thawed, files), "{thawed}");
        }
        assert!(!is_stopped(std::process::id().cast_signed()));
    }

    #[test]
    fn nothing_but_sealed_memory_is_read() {
        let sealed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        let good = memory(5, sealed);
        assert_eq!(told(frame::GRANTED, b"", &[good.raw()]), QueryResult::Account(vec![0; 5]));
        assert_eq!(told(frame::GRANTED, b"and more", &[good.raw()]), QueryResult::Account(vec![0; 5]));
        assert_eq!(told(frame::REFUSED, b"", &[good.raw()]), QueryResult::Nonsense);
        assert_eq!(told(frame::GRANTED, b"", &[]), QueryResult::Nonsense);
        assert_eq!(told(frame::GRANTED, b"", &[good.raw(), good.raw()]), QueryResult::Nonsense);
        // One that could be made shorter, or another while it is read; one that is too long; what isn't memory, and would block.
        assert_eq!(told(frame::GRANTED, b"", &[memory(5, libc::F_SEAL_GROW).raw()]), QueryResult::Nonsense);
        assert_eq!(told(frame::GRANTED, b"", &[memory(4097, sealed).raw()]), QueryResult::Nonsense);
        let [end, _other] = sys::socket_pair(libc::SOCK_STREAM).unwrap();
        assert_eq!(told(frame::GRANTED, b"", &[end.raw()]), QueryResult::Nonsense);
    }

    #[test]
    fn an_answer_that_has_come_while_others_were_read_counts() {
        let [watcher, watched] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let account = memory(5, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
        frame::send(watched.raw(), &mut frame::header(frame::GRANTED), &[account.raw()]).unwrap();
        let mut read = |_, account: Vec<u8>| Some(account.len());
        let mut question =
            WatchQuestion { wish: 0, longest: 4096, patience: Duration::ZERO, read: &mut read };
        let asked = PendingQuery {
            uid: 1,
            pid: 0,
            slots: vec![7],
            connection: Some(watcher),
            told: QueryResult::Silence,
        };
        assert_eq!(question.answers(vec![asked])[0].told, QueryResult::Account(5));
    }

    #[test]
    fn an_answer_of_no_form_is_nonsense_and_none_is_an_end() {
        let [watcher, watched] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        frame::send(watched.raw(), &mut b"FRCX".to_vec(), &[]).unwrap();
        assert_eq!(receive(watcher.raw(), 4096, Some), QueryResult::Nonsense);
        drop(watched);
        assert_eq!(receive(watcher.raw(), 4096, Some), QueryResult::Gone);
    }
}
