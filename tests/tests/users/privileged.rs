//! A program that runs with more rights than the user who started it ignores that user's variables.

use super::{FIRST, hosts};
use ferroce_tests::{Artifacts, Host, World, require, tool};

/// What a run of a program has left.
struct Left {
    stdout: String,
    stderr: String,
    /// The names of the files that it has made.
    files: String,
}

/// Runs a copy of `ibv_devinfo` with this mode as a user, with variables for everything that it can be made to write.
fn devinfo(host: &Host, mode: &str) -> Left {
    // Where setuid bits count: not in the `/tmp` of tests.
    let place = "/mnt";
    let variables = [
        "FERROCE_CAPTURE=made/capture.pcapng",
        "FERROCE_CHECK=on",
        "FERROCE_CHECK_REPORT=made/report",
        "FERROCE_LOG=trace",
        "FERROCE_NONSENSE=1",
        "FERROCE_RUN=1",
    ];
    let user = World::as_user(FIRST).join(" ");
    host.admin(&format!(
        "mount -t tmpfs -o mode=755 none {place}; cd {place}; mkdir -m 1777 made; \
         cp $(command -v ibv_devinfo) program; chmod {mode} program; \
         {user} env {} ./program > stdout 2> stderr; ls made > files",
        variables.join(" ").replace("made/", &format!("{place}/made/"))
    ));
    let read = |file: &str| host.admin(&format!("cat {place}/{file}"));
    let left = Left { stdout: read("stdout"), stderr: read("stderr"), files: read("files") };
    host.admin(&format!("umount {place}"));
    left
}

#[test]
fn a_setuid_program_ignores_the_variables_of_the_user_who_started_it() {
    require!(tool("ibv_devinfo", "ibverbs-utils"));
    let world = require!(hosts(|| World::one_host(1500)));
    let host = world.first();
    // A setuid program finds its libraries at the system's places alone.
    let library = Artifacts::get().library_dir().join("libibverbs.so.1");
    host.admin(&format!(
        "mount --bind {} $(realpath $(ldconfig -p | awk '$1 == \"libibverbs.so.1\" {{ print $NF; exit }}'))",
        library.display()
    ));
    let plain = devinfo(host, "755");
    assert!(plain.stdout.contains("hca_id"), "{} {}", plain.stdout, plain.stderr);
    assert!(plain.stderr.contains("FERROCE_NONSENSE") && plain.stderr.contains("DEBUG"), "{}", plain.stderr);
    assert!(plain.files.contains("capture.pcapng"), "{}", plain.files);
    let privileged = devinfo(host, "4755");
    assert!(privileged.stdout.contains("hca_id"), "{} {}", privileged.stdout, privileged.stderr);
    assert_eq!((privileged.stderr, privileged.files), (String::new(), String::new()));
}
