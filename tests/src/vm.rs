//! A machine of its own beside a host: Debian's kernel with `rdma_rxe`, under QEMU, on the host's tap.
//!
//! The guest's root is this machine's, read-only, with changes in its own memory; so every program here is there too.
//! It lives in the host's namespaces and dies with the test, as everything there does.

use crate::artifacts::{repository, target};
use crate::namespace::Rights;
use crate::{Artifacts, Host, Outcome, Process, Skip, World, tool};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Address of the guest's `eth0`, which has `fd77::2` and a link-local address too.
const ADDRESS: &str = "10.77.0.2";
const IMAGE_LIMIT: Duration = Duration::from_secs(180);
const BOOT_LIMIT: Duration = Duration::from_secs(120);
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Sends `$1` to the guest, as `tests/rxe/init` wants it, and ends as it ended there.
const CALL: &str = r#"
until { exec 3<>/dev/tcp/10.77.0.2/7; } 2>/dev/null; do sleep 0.1; done
printf '%s\0' "$1" >&3
while IFS= read -r -u 3 line; do
    case $line in
    'exited '*) exit "${line#exited }" ;;
    *) printf '%s\n' "$line" ;;
    esac
done
exit 125"#;

/// A running guest.
pub struct Guest<'w> {
    host: &'w Host,
    machine: Process,
}

/// What has come in for `rdma_rxe` since the guest booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Datagrams to UDP port 4791.
    pub arrived: u64,
    /// Those that are for a QP and have the right ICRC.
    pub accepted: u64,
}

impl Traffic {
    /// Datagrams that have come since `before` and weren't accepted.
    #[must_use]
    pub const fn refused_since(&self, before: &Self) -> u64 {
        (self.arrived - before.arrived).saturating_sub(self.accepted - before.accepted)
    }
}

impl<'w> Guest<'w> {
    /// Boots a guest beside a world `one_host_with_tap`, with that world's MTU.
    ///
    /// The kernel is that of the Debian package named by `FERROCE_RXE_KERNEL` (`linux-image-amd64` unless set).
    ///
    /// # Errors
    /// QEMU is missing, or the kernel can't be downloaded.
    pub fn start(world: &'w World, mtu: u32) -> Result<Self, Skip> {
        let package = std::env::var("FERROCE_RXE_KERNEL");
        Self::start_kernel(world, mtu, package.as_deref().unwrap_or("linux-image-amd64"))
    }

    /// The same with the kernel of this Debian package.
    ///
    /// # Errors
    /// As for `start`.
    pub fn start_kernel(world: &'w World, mtu: u32, package: &str) -> Result<Self, Skip> {
        let qemu = tool("qemu-system-x86_64", "qemu-system-x86")?;
        for program in ["rdma", "tc"] {
            tool(program, "iproute2")?;
        }
        let image = image(package)?;
        // The image may lie where the host has a private directory.
        let stage = |name| {
            let staged = Artifacts::get().stage_program(&image.join(name)).expect("the stage is writable");
            staged.into_os_string().into_string().expect("a UTF-8 path")
        };
        let mut command = Command::new(qemu);
        command
            .args(
                "-nodefaults -no-user-config -no-reboot -display none -machine pc -smp 2 -m 1024".split(' '),
            )
            // Emulated, so that it is the same everywhere; these features cost more than they give then.
            .args("-accel tcg,thread=multi -cpu max,-la57,-pclmulqdq,-erms,-smap,-smep".split(' '))
            .args("-netdev tap,id=net,ifname=eth0,script=no,downscript=no".split(' '))
            .args("-device virtio-net-pci,netdev=net,romfile= -device virtio-rng-pci".split(' '))
            .args("-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap".split(' '))
            .args("-device virtio-9p-pci,fsdev=root,mount_tag=host -serial stdio".split(' '))
            .args(["-kernel", &stage("vmlinux"), "-initrd", &stage("initramfs"), "-append"])
            .arg(format!(
                "console=ttyS0 quiet panic=-1 mitigations=off nokaslr audit=0 tsc=reliable clocksource=tsc \
                 no_timer_check random.trust_cpu=on net.ifnames=0 mtu={mtu}"
            ));
        let host = world.first();
        let mut machine = host.spawn(command, Rights::Admin);
        machine.wait_for_output("guest is ready", BOOT_LIMIT);
        let guest = Self { host, machine };
        guest.run("uname -r");
        Ok(guest)
    }

    /// Changes the MTU of both ends of the tap.
    pub fn set_mtu(&self, mtu: u32) {
        let script = format!("ip link set eth0 mtu {mtu}");
        self.host.admin(&script);
        self.run(&script);
    }

    /// Runs a bash script as root in the guest and returns its output; panics when it fails.
    #[track_caller]
    pub fn run(&self, script: &str) -> String {
        self.start_script(script).wait(COMMAND_LIMIT).expect_success().stdout.clone()
    }

    /// Starts a bash script as root in the guest: its output and exit code become those of the process.
    pub fn start_script(&self, script: &str) -> Process {
        self.host.start(&["bash", "-c", CALL, "guest", script], &[])
    }

    /// Starts a program that listens on a TCP port, and waits until it does.
    pub fn start_server(&self, words: &[&str], port: u16) -> Process {
        let mut server = self.start_script(&format!(
            "{} & until grep -q ':{port:04X} [^ ]* 0A' /proc/net/tcp /proc/net/tcp6; do \
             kill -0 $! || break; sleep 0.05; done; echo listening; wait $!",
            words.join(" ")
        ));
        server.wait_for_output("listening\n", COMMAND_LIMIT);
        server
    }

    /// The guest's IPv4 address.
    pub fn ipv4(&self) -> &'static str {
        ADDRESS
    }

    /// What has come in for `rdma_rxe`.
    pub fn traffic(&self) -> Traffic {
        let script = "awk '$1 == \"Udp:\" && $2 ~ /[0-9]/ { n += $2 } $1 == \"Udp6InDatagrams\" { n += $2 } \
                      END { print n }' /proc/net/snmp /proc/net/snmp6 && \
                      cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts";
        let text = self.run(script);
        let mut numbers = text.split_whitespace().map(|word| word.parse().expect("a number"));
        let mut next = || numbers.next().expect("two numbers");
        Traffic { arrived: next(), accepted: next() }
    }

    /// The kernel's version, "6.1".
    pub fn kernel(&self) -> String {
        let release = self.run("uname -r");
        release.split('.').take(2).collect::<Vec<_>>().join(".")
    }

    /// The guest's console.
    pub fn console(&self) -> String {
        self.machine.stdout()
    }
}

/// Builds the image unless cargo's target directory has it for this version of the package.
fn image(package: &str) -> Result<PathBuf, Skip> {
    let mut command = Command::new(repository().join("tests/rxe/image"));
    command.arg(package).arg(target().join("rxe")).process_group(0);
    let outcome: Outcome = Process::spawn(command).expect("sh can be run").wait(IMAGE_LIMIT);
    if outcome.status.code() == Some(2) {
        let why = outcome.stderr.lines().next_back().unwrap_or("tests/rxe/image failed");
        return Err(Skip(format!("no guest can be built: {why}")));
    }
    Ok(PathBuf::from(outcome.expect_success().stdout.trim()))
}
