//! Where Ferroce's libraries are: beside this command, wherever the two were put together.

use std::path::{Path, PathBuf};
use std::{env, io};

/// The library that programs load.
pub const LIBRARY: &str = "libibverbs.so.1";

/// The directory of our libraries: `../lib/ferroce` seen from this command.
///
/// # Errors
/// A sentence that says what is missing, and the mend.
pub fn library_directory() -> Result<PathBuf, String> {
    let own = env::current_exe()
        .and_then(|path| path.canonicalize())
        .map_err(|error| format!("cannot find out where this command is: {error}"))?;
    library_directory_beside(&own)
}

fn library_directory_beside(command: &Path) -> Result<PathBuf, String> {
    let prefix = command.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let directory = prefix.join("lib/ferroce");
    match directory.join(LIBRARY).metadata() {
        Ok(_) => Ok(directory),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!(
            "{LIBRARY} is not in {}, where it belongs beside this command; keep bin/ and lib/ of one build together \
             (in a source tree: `cargo xtask dist`, then target/dist/bin/ferroce)",
            directory.display()
        )),
        Err(error) => Err(format!("{}: {error}", directory.join(LIBRARY).display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_said_with_the_place_it_belongs() {
        let error = library_directory_beside(Path::new("/nowhere/bin/ferroce")).unwrap_err();
        assert!(error.contains("/nowhere/lib/ferroce") && error.contains("cargo xtask dist"), "{error}");
    }
}
