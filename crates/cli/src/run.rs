//! `ferroce run`: prepare the environment, then become the command.

use ferroce_doctor::path_error;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ferroce_netdev::{DEVICES_VARIABLE, LINK_LAYER_VARIABLE, NetError, discover};
use ferroce_parts::settings;
use ferroce_udp::tap::{capture, fault};

use crate::arguments::Surroundings;
use crate::check::Checking;
use ferroce_doctor::{inspect, install, no_device, obstacles};

/// Exit status when `ferroce run` itself fails; those above are the shell's (`env(1)`, `nohup(1)`).
const OWN_FAILURE: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// What was asked for.
pub struct RunOptions<'a> {
    /// `--capture`
    pub capture: Option<&'a Path>,
    /// `--fault`
    pub fault: Option<&'a str>,
    /// `--devices`, `--fabric`, `--link-layer`, `--log`, `--trust`, `--no-preload`, `--sockets`
    pub surroundings: &'a Surroundings,
    /// `--check`, `--check-report`, `--strict`
    pub checking: &'a Checking,
    /// The command, at least its name.
    pub command: &'a [OsString],
}

impl<'a> RunOptions<'a> {
    /// Only surroundings.
    pub fn with(surroundings: &'a Surroundings) -> Self {
        Self { capture: None, fault: None, surroundings, checking: &Checking::NONE, command: &[] }
    }
}

/// Replaces this process with the command; returns only when that fails.
pub fn run(options: &RunOptions<'_>) -> ExitCode {
    match prepare(options) {
        Ok(mut command) => {
            let error = command.exec();
            let (status, says) = explain(&options.command[0], &error);
            // It contains a header only.
            if let Some(capture) = options.capture.filter(|capture| capture.is_file()) {
                let _ = std::fs::remove_file(capture);
            }
            eprintln!("ferroce run: {says}");
            ExitCode::from(status)
        }
        Err(says) => {
            says.lines().for_each(|line| eprintln!("ferroce run: {line}"));
            ExitCode::from(OWN_FAILURE)
        }
    }
}

fn prepare(options: &RunOptions<'_>) -> Result<Command, String> {
    let (program, arguments) = options.command.split_first().ok_or("there is no command to run")?;
    let mut command = Command::new(program);
    command.args(arguments);
    let path = find_program(program, env::var_os("PATH").as_deref());
    let elf = path.as_deref().and_then(inspect);
    // Loaders for another processor, and musl's, print errors for each of our libraries.
    let cannot_load = elf.as_ref().is_some_and(|elf| elf.foreign || elf.is_musl);
    let preload = !options.surroundings.no_preload && !cannot_load;
    let surroundings = Surroundings { no_preload: !preload, ..options.surroundings.clone() };
    let libraries = set_environment(&mut command, &RunOptions { surroundings: &surroundings, ..*options })?;
    for line in no_device().iter().flat_map(|lines| lines.lines()) {
        eprintln!("ferroce run: {line}");
    }
    if let Some(path) = path {
        for obstacle in obstacles(&path, elf.as_ref(), &libraries, preload) {
            eprintln!("ferroce run: {obstacle}");
        }
        if elf.is_some_and(|elf| elf.is_musl) {
            // Its loader would find glibc's libibverbs there.
            command.env_remove("LD_LIBRARY_PATH");
        }
    }
    Ok(command)
}

/// Sets the variables by which `command` and what it starts use Ferroce, and returns the directory of our libraries.
///
/// # Errors
/// A variable that the user has set is invalid, the libraries are missing, or the loader can't handle their path.
pub fn set_environment(command: &mut Command, options: &RunOptions<'_>) -> Result<PathBuf, String> {
    let surroundings = options.surroundings;
    let link_layer = surroundings.link_layer.map(|link_layer| link_layer.to_string());
    let by_option = [
        ("--devices", DEVICES_VARIABLE, surroundings.devices.devices.as_deref()),
        ("--fabric", settings::FABRIC, surroundings.fabric.as_deref()),
        ("--link-layer", LINK_LAYER_VARIABLE, link_layer.as_deref()),
        ("--log", settings::LOG, surroundings.log.as_deref()),
        ("--trust", settings::TRUST, surroundings.trust.as_deref()),
        ("--fault", fault::VARIABLE, options.fault),
    ];
    let mut mistakes = settings::mistakes();
    // An option stands in for its variable.
    mistakes.retain(|mistake| {
        let by_option =
            by_option.iter().filter(|(.., value)| value.is_some()).map(|(_, variable, _)| *variable);
        let mut replaced = by_option.chain(options.capture.map(|_| capture::VARIABLE));
        !replaced.any(|name| mistake.starts_with(name)) && !options.checking.replaces(mistake)
    });
    for (option, variable, value) in by_option {
        let Some(value) = value else { continue };
        match settings::why_wrong(variable, OsStr::new(value)) {
            Some(why) => mistakes.push(format!("{option} {value}: {why}")),
            None => _ = command.env(variable, value),
        }
    }
    if !mistakes.is_empty() {
        return Err(mistakes.join("\n"));
    }
    // Interfaces that can't be read are for the doctor; a list that means nothing is the user's.
    if let Err(error) = discover()
        && !matches!(error, NetError::Netlink { .. })
    {
        return Err(format!("{error}; fix: correct --devices or FERROCE_DEVICES, or leave it out"));
    }
    let libraries = install::library_directory().map_err(|missing| missing.to_string())?;
    command.env("LD_LIBRARY_PATH", library_path(&libraries, env::var_os("LD_LIBRARY_PATH").as_deref())?);
    if !surroundings.no_preload {
        show_entries(command, &libraries, surroundings.sockets)?;
    }
    // The library then prints on standard error why it refused a call.
    command.env(settings::RUN, "1");
    if let Some(file) = options.capture {
        command.env(capture::VARIABLE, start_capture(file)?);
    }
    options.checking.set(command)?;
    Ok(libraries)
}

