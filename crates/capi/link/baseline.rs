//! The C library that our libraries and the command are linked to: not the one of this machine, but its subset in glibc 2.28.
//!
//! A program that is linked to a new glibc asks for the newest version of each symbol, and an older system refuses it. So
//! [`prepare`] makes stand-ins of the C library's files. They have no code, only each symbol of the installed ones in the
//! newest version that glibc 2.28 had; the files in `baseline/` contain the other functions that are used. A call of a newer function
//! is then an undefined symbol when the library is linked, here and not on the user's machine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use super::machine::Machine;

/// The newest glibc whose symbols are used, as in `GLIBC_2.28`.
pub const GLIBC: (u32, u32) = (2, 28);

/// What is used of newer versions, in our own words. Each is a file, as a library may have its own of the same names.
const SOURCES: [(&str, &str); 3] = [
    ("stat", include_str!("baseline/stat.c")),
    ("mknod", include_str!("baseline/mknod.c")),
    ("unwind", include_str!("baseline/unwind.c")),
];

/// The files in which older systems have a symbol; in glibc 2.34 most of them came together in the first.
const FILES: [&str; 5] = ["libc.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6"];

/// What calls `main` of an executable.
const START_X86_64: &str = include_str!("baseline/start_x86_64.s");

/// One symbol of a stand-in.
struct Symbol {
    version: (u32, u32, u32),
    node: String,
    /// Its size if it is data.
    data: Option<u64>,
}

/// Makes the stand-ins for the machine in `directory`, and returns the arguments of the C compiler that link them.
///
/// # Errors
/// The C compiler or objdump is missing or refuses, or a file can't be written.
pub fn prepare(machine: &Machine, directory: &Path) -> io::Result<Vec<OsString>> {
    fs::create_dir_all(directory)?;
    let mut symbols: BTreeMap<String, Symbol> = BTreeMap::new();
    let mut mathematics = BTreeMap::new();
    for file in FILES {
        let into = if file == FILES[4] { &mut mathematics } else { &mut symbols };
        read(machine, &installed(machine, file)?, into)?;
    }
    let mut parts: BTreeMap<&str, BTreeMap<String, Symbol>> =
        FILES.iter().map(|file| (*file, BTreeMap::new())).collect();
    parts.insert(FILES[4], mathematics);
    for (name, symbol) in symbols {
        parts.entry(file_of(&name)).or_default().insert(name, symbol);
    }
    for (file, symbols) in &parts {
        stand_in(machine, file, symbols, directory)?;
    }
    let archive = directory.join("libbaseline.a");
    if archive.exists() {
        fs::remove_file(&archive)?;
    }
    for (name, text) in SOURCES {
        let (source, object) = (directory.join(format!("{name}.c")), directory.join(format!("{name}.o")));
        fs::write(&source, text)?;
        run(machine.compiler().args(["-O2", "-fPIC", "-fno-builtin", "-c", "-o"]).arg(&object).arg(&source))?;
        run(machine.binutil("ar").arg("rcD").arg(&archive).arg(&object))?;
    }
    let script = format!(
        "GROUP ( {} {} {} AS_NEEDED ( {} ) )\n",
        directory.join("libc.so.6").display(),
        archive.display(),
        installed(machine, "libc_nonshared.a")?.display(),
        installed(machine, machine.loader()?)?.display()
    );
    fs::write(directory.join("libc.so"), script)?;
    // No program of ours asks for a library that only compilers bring along.
    fs::write(directory.join("libgcc_s.so"), "INPUT ( -lgcc_eh )\n")?;
    if machine.arch() == "x86_64" {
        let start = directory.join("start.s");
        fs::write(&start, START_X86_64)?;
        run(machine.compiler().args(["-c", "-o"]).arg(directory.join("Scrt1.o")).arg(&start))?;
    }
    let mut search = OsString::from("-B");
    search.push(directory);
    let mut libraries = OsString::from("-L");
    libraries.push(directory);
    Ok(vec!["-static-libgcc".into(), search, libraries])
}

