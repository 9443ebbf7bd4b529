//! What our C libraries have in common: trampolines that jump to Rust functions, and the call of the linker. Used by
//! the `link` modules of the libraries through `#[path]`, so it uses nothing but std.

use std::path::{Path, PathBuf};
use std::{fs, io};

pub mod baseline;
pub mod machine;

use machine::Machine;

/// The end of the assembly: no executable stack is asked for.
pub(super) const END_OF_ASSEMBLY: &str = "\t.section .note.GNU-stack,\"\",%progbits\n";

/// The tail jump of an architecture ([`Machine::arch`]).
///
/// # Errors
/// An architecture that has no jump here.
pub(super) fn jump(arch: &str) -> io::Result<&'static str> {
    match arch {
        "x86_64" => Ok("jmp"),
        "aarch64" => Ok("b"),
        _ => Err(io::Error::other(format!("no trampolines for {arch}"))),
    }
}

/// Links `assembly` with `inputs`, archives and the libraries that it needs, to the shared library `directory/name` of the machine, which
/// exports what the version script `script` names and needs no newer C library than the [`baseline`]; intermediate files go to `scratch`.
///
/// # Errors
/// The C compiler is missing or refuses, or a file can't be written.
pub(super) fn link(
    machine: &Machine,
    name: &str,
    inputs: &[&Path],
    assembly: &str,
    script: &str,
    scratch: &Path,
    directory: &Path,
) -> io::Result<PathBuf> {
    fs::create_dir_all(scratch)?;
    fs::create_dir_all(directory)?;
    let (script_file, assembly_file) = (scratch.join("exports.map"), scratch.join("exports.s"));
    fs::write(&script_file, script)?;
    fs::write(&assembly_file, assembly)?;
    // A program that has the library loaded keeps the old file.
    let unfinished = scratch.join(name);
    let output = machine
        .compiler()
        .args(baseline::prepare(machine, &scratch.join("baseline"))?)
        .args(["-shared", "-o"])
        .arg(&unfinished)
        .arg(&assembly_file)
        .args(inputs)
        .arg(format!("-Wl,--version-script={}", script_file.display()))
        .arg(format!("-Wl,-soname,{name}"))
        .args(["-Wl,--no-undefined", "-Wl,--gc-sections", "-Wl,--as-needed", "-Wl,-z,relro", "-Wl,-z,now"])
        .args(["-Wl,-z,noexecstack", "-Wl,-z,nodelete", "-lgcc_eh", "-lpthread", "-ldl", "-lm", "-lc"])
        .output()?;
    if !output.status.success() {
        let says = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("linking {name}: {says}")));
    }
    let library = directory.join(name);
    fs::rename(&unfinished, &library)?;
    Ok(library)
}

/// Makes the link `alias` to the library `name` of `directory`.
///
/// # Errors
/// The link can't be made.
pub(super) fn link_beside(name: &str, alias: &str, directory: &Path) -> io::Result<()> {
    let alias = directory.join(alias);
    if alias.symlink_metadata().is_ok() {
        fs::remove_file(&alias)?;
    }
    std::os::unix::fs::symlink(name, &alias)
}
