//! `cargo xtask package`: makes what people install, under `packages/` of the target directory.
//!
//! In here: one tree of files, and each format of it. Out of here: how libraries and command are built (`dist`).

mod distributions;
mod emulated;
mod image;
mod notices;
mod pages;
mod roots;
mod tarball;
mod tree;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use sha2::{Digest as _, Sha256};

use crate::dist::{self, Machine};
use tree::Entry;

/// The inputs of all packages.
struct Release {
    version: &'static str,
    /// Seconds since 1970: the time of every file.
    time: u64,
    /// The same as RFC 3339 writes it.
    created: String,
    arch: Arch,
    /// Bill of materials, in SPDX's JSON.
    materials: String,
}

/// How the formats call a processor.
#[derive(Clone, Copy)]
struct Arch {
    rust: &'static str,
    debian: &'static str,
}

/// The newest glibc that is needed, in the form of a wheel's tag.
const WHEEL_PLATFORM: &str = "manylinux_2_28";
/// What a tarball or a wheel may take at most, in bytes.
const LARGEST: u64 = 4 << 20;
/// Distributions have room for 79 characters.
const SUMMARY: &str = "RDMA verbs in user space: a software RoCEv2 adapter in each process";
const LICENCE: &str = "MIT OR Apache-2.0";
const HOMEPAGE: &str = env!("CARGO_PKG_REPOSITORY");

/// The crates that are useful by themselves, and those that they are made of.
const PUBLISHED: [&str; 28] = [
    "ferroce-wire",
    "ferroce-ring",
    "ferroce-qp-context",
    "ferroce-proto",
    "ferroce-types",
    "ferroce-explain",
    "ferroce-pcapng",
    "ferroce-buffers",
    "ferroce-sim",
    "ferroce-watch",
    "ferroce-cm",
    "ferroce-linux",
    "ferroce-os",
    "ferroce-access",
    "ferroce-mem",
    "ferroce-engine",
    "ferroce-netdev",
    "ferroce-queues",
    "ferroce-host",
    "ferroce-import",
    "ferroce-hostlink",
    "ferroce-udp",
    "ferroce-parts",
    "ferroce-network",
    "ferroce-xrc",
    "ferroce-nic",
    "ferroce-native",
    "ferroce",
];

/// Tries to publish the crates that are meant for it, without doing so.
///
/// # Errors
/// cargo refuses, or what it would upload can't be built by itself.
pub fn try_crates() -> io::Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(dist::workspace()).args(["publish", "--dry-run", "--allow-dirty", "--quiet"]);
    cargo.args(PUBLISHED.iter().flat_map(|name| ["--package", name]));
    output(&mut cargo)?;
    println!("could be published: {}", PUBLISHED.join(", "));
    Ok(())
}

/// Makes all packages and prints their directory. `glibc`: a C library for the test, installed below a directory.
///
/// # Errors
/// A build fails, a tool is missing, or with `check` a second build made other bits.
pub fn package(archs: &[String], check: bool, test: bool, glibc: Option<&Path>) -> io::Result<()> {
    let archs = archs.iter().map(|arch| Arch::of(arch)).collect::<io::Result<Vec<_>>>()?;
    for arch in &archs {
        arch.expect_tools()?;
    }
    let all = dist::target().join("packages");
    let time = source_time()?;
    let files = make(&archs, &all.join("build"), &all, time)?;
    for file in &files {
        println!("{:>9} {}", fs::metadata(file)?.len(), file.display());
    }
    if check {
        let again = all.join("again");
        let second = make(&archs, &again.join("build"), &again, time)?;
        for (first, second) in files.iter().zip(&second) {
            if fs::read(first)? != fs::read(second)? {
                let says = format!("{} and {} differ", first.display(), second.display());
                return Err(io::Error::other(says));
            }
        }
        println!("built twice: the same bits");
        fs::remove_dir_all(again)?;
    }
    if test {
        for arch in archs.iter().filter(|arch| arch.rust != env::consts::ARCH) {
            emulated::test(&Machine::of(arch.rust), &all.join("build").join(arch.rust))?;
        }
        roots::test(&all, &archs.iter().map(|arch| arch.rust).collect::<Vec<_>>(), glibc)?;
    }
    Ok(())
}