/// Lets the command and what it starts find our devices in `/sys` and `/dev`, with `rdma`, and by a libibverbs or
/// librdmacm that they have brought along under another name, as Python wheels do, or look for elsewhere first: its functions are then ours.
///
/// With `sockets`, its sockets are rsockets.
fn show_entries(command: &mut Command, libraries: &Path, sockets: bool) -> Result<(), String> {
    let before = env::var_os("LD_PRELOAD");
    let mut ours = vec![install::LIBRARY, install::CONNECTIONS, install::PRELOAD];
    if sockets {
        ours.push(install::SOCKETS);
    }
    let preloaded: Vec<PathBuf> = ours.iter().map(|library| libraries.join(library)).collect();
    command.env("LD_PRELOAD", preload_list(&preloaded, before.as_deref())?);
    let ours = libraries.join(install::COMMANDS);
    if let Some(before) = env::var_os("PATH").filter(|_| ours.is_dir()) {
        let others = env::split_paths(&before).filter(|directory| *directory != ours);
        let path = env::join_paths(std::iter::once(ours.clone()).chain(others));
        command.env("PATH", path.map_err(|error| format!("PATH: {error}"))?);
    }
    // AddressSanitizer insists on being the first library, which matters to it only for what we don't stand before.
    let mut sanitizer = env::var_os("ASAN_OPTIONS").unwrap_or_default();
    if !sanitizer.as_bytes().windows(SANITIZER_ORDER.len()).any(|part| part == SANITIZER_ORDER.as_bytes()) {
        sanitizer.push(if sanitizer.is_empty() { "" } else { ":" });
        sanitizer.push(SANITIZER_ORDER);
        sanitizer.push("=0");
        command.env("ASAN_OPTIONS", sanitizer);
    }
    Ok(())
}

const SANITIZER_ORDER: &str = "verify_asan_link_order";

/// The existing list, then ours: a library that is already in it may have to be first.
fn preload_list(ours: &[PathBuf], before: Option<&OsStr>) -> Result<OsString, String> {
    if let Some(library) = ours.iter().find(|library| library.as_os_str().as_bytes().contains(&b' ')) {
        return Err(format!(
            "the loader cannot preload {}: its path has a space; move Ferroce elsewhere, or use --no-preload",
            library.display()
        ));
    }
    let is_other = |entry: &&[u8]| {
        !entry.is_empty() && ours.iter().all(|library| library.as_os_str().as_bytes() != *entry)
    };
    let before = before.unwrap_or_default().as_bytes().split(|byte| b": ".contains(byte)).filter(is_other);
    let all: Vec<&[u8]> = before.chain(ours.iter().map(|library| library.as_os_str().as_bytes())).collect();
    Ok(OsString::from_vec(all.join(&b':')))
}

/// Our directory before whatever was there, without naming it twice when `ferroce run` runs `ferroce run`.
fn library_path(libraries: &Path, before: Option<&OsStr>) -> Result<OsString, String> {
    let ours = libraries.as_os_str();
    if ours.as_bytes().iter().any(|byte| b":;$".contains(byte)) {
        return Err(format!(
            "the loader cannot search {}: its path has a \":\", \";\" or \"$\"; move Ferroce elsewhere",
            libraries.display()
        ));
    }
    let mut path = ours.to_owned();
    // An empty entry would mean the current directory: `x:` in the variable is kept, an empty variable isn't one.
    let others = before.filter(|before| !before.is_empty()).map(OsStr::as_bytes).unwrap_or_default();
    for entry in others.split(|&byte| byte == b':').filter(|entry| *entry != ours.as_bytes()) {
        if !others.is_empty() {
            path.push(":");
            path.push(OsStr::from_bytes(entry));
        }
    }
    Ok(path)
}