/// Adds the symbols of a library that glibc of the baseline had, in their newest version there.
fn read(machine: &Machine, library: &Path, symbols: &mut BTreeMap<String, Symbol>) -> io::Result<()> {
    let listing = run(machine.binutil("objdump").arg("-T").arg(library))?;
    for line in listing.lines() {
        let Some((left, right)) = line.split_once('\t') else { continue };
        if ["*UND*", "*ABS*", ".tbss", ".tdata"].iter().any(|section| left.ends_with(section)) {
            continue;
        }
        let [size, node, name] = right.split_whitespace().collect::<Vec<_>>()[..] else { continue };
        let node = node.trim_matches(['(', ')']);
        let Some(version) = version(node).filter(|version| (version.0, version.1) <= GLIBC) else { continue };
        // The column of kinds ends in F for functions, O for data.
        let kinds = left.get(17..24).unwrap_or_default();
        let data = kinds.contains('O').then(|| u64::from_str_radix(size, 16).unwrap_or(8));
        let newest = symbols.get(name).is_none_or(|known| known.version < version);
        if newest {
            symbols.insert(name.into(), Symbol { version, node: node.into(), data });
        }
    }
    if symbols.is_empty() && library.ends_with(FILES[0]) {
        return Err(io::Error::other(format!("{}: no symbols of glibc found", library.display())));
    }
    Ok(())
}

/// The number of a version such as `GLIBC_2.2.5`.
pub fn version(node: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = node.strip_prefix("GLIBC_")?.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

/// The file that has a symbol on older systems. Before glibc 2.30 the loader refuses a library that names another file, if it comes to
/// that one before it has found the symbol.
fn file_of(name: &str) -> &'static str {
    const THREADS: [&str; 10] = [
        "pthread_",
        "sem_",
        "cnd_",
        "mtx_",
        "tss_",
        "call_once",
        "thrd_create",
        "thrd_detach",
        "thrd_exit",
        "thrd_join",
    ];
    let plain = name.trim_start_matches('_');
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| plain.starts_with(prefix));
    if begins(&THREADS) {
        FILES[1]
    } else if ["dlopen", "dlclose", "dlsym", "dlvsym", "dlerror", "dladdr", "dladdr1", "dlinfo", "dlmopen"]
        .contains(&name)
    {
        FILES[2]
    } else if begins(&["timer_", "shm_", "mq_", "aio_", "lio_"]) {
        FILES[3]
    } else {
        FILES[0]
    }
}

/// Makes `directory/file`, and the name that `-l` looks for beside it.
fn stand_in(
    machine: &Machine,
    file: &str,
    symbols: &BTreeMap<String, Symbol>,
    directory: &Path,
) -> io::Result<()> {
    let mut nodes: BTreeMap<(u32, u32, u32), (String, Vec<&str>)> = BTreeMap::new();
    let mut assembly = String::new();
    for (name, symbol) in symbols {
        let node = nodes.entry(symbol.version).or_insert_with(|| (symbol.node.clone(), Vec::new()));
        node.1.push(name);
        let (section, kind, size) = match symbol.data {
            Some(size) => (".data", "object", size),
            None => (".text", "function", 1),
        };
        assembly.push_str(&format!(
            "\t{section}\n\t.globl {name}\n\t.type {name}, %{kind}\n{name}:\n\t.zero {size}\n\t.size {name}, {size}\n"
        ));
    }
    assembly.push_str(super::END_OF_ASSEMBLY);
    let script: String = nodes
        .values()
        .map(|(node, names)| format!("{node} {{\n\tglobal: {};\n}};\n", names.join("; ")))
        .collect();
    let (source, map) = (directory.join(format!("{file}.s")), directory.join(format!("{file}.map")));
    fs::write(&source, assembly)?;
    fs::write(&map, script)?;
    let mut linker = machine.compiler();
    linker.args(["-shared", "-nostdlib", "-o"]).arg(directory.join(file)).arg(&source);
    linker.arg(format!("-Wl,-soname,{file}"));
    if !symbols.is_empty() {
        linker.arg(format!("-Wl,--version-script={}", map.display()));
    }
    run(&mut linker)?;
    let Some((short, _)) = file.split_once(".so.") else { return Ok(()) };
    if short != "libc" {
        fs::write(
            directory.join(format!("{short}.so")),
            format!("INPUT ( {} )\n", directory.join(file).display()),
        )?;
    }
    Ok(())
}

/// Where the C compiler has a file of the C library.
fn installed(machine: &Machine, file: &str) -> io::Result<PathBuf> {
    let says = run(machine.compiler().arg(format!("-print-file-name={file}")))?;
    let path = PathBuf::from(says.trim());
    if path.is_absolute() {
        return path.canonicalize();
    }
    Err(io::Error::other(format!(
        "the C compiler has no {file}; fix: install the C library's headers and files (libc6-dev)"
    )))
}

/// What the command writes to its standard output.
fn run(command: &mut Command) -> io::Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|error| {
        io::Error::other(format!("{name} can't be run: {error}; fix: install gcc and binutils"))
    })?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{name}: {}", String::from_utf8_lossy(&output.stderr))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