/// Builds in `build` for each of these, and puts the packages into `directory`; files have this time.
fn make(archs: &[Arch], build: &Path, directory: &Path, time: u64) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(directory)?;
    let mut files = Vec::new();
    for arch in archs {
        files.extend(make_one(*arch, &build.join(arch.rust), directory, time)?);
    }
    let sums = directory.join("SHA256SUMS");
    let mut text = String::new();
    for file in &files {
        let name = file.file_name().unwrap_or_default().display();
        text.push_str(&format!("{}  {name}\n", hexadecimal(&Sha256::digest(fs::read(file)?))));
    }
    fs::write(&sums, text)?;
    files.push(sums);
    Ok(files)
}

fn make_one(arch: Arch, build: &Path, directory: &Path, time: u64) -> io::Result<Vec<PathBuf>> {
    // A build in another directory has other paths in its messages and in its debug information.
    let home = env::var_os("CARGO_HOME")
        .map_or_else(|| env::home_dir().unwrap_or_default().join(".cargo"), PathBuf::from);
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let flags = [remap(dist::workspace(), "/ferroce"), remap(&home.join("registry/src"), "/crates")];
    let machine = Machine::of(arch.rust);
    // `ferroce version --verbose` names the commit of a package. Sources without git have none.
    let commit = output(Command::new("git").current_dir(dist::workspace()).args(["rev-parse", "HEAD"])).ok();
    let packaged = dist::Packaged { flags: &flags.join("\u{1f}"), commit: commit.as_deref().map(str::trim) };
    let dist = dist::build_into(&machine, "release", build, Some(&packaged))?;

    let inventory = notices::Inventory::read(arch.rust)?;
    let created = output(Command::new("date").args(["-u", "-d", &format!("@{time}"), "+%FT%TZ"]))?;
    let created = created.trim().to_owned();
    let materials = inventory.spdx(&created)?;
    let release = Release { version: env!("CARGO_PKG_VERSION"), time, created, arch, materials };
    let (mut tree, debug) = tree::collect(&machine, &dist, &build.join("stripped"))?;
    tree.extend(pages::collect(&machine, &dist.join("bin/ferroce"), &build.join("man"))?);
    for (name, file) in [
        ("README.md", "README.md"),
        ("CHANGELOG.md", "CHANGELOG.md"),
        ("LICENSE-MIT", "LICENSE-MIT"),
        ("LICENSE-APACHE", "LICENSE-APACHE"),
    ] {
        let content = fs::read(dist::workspace().join(file))?;
        tree.push(Entry::file(&format!("share/doc/ferroce/{name}"), 0o644, content));
    }
    let notices = inventory.notices()?;
    tree.push(Entry::file("share/doc/ferroce/THIRD-PARTY-NOTICES", 0o644, notices.into_bytes()));
    tree.sort_by(|a, b| a.path.cmp(&b.path));

    let version = release.version;
    let place = format!("{}-linux-gnu", arch.rust);
    let materials = directory.join(format!("ferroce-{version}-{place}.spdx.json"));
    fs::write(&materials, &release.materials)?;
    let files = vec![
        tarball::write(directory, &format!("ferroce-{version}-{place}"), &tree, &release)?,
        tarball::write(directory, &format!("ferroce-debug-{version}-{place}"), &debug, &release)?,
        wheel::write(directory, &tree, &release)?,
        distributions::deb(directory, &build.join("deb"), &tree, &release)?,
        distributions::rpm(directory, &tree, &release)?,
        image::write(directory, &tree, &release)?,
        materials,
    ];
    for file in [&files[0], &files[2]] {
        let size = fs::metadata(file)?.len();
        if size > LARGEST {
            return Err(io::Error::other(format!(
                "{} has {size} bytes, more than {LARGEST}",
                file.display()
            )));
        }
    }
    Ok(files)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Arch {
    fn of(name: &str) -> io::Result<Self> {
        match name {
            "x86_64" => Ok(Self { rust: "x86_64", debian: "amd64" }),
            "aarch64" => Ok(Self { rust: "aarch64", debian: "arm64" }),
            other => {
                Err(io::Error::other(format!("no packages for {other}: the libraries aren't built for it")))
            }
        }
    }

    /// A Rust installation may lack what builds for another machine.
    fn expect_tools(self) -> io::Result<()> {
        if self.rust == env::consts::ARCH {
            return Ok(());
        }
        crate::apt::install_for_foreign(self.debian, self.rust);
        let target = format!("{}-unknown-linux-gnu", self.rust);
        let library = output(Command::new("rustc").args(["--print", "target-libdir", "--target", &target]))?;
        if Path::new(library.trim()).exists() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "this Rust has no library for {target}; fix: rustup target add {target}"
        )))
    }
}