/// Creates the capture file with its header; the processes append to it.
fn start_capture(file: &Path) -> Result<PathBuf, String> {
    let explain = |says: String| format!("--capture {}: {says}", file.display());
    let absolute = std::path::absolute(file).map_err(|error| explain(error.to_string()))?;
    capture::create(&absolute).map_err(|error| explain(path_error(&absolute, &error)))?;
    Ok(absolute)
}

/// The file that execvp(3) would take.
fn find_program(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let runnable = |file: &PathBuf| {
        file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(path?).map(|directory| directory.join(program)).find(runnable)
}

/// Exit status and sentence for a command that couldn't be started.
fn explain(program: &OsStr, error: &io::Error) -> (u8, String) {
    let name = program.display();
    let is_path = program.as_bytes().contains(&b'/');
    let found = find_program(program, env::var_os("PATH").as_deref()).is_some_and(|file| file.exists());
    match error.kind() {
        // A directory of PATH that may not be searched makes execvp(3) return EACCES for a missing program.
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied if !is_path && !found => {
            let package = match package_of(program) {
                Some(package) => {
                    format!("; fix: install Debian's package {package}, or the one of your distribution")
                }
                None => String::new(),
            };
            (NOT_FOUND, format!("{name}: there is no such command in PATH{package}"))
        }
        io::ErrorKind::NotFound if found => {
            (CANNOT_RUN, format!("{name}: its interpreter (the loader, or what \"#!\" names) doesn't exist"))
        }
        io::ErrorKind::NotFound => (NOT_FOUND, format!("{name}: there is no such file")),
        io::ErrorKind::PermissionDenied => {
            (CANNOT_RUN, format!("{name}: permission denied (not executable, or a directory)"))
        }
        _ => (CANNOT_RUN, format!("{name}: {error}")),
    }
}

/// The package of Debian that has a well-known program of verbs.
fn package_of(program: &OsStr) -> Option<&'static str> {
    let name = program.to_str()?;
    match name {
        "rping" | "ucmatose" | "udaddy" | "rcopy" | "rdma_client" | "rdma_server" | "rdma_xclient"
        | "rdma_xserver" | "cmtime" | "mckey" | "riostream" | "rstream" => Some("rdmacm-utils"),
        "qperf" => Some("qperf"),
        "fio" => Some("fio"),
        "ucx_perftest" | "ucx_info" => Some("ucx-utils"),
        "mpirun" | "mpiexec" => Some("openmpi-bin"),
        name if name.starts_with("ibv_") => Some("ibverbs-utils"),
        name if name.starts_with("ib_") || name.starts_with("raw_ethernet_") => Some("perftest"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(before: Option<&str>) -> String {
        library_path(Path::new("/opt/f/lib"), before.map(OsStr::new)).unwrap().into_string().unwrap()
    }

    #[test]
    fn our_libraries_come_first_and_once() {
        assert_eq!(path(None), "/opt/f/lib");
        assert_eq!(path(Some("")), "/opt/f/lib");
        assert_eq!(path(Some("/a:/b")), "/opt/f/lib:/a:/b");
        assert_eq!(path(Some("/opt/f/lib:/a")), "/opt/f/lib:/a");
        assert_eq!(path(Some("/a:/opt/f/lib")), "/opt/f/lib:/a");
        assert_eq!(path(Some("/opt/f/lib")), "/opt/f/lib");
        assert_eq!(path(Some("/a:")), "/opt/f/lib:/a:");
    }

    #[test]
    fn our_preloads_come_last_and_once() {
        let list = |before: Option<&str>| {
            let list =
                preload_list(&["/f/l.so", "/f/p.so"].map(PathBuf::from), before.map(OsStr::new)).unwrap();
            list.into_string().unwrap()
        };
        assert_eq!(list(None), "/f/l.so:/f/p.so");
        assert_eq!(list(Some("")), "/f/l.so:/f/p.so");
        assert_eq!(list(Some("/a.so b.so")), "/a.so:b.so:/f/l.so:/f/p.so");
        assert_eq!(list(Some("/f/p.so:/a.so /f/l.so")), "/a.so:/f/l.so:/f/p.so");
        let error = preload_list(&["/my files/p.so".into()], None).unwrap_err();
        assert!(error.contains("/my files/p.so") && error.contains("--no-preload"), "{error}");
    }

    #[test]
    fn directory_that_the_loader_would_split_is_refused() {
        for directory in ["/a:b", "/a;b", "/$LIB/b"] {
            let error = library_path(Path::new(directory), None).unwrap_err();
            assert!(error.contains(directory), "{error}");
        }
    }

    #[test]
    fn programs_are_found_as_execvp_does() {
        let path = Some(OsStr::new("/nowhere:/bin"));
        assert_eq!(find_program(OsStr::new("sh"), path), Some("/bin/sh".into()));
        assert_eq!(find_program(OsStr::new("./sh"), path), Some("./sh".into()));
        assert_eq!(find_program(OsStr::new("no-such-command"), path), None);
    }
}
