//! What is made of the command line's own description: man pages, and completions for shells.

use clap::Command;
use clap_complete::Shell;
use ferroce_doctor::path_error;
use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use crate::output;

/// Prints the completions of a shell.
pub fn completions(mut command: Command, shell: Shell) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "ferroce", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

/// Writes `ferroce.1`, and a page for each command, to a directory, which is made if it isn't there.
pub fn man(command: Command, directory: &Path) -> ExitCode {
    let written = fs::create_dir_all(directory).and_then(|()| write_pages(command, directory));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferroce man: {}: {}", directory.display(), path_error(directory, &error));
            ExitCode::FAILURE
        }
    }
}

/// Writes the pages to a directory that is there.
///
/// # Errors
/// A file can't be written.
pub fn write_pages(mut command: Command, directory: &Path) -> io::Result<()> {
    command.build();
    page(directory, "ferroce", &command)?;
    for part in command.get_subcommands().filter(|part| !part.is_hide_set() && part.get_name() != "help") {
        let name = format!("ferroce-{}", part.get_name());
        page(directory, &name, part)?;
    }
    Ok(())
}

fn page(directory: &Path, name: &str, command: &Command) -> io::Result<()> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name.to_uppercase()).render(&mut text)?;
    fs::write(directory.join(format!("{name}.1")), text)
}
