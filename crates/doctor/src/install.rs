//! Where Ferroce's libraries are: beside this command, wherever the two were put together.

use std::path::{Path, PathBuf};
use std::{env, io};

/// The library that programs load.
pub const LIBRARY: &str = "libibverbs.so.1";
/// The library that connects programs.
pub const CONNECTIONS: &str = "librdmacm.so.1";
/// The library that shows programs the entries in `/sys` and `/dev`.
pub const PRELOAD: &str = "libferroce_preload.so";
/// The library that lets programs of sockets use rsockets.
pub const SOCKETS: &str = "libferroce_rsocket_preload.so";
/// The directory beside them with commands that answer for our devices.
pub const COMMANDS: &str = "bin";

/// Why the libraries can't be used: what is so, and the fix. Sentences without their full stop.
#[derive(Debug)]
pub struct Missing {
    /// What is so.
    pub says: String,
    /// What to do.
    pub fix: &'static str,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.says, self.fix)
    }
}

/// The directory of our libraries: `../lib/ferroce` seen from this command.
///
/// # Errors
/// They aren't there.
pub fn library_directory() -> Result<PathBuf, Missing> {
    match env::current_exe().and_then(|path| path.canonicalize()) {
        Ok(own) => library_directory_beside(&own),
        Err(_) if !Path::new("/proc/self").exists() => Err(Missing {
            says: "/proc isn't mounted, so the place of this command is unknown".to_owned(),
            fix: "`mount -t proc proc /proc` (as root)",
        }),
        Err(error) => Err(Missing {
            says: format!("the place of this command is unknown: {error}"),
            fix: "keep the command where it was started from",
        }),
    }
}

fn library_directory_beside(command: &Path) -> Result<PathBuf, Missing> {
    let prefix = command.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let directory = prefix.join("lib/ferroce");
    [LIBRARY, CONNECTIONS, PRELOAD].iter().try_for_each(|library| look_for(library, &directory))?;
    Ok(directory)
}

fn look_for(library: &str, directory: &Path) -> Result<(), Missing> {
    match directory.join(library).metadata() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Missing {
            says: format!(
                "{library} is not in {}, where it belongs beside this command",
                directory.display()
            ),
            fix: "keep bin/ and lib/ of one build together (in a source tree: `cargo xtask dist`, then \
                   target/dist/bin/ferroce)",
        }),
        Err(error) => Err(Missing {
            says: format!("{} can't be used: {error}", directory.join(library).display()),
            fix: "make it readable for this user",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_said_with_the_place_it_belongs() {
        let error = library_directory_beside(Path::new("/nowhere/bin/ferroce")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/lib/ferroce") && error.contains("cargo xtask dist"), "{error}");
    }
}
