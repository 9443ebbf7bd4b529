//! Tests of the packages in clean roots of distributions, as their users install them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

use crate::apt;
use crate::dist::workspace;

/// Whose packages a root is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Debian,
    Ubuntu,
}
use Family::{Debian, Ubuntu};

/// A clean root.
struct Root {
    family: Family,
    /// The release's name.
    suite: &'static str,
    /// The version of its Python, if the wheel can have it.
    python: Option<&'static str>,
    /// Its processor, as Rust and Debian call it. Another than this machine's is emulated.
    arch: (&'static str, &'static str),
}

const AMD64: (&str, &str) = ("x86_64", "amd64");
const ROOTS: [Root; 7] = [
    Root { family: Debian, suite: "bullseye", python: Some("3.9"), arch: AMD64 },
    Root { family: Debian, suite: "bookworm", python: Some("3.11"), arch: AMD64 },
    Root { family: Debian, suite: KEYRING_SUITE, python: Some("3.13"), arch: AMD64 },
    Root { family: Ubuntu, suite: "focal", python: Some("3.8"), arch: AMD64 },
    Root { family: Ubuntu, suite: "jammy", python: Some("3.10"), arch: AMD64 },
    Root { family: Ubuntu, suite: "noble", python: Some("3.12"), arch: AMD64 },
    Root { family: Debian, suite: "bullseye", python: Some("3.9"), arch: ("aarch64", "arm64") },
];
/// The root over which a C library is put that none of the releases above has. It came with an older one, so its programs can have it.
const GLIBC_BASE: Root = Root { family: Ubuntu, suite: "bionic", python: None, arch: AMD64 };
/// The release of Debian that has the keys of Ubuntu's archive: so Debian's own keys vouch for Ubuntu's packages.
const KEYRING_SUITE: &str = "trixie";
const KEYRING_PACKAGE: &str = "ubuntu-keyring";
const KEYRING: &str = "usr/share/keyrings/ubuntu-archive-keyring.gpg";
const UBUNTU: &str = "http://archive.ubuntu.com/ubuntu";
/// What debootstrap does for each release of Ubuntu. Its names of releases are those that were out when it was released.
const UBUNTU_SCRIPT: &str = "/usr/share/debootstrap/scripts/gutsy";
/// The release over which the image's layer is put.
const IMAGE_BASE: &str = "bookworm";
/// What a root has besides the least: programs of verbs, also such that are linked to vendors' libraries, and what installs a wheel.
const INCLUDED: &str = "ibverbs-utils,perftest,iproute2,python3-venv,ca-certificates";
/// In seconds; one root takes a minute, an emulated one ten times as long.
const LIMIT: &str = "600";
const LIMIT_EMULATED: &str = "1800";

/// Runs `packaging/test/root.sh` in each root, in namespaces of its own. `packages`: the directory that has them; the roots are
/// kept there, and nothing is written to them. `glibc`: a C library, installed below a directory, for a root of its own.
///
/// # Errors
/// It isn't root who asks, no root can be made, or a test fails.
pub fn test(directory: &Path, archs: &[&str], glibc: Option<&Path>) -> io::Result<()> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err(io::Error::other("--test makes clean roots of distributions, which only root can"));
    }
    apt::install_for_packages();
    let confine = confine(directory)?;
    let mut failed = Vec::new();
    let mut tried = Vec::new();
    let with_glibc = glibc.map(|glibc| (&GLIBC_BASE, Some(glibc)));
    let roots = ROOTS.iter().map(|root| (root, None)).chain(with_glibc);
    for (root, glibc) in roots.filter(|(root, _)| archs.contains(&root.arch.0)) {
        let mut name = root.name();
        root.prepare(&directory.join("roots"))?;
        let mut layers = directory.join("roots").join(&name).into_os_string();
        if let Some(glibc) = glibc {
            let mut above = glibc.canonicalize()?.into_os_string();
            above.push(":");
            above.push(layers);
            layers = above;
            name = format!("{name} with {}", glibc.display());
        }
        println!("== {name}");
        let wheels = directory.join("wheels").join(root.suite);
        match root.python {
            Some(python) => download(&wheels, python)?,
            None => fs::create_dir_all(&wheels)?,
        }
        let limit = if root.is_emulated() { LIMIT_EMULATED } else { LIMIT };
        let mut command = root.command(limit);
        command.args(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]);
        command.args(["--propagation", "private", "sh"]).arg(workspace().join("packaging/test/root.sh"));
        command.arg(layers).args([directory, &wheels, &confine]).arg(root.arch.0);
        if !command.stdin(Stdio::null()).status()?.success() {
            failed.push(name.clone());
        }
        tried.push(name);
    }
    // Both run programs by themselves, so those of this machine.
    let native = if archs.contains(&std::env::consts::ARCH) { 2 } else { 0 };
    for (name, script, arguments) in [
        ("rpm", "rpm.sh", vec![directory.to_owned()]),
        ("image", "image.sh", vec![directory.to_owned(), directory.join("roots").join(IMAGE_BASE)]),
    ]
    .into_iter()
    .take(native)
    {
        println!("== {name}");
        tried.push(name.into());
        let mut shell = Command::new("timeout");
        shell.args(["--kill-after=10", LIMIT, "sh"]).arg(workspace().join("packaging/test").join(script));
        if !shell.args(arguments).stdin(Stdio::null()).status()?.success() {
            failed.push(name.into());
        }
    }
    if failed.is_empty() {
        println!("installed, used and removed: {}", tried.join(", "));
        return Ok(());
    }
    Err(io::Error::other(format!("the packages fail in {}", failed.join(", "))))
}

