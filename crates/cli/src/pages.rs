//! What is made of the command line's own description: man pages, and completions for shells.

use clap::CommandFactory as _;
use clap_complete::Shell;
use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use crate::{Arguments, output};

/// Prints the completions of a shell.
pub fn completions(shell: Shell) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "ferroce", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

/// Writes `ferroce.1`, and a page for each command, to a directory, which is made if it isn't there.
pub fn man(directory: &Path) -> ExitCode {
    let written = fs::create_dir_all(directory).and_then(|()| write_pages(directory));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferroce man: {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

fn write_pages(directory: &Path) -> io::Result<()> {
    let mut command = Arguments::command();
    command.build();
    page(directory, "ferroce", &command)?;
    for part in command.get_subcommands().filter(|part| !part.is_hide_set() && part.get_name() != "help") {
        let name = format!("ferroce-{}", part.get_name());
        page(directory, &name, part)?;
    }
    Ok(())
}

fn page(directory: &Path, name: &str, command: &clap::Command) -> io::Result<()> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name.to_uppercase()).render(&mut text)?;
    fs::write(directory.join(format!("{name}.1")), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_free_of_contradictions() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn each_command_has_a_page() {
        let directory = std::env::temp_dir().join(format!("ferroce-man-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let written = write_pages(&directory);
        let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        let (whole, ps) = (text("ferroce.1"), text("ferroce-ps.1"));
        let hidden = directory.join("ferroce-rdma.1").exists();
        fs::remove_dir_all(&directory).unwrap();
        written.unwrap();
        assert!(whole.contains(".TH FERROCE 1") && whole.contains("FERROCE_LOG"), "{whole}");
        assert!(ps.contains("ferroce ps") && ps.contains("json"), "{ps}");
        assert!(!hidden);
    }
}
