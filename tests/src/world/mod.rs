//! Hosts made of namespaces, for one test: each has its own network, `/run`, `/tmp` and `/dev/shm`.
//!
//! A host lives as long as its keeper process, and the keeper dies with the test. Whatever is found in the
//! namespaces when a world is dropped, daemons included, is killed.

mod contained;
mod traces;

use crate::namespace::{self, Doors, Maps, Rights};
use crate::{Artifacts, Outcome, Process, Skip};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// No test lasts longer; a world that does is killed with all its processes. [`World::may_last`] gives others more.
const WORLD_LIMIT: Duration = Duration::from_secs(240);
/// With an emulated guest, which takes minutes on a machine that is shared.
const GUEST_LIMIT: Duration = Duration::from_secs(1180);
/// A script that sets up a network. The kernel changes the interfaces of all namespaces one after the other, and the end of a namespace of
/// another test holds that up for seconds.
const SCRIPT_LIMIT: Duration = Duration::from_secs(60);

/// The hosts of a test.
pub struct World {
    hosts: Vec<Host>,
    watchdog: Sender<Duration>,
}

impl World {
    /// One host whose `eth0` has the given MTU, `10.77.0.1`, a link-local address and `fd77::1`.
    pub fn one_host(mtu: u32) -> Result<Self, Skip> {
        let host = Host::new(1, None)?;
        host.admin(&format!(
            "ip link add eth0 mtu {mtu} type veth peer name peer0 mtu {mtu} && \
             ip link set peer0 addrgenmode none up && {}",
            host.address_script()
        ));
        host.wait_for_network();
        Ok(Self::start(vec![host], WORLD_LIMIT))
    }

    /// The host of `one_host`, with a tap as its `eth0`: a place for a guest.
    pub fn one_host_with_tap(mtu: u32) -> Result<Self, Skip> {
        let host = Host::new(1, None)?;
        host.try_admin("ip tuntap add eth0 mode tap").map_err(|outcome| {
            Skip(format!("this machine doesn't let us make a tap: {}", outcome.stderr.trim()))
        })?;
        host.admin(&format!("ip link set eth0 mtu {mtu} && {}", host.address_script()));
        Ok(Self::start(vec![host], GUEST_LIMIT))
    }

    /// Two hosts, `.1` and `.2`, whose `eth0` are the ends of one veth pair.
    pub fn two_hosts(mtu: u32) -> Result<Self, Skip> {
        let first = Host::new(1, None)?;
        let second = Host::new(2, Some(&first))?;
        let second_pid = second.keeper.id();
        first.admin(&format!(
            "ip link add eth0 mtu {mtu} type veth peer name eth0 mtu {mtu} netns {second_pid} && {}",
            first.address_script()
        ));
        second.admin(&second.address_script());
        [&first, &second].into_iter().for_each(Host::wait_for_network);
        Ok(Self::start(vec![first, second], WORLD_LIMIT))
    }

    /// Programs can be started as other users here: by root, where there are any.
    ///
    /// # Errors
    /// They can't.
    pub fn needs_other_users() -> Result<(), Skip> {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if namespace::is_root() && map.contains("4294967295") {
            return Ok(());
        }
        Err(Skip("only root, outside of user namespaces, has other users".into()))
    }

    /// Words before a command by which root runs it as another user and group, without capabilities. A test that uses them calls
    /// [`World::needs_other_users`] first, and requires util-linux.
    #[must_use]
    pub fn as_user(user: &str) -> [&str; 6] {
        ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]
    }

    fn start(hosts: Vec<Host>, limit: Duration) -> Self {
        let keepers: Vec<u32> = hosts.iter().map(|host| host.keeper.id()).collect();
        let (watchdog, limits) = mpsc::channel();
        thread::spawn(move || {
            let mut limit = limit;
            loop {
                match limits.recv_timeout(limit) {
                    Ok(longer) => limit = longer,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => break,
                }
            }
            eprintln!("the test exceeded {limit:?}; its processes are being killed");
            keepers.into_iter().for_each(kill_residents);
        });
        Self { hosts, watchdog }
    }

    /// From now on the world may last so long, whatever it might before.
    pub fn may_last(&self, limit: Duration) {
        // When the limit is over already, the world is gone, and the outcomes of its processes show that.
        let _ = self.watchdog.send(limit);
    }

    /// The first host.
    pub fn first(&self) -> &Host {
        &self.hosts[0]
    }

    /// The last host, which is the first where there is one only.
    pub fn last(&self) -> &Host {
        &self.hosts[self.hosts.len() - 1]
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for host in &self.hosts {
            kill_residents(host.keeper.id());
        }
    }
}

