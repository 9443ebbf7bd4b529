//! What an installation needs of the system that it is copied to.

use std::path::{Path, PathBuf};
use std::process::Command;

use ferroce_tests::Artifacts;

/// The newest C library that may be needed: Debian 10's, and that of RHEL 8 and its like.
const GLIBC: &[u32] = &[2, 28];
/// Files of the C library itself, on older systems too.
const OF_THE_C_LIBRARY: [&str; 7] = [
    "libc.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "libm.so.6",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

fn programs() -> Vec<PathBuf> {
    let artifacts = Artifacts::get();
    let mut all = vec![artifacts.ferroce()];
    for entry in artifacts.library_dir().read_dir().expect("the directory of libraries") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            all.push(path);
        }
    }
    assert!(all.len() > 4, "{all:?}");
    all
}

fn objdump(option: &str, file: &Path) -> String {
    let output = Command::new("objdump").arg(option).arg(file).output().expect("objdump can be run");
    assert!(output.status.success(), "objdump {option} {}", file.display());
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn nothing_newer_than_glibc_2_28_is_needed() {
    for program in programs() {
        let table = objdump("-T", &program);
        let mut versions = 0;
        for line in table.lines().filter(|line| line.contains("*UND*")) {
            let Some(version) =
                line.split_whitespace().find_map(|word| word.trim_matches(['(', ')']).strip_prefix("GLIBC_"))
            else {
                continue;
            };
            let numbers: Vec<u32> = version
                .split('.')
                .map(|part| part.parse().unwrap_or_else(|_| panic!("{}: {line}", program.display())))
                .collect();
            assert!(numbers[..2] <= *GLIBC, "{} needs {line}", program.display());
            versions += 1;
        }
        assert!(versions > 10, "{} has only {versions} symbols of the C library", program.display());
    }
}

#[test]
fn no_library_is_needed_but_the_c_library_and_our_own() {
    for program in programs() {
        let headers = objdump("-p", &program);
        let needed: Vec<&str> =
            headers.lines().filter_map(|line| line.trim().strip_prefix("NEEDED")).map(str::trim).collect();
        assert!(needed.contains(&"libc.so.6"), "{}: {needed:?}", program.display());
        for name in needed {
            let own = ["libibverbs.so.1", "librdmacm.so.1"].contains(&name);
            assert!(own || OF_THE_C_LIBRARY.contains(&name), "{} needs {name}", program.display());
        }
    }
}

/// A program that loads the library late finds as little room for what each thread has at a fixed place.
#[test]
fn threads_have_little_of_the_library_at_fixed_places() {
    /// A third of what glibc 2.28 leaves for all libraries that come late, and no more than newer ones leave for such a library.
    const MOST: u64 = 512;
    let library = Artifacts::get().library_dir().join("libibverbs.so.1");
    let headers = objdump("-p", &library);
    let mut lines = headers.lines().skip_while(|line| !line.trim_start().starts_with("TLS "));
    let sizes = lines.nth(1).expect("a segment of what each thread has");
    let size = sizes.split_whitespace().skip_while(|word| *word != "memsz").nth(1).expect("its size");
    let size = u64::from_str_radix(size.trim_start_matches("0x"), 16).expect("a hexadecimal number");
    assert!((1..=MOST).contains(&size), "{size} bytes: {sizes}");
}
