//! Installs the Debian packages that a task needs and the machine lacks.

use std::process::{Command, Stdio};

/// Package and what it is wanted for.
const PACKAGES: &[(&str, &str)] = &[
    ("gcc", "compiling the C programs"),
    (
        "libibverbs-dev",
        "the verbs headers and the distribution's library, for the C programs and the ABI test",
    ),
    ("ibverbs-utils", "ibv_*_pingpong, ibv_devinfo"),
    ("librdmacm-dev", "the headers of connections, and the distribution's library for the ABI test"),
    ("rdmacm-utils", "rping, ucmatose and their family"),
    ("iperf3", "sockets over RDMA, and TCP over the same path for comparison"),
    ("curl", "sockets over RDMA"),
    ("nginx-light", "sockets over RDMA"),
    ("redis-server", "sockets over RDMA, and redis-benchmark"),
    ("memcached", "sockets over RDMA"),
    ("g++", "compiling the C++ program for asio"),
    ("libasio-dev", "sockets over RDMA"),
    ("perftest", "ib_send_bw and its family"),
    ("python3-pyverbs", "the Python binding"),
    ("ucx-utils", "ucx_info, ucx_perftest"),
    ("openmpi-bin", "mpirun"),
    ("libopenmpi-dev", "compiling the MPI programs"),
    ("iproute2", "making hosts out of namespaces"),
    ("nftables", "networks that mark packets and drop them"),
    ("python3-minimal", "small helpers of the harness's own tests"),
    ("tshark", "decoding captures"),
    ("chromium", "the book and the page of a capture as a browser shows them"),
    ("valgrind", "memory errors"),
    ("gdb", "the stacks of a process that hangs"),
    ("strace", "which system calls a program makes"),
    ("binutils", "listing the symbols of the library"),
    ("qemu-system-x86", "the guest with the kernel's rdma_rxe"),
    ("kmod", "the guest's modules"),
    ("xz-utils", "the guest's kernel"),
    ("zstd", "the guest's kernel"),
    ("ibverbs-providers", "verbs on rdma_rxe"),
];

const LIBFABRIC: (&str, &str) = ("libfabric-bin", "fi_info, fi_pingpong");

/// Installs missing packages of the tests, as root and where apt-get is, and prints first what it installs, then what stays missing.
pub fn install_for_tests() {
    install_missing(PACKAGES);
}

/// The same for the demo's program.
pub fn install_for_demo() {
    let wanted: Vec<_> = PACKAGES.iter().copied().filter(|(name, _)| *name == "ibverbs-utils").collect();
    install_missing(&wanted);
}

/// The same for what the benchmark compares with.
pub fn install_for_bench() {
    install_missing(PACKAGES);
    install_missing(&[LIBFABRIC]);
}

/// The same for the clients that only `cargo xtask compat` runs; `quick`: without those that are large.
pub fn install_for_compat(quick: bool) {
    install_missing(PACKAGES);
    install_missing(&[
        ("qperf", "qperf"),
        ("fio", "fio"),
        LIBFABRIC,
        ("mpich", "mpirun.mpich"),
        ("libmpich-dev", "compiling the MPI programs for MPICH"),
        ("python3-pip", "fetching clients that are wheels"),
    ]);
    if !quick {
        install_missing(&[
            ("libgloo-dev", "gloo"),
            ("librpma-dev", "librpma"),
            ("python3-torch", "tensorpipe"),
            ("ceph-mon", "a cluster of Ceph"),
            ("ceph-osd", "a cluster of Ceph"),
        ]);
    }
}

/// The same for what `cargo xtask package --test` makes clean roots with.
pub fn install_for_packages() {
    install_missing(&[
        ("debootstrap", "clean roots of Debian"),
        ("rpm", "installing the rpm"),
        ("podman", "making an image and running it"),
        ("runc", "running containers"),
        ("buildah", "building from a Containerfile"),
        ("python3-pip", "the libraries that the wheel's tests use"),
        ("iproute2", "a network of one's own"),
    ]);
}

/// The same for what builds packages for another processor, as Debian and others call it, and runs what was built.
pub fn install_for_foreign(debian: &str, name: &str) {
    let compiler = format!("gcc-{}-linux-gnu", name.replace('_', "-"));
    let library = format!("libc6-dev-{debian}-cross");
    install_missing(&[
        (&compiler, "compiling for another processor"),
        (&library, "the C library of another processor"),
        ("qemu-user", "running programs of another processor"),
        ("qemu-user-static", "clean roots of another processor"),
    ]);
}

fn install_missing(packages: &[(&str, &str)]) {
    let missing: Vec<_> = packages.iter().filter(|(name, _)| !is_installed(name)).collect();
    if missing.is_empty() {
        return;
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() == 0 };
    if root && on_path("apt-get") {
        println!("These packages are missing and are installed by apt-get now:");
        for (name, purpose) in &missing {
            println!("    {name}: {purpose}");
        }
        if apt(&install_line(&names)) || (apt(&["update", "-qq"]) && apt(&install_line(&names))) {
            return;
        }
        println!("apt-get could not install them all.");
    }
    for (name, purpose) in missing.iter().filter(|(name, _)| !is_installed(name)) {
        println!("not installed: {name} ({purpose}); what needs it is skipped");
    }
    if !root && on_path("apt-get") {
        println!("To run everything: sudo apt-get install {}", names.join(" "));
    }
}

fn install_line<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let mut line = vec!["install", "-y", "-qq", "--no-install-recommends"];
    line.extend(names);
    line
}

fn apt(words: &[&str]) -> bool {
    Command::new("apt-get")
        .args(words)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether a package of Debian is installed.
pub fn is_installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f=${db:Status-Status}", package])
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

/// Whether `program` is found in `PATH`.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}