/// Why this machine refuses user and network namespaces with `error`, and the setting that allows them.
fn why_no_namespaces(error: &std::io::Error) -> String {
    let refusals = [
        ("user.max_user_namespaces", "0", "15000"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
    ];
    for (setting, refusing, allowing) in refusals {
        let value = std::fs::read_to_string(format!("/proc/sys/{}", setting.replace('.', "/")));
        if value.is_ok_and(|value| value.trim() == refusing) {
            return format!(
                "no network namespaces: {setting} is {refusing}; allow them: sysctl {setting}={allowing}"
            );
        }
    }
    format!("no network namespaces: {error}; in a container, allow them: --privileged")
}

/// A network namespace with a mount namespace, and the process that keeps them.
pub struct Host {
    keeper: Child,
    number: u8,
    user: Option<File>,
    net: File,
    mount: File,
}

impl Host {
    fn new(number: u8, neighbour: Option<&Host>) -> Result<Self, Skip> {
        let root = namespace::is_root();
        let maps = Maps::current();
        let join: Option<RawFd> = neighbour.and_then(|host| host.user.as_ref()).map(AsRawFd::as_raw_fd);
        let mut command = Command::new("sleep");
        command.arg("infinity").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: `become_keeper` makes system calls only.
        unsafe { command.pre_exec(move || namespace::become_keeper(join, &maps, root)) };
        let keeper = command.spawn().map_err(|error| Skip(why_no_namespaces(&error)))?;
        let door = |name| File::open(format!("/proc/{}/ns/{name}", keeper.id())).expect("our own child");
        let user = (!root).then(|| door("user"));
        let host = Self { number, user, net: door("net"), mount: door("mnt"), keeper };
        host.admin("ip link set lo up");
        Ok(host)
    }

    /// The IPv4 address of `eth0`.
    pub fn ipv4(&self) -> String {
        format!("10.77.0.{}", self.number)
    }

    fn address_script(&self) -> String {
        let n = self.number;
        format!(
            "ip link set eth0 addrgenmode none up && ip addr add fe80::{n}/64 dev eth0 nodad && \
             ip addr add 10.77.0.{n}/24 dev eth0 && ip addr add fd77::{n}/64 dev eth0 nodad && \
             ip route add default via 10.77.0.254"
        )
    }

    /// Waits until `eth0` is up and its addresses are the host's: the kernel learns of a carrier a while after the other end has come
    /// up, and adapters leave an interface without one alone; a thread of the kernel's lists an IPv6 address as local after that.
    fn wait_for_network(&self) {
        self.admin(&format!(
            "for i in $(seq 3000); do \
               ip link show eth0 up | grep -q 'state UP' && ip -6 route show table local | grep -q 'local {} ' && exit; \
               sleep 0.01; done; exit 1",
            self.ipv6()
        ));
    }

    /// Runs a shell script with all rights over this host's network; panics when it fails.
    #[track_caller]
    pub fn admin(&self, script: &str) -> String {
        match self.try_admin(script) {
            Ok(stdout) => stdout,
            Err(outcome) => panic!("{outcome}"),
        }
    }

    fn try_admin(&self, script: &str) -> Result<String, Box<Outcome>> {
        let mut command = Command::new("sh");
        command.args(["-e", "-c", script]).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let outcome = self.spawn(command, Rights::Admin).wait(SCRIPT_LIMIT);
        if outcome.success() { Ok(outcome.stdout) } else { Err(Box::new(outcome)) }
    }

    /// Starts a program as an ordinary user, with a bare environment and `settings` added to it.
    pub fn start<S: AsRef<OsStr>>(&self, words: &[S], settings: &[(&str, &str)]) -> Process {
        self.start_with(Rights::Ordinary, words, settings)
    }

    fn start_with<S: AsRef<OsStr>>(&self, rights: Rights, words: &[S], settings: &[(&str, &str)]) -> Process {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        bare_environment(&mut command, settings);
        self.spawn(command, rights)
    }

    /// Starts a program through `ferroce run`, with `options` for `run` itself.
    pub fn start_ferroce<S: AsRef<OsStr>>(
        &self,
        options: &[&str],
        words: &[S],
        settings: &[(&str, &str)],
    ) -> Process {
        self.start_with(Rights::Ordinary, &ferroce_run(options, words), settings)
    }

    /// The same with all capabilities over this host's network.
    pub fn start_ferroce_privileged<S: AsRef<OsStr>>(
        &self,
        options: &[&str],
        words: &[S],
        settings: &[(&str, &str)],
    ) -> Process {
        self.start_with(Rights::Admin, &ferroce_run(options, words), settings)
    }

    pub(crate) fn spawn(&self, mut command: Command, rights: Rights) -> Process {
        let doors = Doors {
            user: self.user.as_ref().map(AsRawFd::as_raw_fd),
            net: self.net.as_raw_fd(),
            mount: self.mount.as_raw_fd(),
        };
        // SAFETY: `enter` makes system calls only, and the doors stay open until spawn has returned.
        unsafe { command.pre_exec(move || namespace::enter(doors, rights)) };
        Process::spawn(command).unwrap_or_else(|error| panic!("a program could not be started: {error}"))
    }

    /// A path of this host, as seen from the test.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.keeper.id()))
    }

    /// Waits until something listens on a TCP port here, or until `server` ends or `limit` passes (then it panics).
    pub fn wait_for_listener(&self, port: u16, server: &mut Process, limit: Duration) {
        let start = Instant::now();
        while !self.is_listening(port) {
            if server.has_ended() || start.elapsed() > limit {
                let outcome = server.wait(Duration::ZERO);
                panic!("nothing listened on port {port} within {:?}:\n{outcome}", start.elapsed());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_listening(&self, port: u16) -> bool {
        is_listening(&self.keeper.id().to_string(), port)
    }

    /// Waits until a process here has a port of the communication manager, of `space` (`0x0106` is that of connections), or until
    /// `server` ends or `limit` passes (then it panics).
    pub fn wait_for_rdma_port(&self, space: u16, port: u16, server: &mut Process, limit: Duration) {
        let start = Instant::now();
        let name = format!("-port-{space:04x}-{port}-");
        while !self.net_table("unix").contains(&name) {
            if server.has_ended() || start.elapsed() > limit {
                let outcome = server.wait(Duration::ZERO);
                panic!("no process had port {port} within {:?}:\n{outcome}", start.elapsed());
            }
            thread::sleep(Duration::from_millis(5));
        }
        // It has the port, and listens as soon as its next call has returned. Then it sleeps until a client comes; few go on polling.
        let polls_from = Instant::now() + Duration::from_secs(1);
        let mut asleep = 0;
        while asleep < 5 && Instant::now() < polls_from {
            thread::sleep(Duration::from_millis(10));
            asleep = if is_asleep(server.id()) { asleep + 1 } else { 0 };
        }
    }

    /// The global IPv6 address of `eth0`.
    pub fn ipv6(&self) -> String {
        format!("fd77::{}", self.number)
    }

    pub(crate) fn net_table(&self, table: &str) -> String {
        fs::read_to_string(format!("/proc/{}/net/{table}", self.keeper.id())).unwrap_or_default()
    }

    /// The processes that live here now, without the keeper.
    pub fn residents(&self) -> Vec<u32> {
        residents(self.keeper.id())
    }
}

/// Whether the main thread of a process sleeps, and doesn't wait for a processor.
fn is_asleep(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state stands behind the name, which may have any characters.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Whether something listens on a TCP port in the network namespace of a process (`"self"`, or its id).
pub fn is_listening(process: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let suffix = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let sockets = fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap_or_default();
        sockets.lines().skip(1).any(|line| {
            let mut columns = line.split_whitespace().skip(1);
            columns.next().is_some_and(|local| local.ends_with(&suffix)) && columns.nth(1) == Some(LISTEN)
        })
    })
}

fn ferroce_run<S: AsRef<OsStr>>(options: &[&str], words: &[S]) -> Vec<OsString> {
    let mut line = vec![Artifacts::get().ferroce().into_os_string(), "run".into()];
    line.extend(options.iter().map(OsString::from));
    line.push("--".into());
    line.extend(words.iter().map(|word| word.as_ref().to_owned()));
    line
}

/// Takes our environment from a command and gives it what a program needs, and `settings`.
fn bare_environment(command: &mut Command, settings: &[(&str, &str)]) {
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("HOME", "/tmp")
        .env("LANG", "C.UTF-8")
        .env("RUST_BACKTRACE", "1")
        .envs(settings.iter().copied());
}

fn residents(keeper: u32) -> Vec<u32> {
    let home = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let Some(namespace) = home(keeper) else { return Vec::new() };
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != keeper && home(pid).as_ref() == Some(&namespace))
        .collect()
}

fn kill_residents(keeper: u32) {
    for pid in residents(keeper) {
        // SAFETY: kill has no memory preconditions; the process was just seen in a namespace of this test.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::require;

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn two_hosts_reach_each_other_over_ipv4_and_link_local() {
        let world = require!(World::two_hosts(1500));
        let script = "import socket,time; s=socket.create_server(('::',5000),family=socket.AF_INET6,\
                      dualstack_ipv6=True); time.sleep(60)";
        let mut server = world.last().start(&["python3", "-c", script], &[]);
        world.last().wait_for_listener(5000, &mut server, SOON);
        assert!(!world.first().is_listening(5000));
        for target in ["10.77.0.2", "fe80::2%eth0", "fd77::2"] {
            let connect = format!("import socket; socket.create_connection(('{target}',5000),5)");
            world.first().start(&["python3", "-c", &connect], &[]).wait(SOON).expect_success();
        }
    }

    #[test]
    fn program_under_test_holds_no_capability_and_is_not_root() {
        let world = require!(World::one_host(9000));
        let status = world.first().start(&["cat", "/proc/self/status"], &[]).wait(SOON);
        let status = &status.expect_success().stdout;
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
        assert!(!status.contains("Uid:\t0\t"), "{status}");
    }

    #[test]
    fn world_lasts_as_long_as_it_may_and_no_longer() {
        let world = require!(World::one_host(1500));
        let mut sleeper = world.first().start(&["sleep", "600"], &[]);
        let (limit, longer) = (Duration::from_millis(500), Duration::from_secs(2));
        world.may_last(limit);
        let begin = Instant::now();
        world.may_last(longer);
        assert!(!sleeper.wait(SOON).success(), "the world has ended");
        assert!(begin.elapsed() >= longer, "the later word counts");
    }

    #[test]
    fn daemon_left_in_a_namespace_dies_with_the_world() {
        let world = require!(World::one_host(1500));
        world.first().start(&["sh", "-c", "setsid sleep 600 & exit 0"], &[]).wait(SOON).expect_success();
        let residents = world.first().residents();
        assert_eq!(residents.len(), 1, "the daemon, and nothing else: {residents:?}");
        drop(world);
        let start = Instant::now();
        while fs::read_to_string(format!("/proc/{}/comm", residents[0])).is_ok_and(|comm| comm == "sleep\n") {
            assert!(start.elapsed() < SOON, "the daemon lives on");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