impl Root {
    fn is_emulated(&self) -> bool {
        self.arch.0 != std::env::consts::ARCH
    }

    fn name(&self) -> String {
        if self.is_emulated() { format!("{}-{}", self.suite, self.arch.0) } else { self.suite.into() }
    }

    /// What runs a command with programs of this root's processor, and ends it.
    fn command(&self, limit: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", limit]);
        if self.is_emulated() {
            command.arg("sh").arg(workspace().join("packaging/test/emulated.sh")).arg(self.arch.0);
        }
        command
    }

    fn included(&self) -> String {
        let more = match self.suite {
            KEYRING_SUITE => KEYRING_PACKAGE,
            // The test's own need; newer releases have it in util-linux.
            suite if suite == GLIBC_BASE.suite => "setpriv",
            _ => return INCLUDED.into(),
        };
        format!("{INCLUDED},{more}")
    }

    /// Makes the root below `roots` unless it is there, with all that is included.
    fn prepare(&self, roots: &Path) -> io::Result<()> {
        let to = &roots.join(self.name());
        let finished = to.with_extension("finished");
        let included = self.included();
        if fs::read_to_string(&finished).is_ok_and(|there| there == included) {
            return Ok(());
        }
        if to.exists() {
            fs::remove_dir_all(to)?;
        }
        fs::create_dir_all(to)?;
        let mut debootstrap = Command::new("debootstrap");
        debootstrap.arg("--variant=minbase").arg(format!("--include={included}"));
        debootstrap.args(["--arch", self.arch.1]);
        if self.is_emulated() {
            debootstrap.arg("--foreign");
        }
        if self.family == Ubuntu {
            let mut debian = ROOTS.iter().filter(|root| root.suite == KEYRING_SUITE);
            let debian = debian.next().ok_or_else(|| io::Error::other("no root has the keys of Ubuntu"))?;
            debian.prepare(roots)?;
            debootstrap.arg("--keyring").arg(roots.join(debian.name()).join(KEYRING));
            debootstrap.arg("--components=main,universe");
        }
        debootstrap.arg(self.suite).arg(to);
        if self.family == Ubuntu {
            debootstrap.args([UBUNTU, UBUNTU_SCRIPT]);
        }
        super::output(&mut debootstrap)?;
        if self.is_emulated() {
            // In a user namespace debootstrap can make no devices; it asks for none where it believes to be in a container of LXC's.
            let second = "mount -t proc proc $1/proc && mount --rbind /dev $1/dev && exec env -i container=lxc \
                          PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot $1 /debootstrap/debootstrap --second-stage";
            let mut command = self.command(LIMIT_EMULATED);
            command.args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", second, "-"]);
            super::output(command.arg(to))?;
        }
        fs::write(finished, included)
    }
}

/// Compiles what runs a program under a container's profile, for roots with any C library.
fn confine(directory: &Path) -> io::Result<PathBuf> {
    let program = directory.join("confine");
    let source = workspace().join("tests/c/surroundings/refused_syscalls.c");
    super::output(Command::new("cc").args(["-std=gnu11", "-O1", "-static", "-o"]).arg(&program).arg(source))?;
    Ok(program)
}

/// Fetches pytest, and a newer pip, for the root's Python, as the root has no network.
fn download(to: &Path, python: &str) -> io::Result<()> {
    if to.exists() {
        return Ok(());
    }
    let unfinished = to.with_extension("new");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--only-binary=:all:"]);
    pip.args(["--python-version", python, "--dest"]).arg(&unfinished);
    // pip here doesn't see what pytest needs with an older Python.
    pip.args(["pytest", "pip", "exceptiongroup", "tomli", "typing_extensions"]);
    super::output(&mut pip)?;
    fs::rename(&unfinished, to)
}