/// `SOURCE_DATE_EPOCH`, else the time of the last commit.
fn source_time() -> io::Result<u64> {
    let text = match env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            output(Command::new("git").current_dir(dist::workspace()).args(["log", "-1", "--format=%ct"]))
                .map_err(|error| {
                    io::Error::other(format!(
                        "the time of the sources isn't known ({error}): set SOURCE_DATE_EPOCH"
                    ))
                })?
        }
    };
    let invalid = || io::Error::other(format!("SOURCE_DATE_EPOCH={text:?} isn't a number of seconds"));
    text.trim().parse().map_err(|_| invalid())
}

/// What a command that must succeed writes to its standard output.
fn output(command: &mut Command) -> io::Result<String> {
    let name = command.get_program().display().to_string();
    let output =
        command.output().map_err(|error| io::Error::other(format!("{name} can't be run: {error}")))?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{name}: {}", String::from_utf8_lossy(&output.stderr))));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree::Kind;

    #[test]
    fn files_name_this_version() {
        let version = env!("CARGO_PKG_VERSION");
        for (file, name) in [
            ("packaging/Containerfile", format!("ARG FERROCE=localhost/ferroce:{version}\n")),
            ("packaging/github.yml", format!("ferroce/ferroce@v{version}\n")),
            ("packaging/gitlab.yml", format!("/v{version}/ferroce-{version}-x86_64-linux-gnu.tar.gz\n")),
            ("packaging/gitlab.yml", format!("/v{version}/packaging/setup.sh\n")),
        ] {
            let text = fs::read_to_string(dist::workspace().join(file)).unwrap();
            assert!(text.contains(&name), "{file} doesn't have {name}");
        }
    }

    #[test]
    fn the_same_files_make_the_same_packages() {
        let tree = vec![
            Entry::file("bin/ferroce", 0o755, b"program".to_vec()),
            Entry {
                path: "lib/ferroce/bin/rdma".into(),
                kind: Kind::Link { target: "../../../bin/ferroce".into() },
            },
            Entry::file("share/doc/ferroce/LICENSE-MIT", 0o644, b"text".to_vec()),
            Entry::file("share/ferroce/valgrind.supp", 0o644, b"suppressions".to_vec()),
        ];
        let release = Release {
            version: "1.2.3",
            time: 1_700_000_000,
            created: "2023-11-14T22:13:20Z".into(),
            arch: Arch::of("x86_64").unwrap(),
            materials: "{}".into(),
        };
        let all = env::temp_dir().join(format!("ferroce-packages-{}", std::process::id()));
        let made = ["first", "second"].map(|name| {
            let directory = all.join(name);
            fs::create_dir_all(&directory).unwrap();
            let mut files = vec![
                tarball::write(&directory, "ferroce-1.2.3", &tree, &release).unwrap(),
                wheel::write(&directory, &tree, &release).unwrap(),
                distributions::rpm(&directory, &tree, &release).unwrap(),
                image::write(&directory, &tree, &release).unwrap(),
            ];
            if crate::apt::on_path("dpkg-deb") {
                files.push(distributions::deb(&directory, &directory.join("deb"), &tree, &release).unwrap());
            }
            files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>()
        });
        let listing = output(Command::new("tar").arg("-tzf").arg(all.join("first/ferroce-1.2.3.tar.gz")));
        let wheel = all.join("first/ferroce-1.2.3-py3-none-manylinux_2_28_x86_64.whl").exists();
        fs::remove_dir_all(&all).unwrap();
        assert!(made[0] == made[1]);
        let listing = listing.unwrap();
        assert!(
            listing.lines().any(|line| line == "ferroce-1.2.3/lib/ferroce/bin/rdma") && wheel,
            "{listing}"
        );
    }
}
