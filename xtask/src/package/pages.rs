//! Man pages and completions of shells, as the command writes them, where the programs of a distribution look for them.

use std::path::Path;
use std::{fs, io};

use super::output;
use super::tree::{Entry, Tree};
use crate::dist::{Machine, program};

/// Each shell with the file that it reads.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/ferroce"),
    ("zsh", "share/zsh/site-functions/_ferroce"),
    ("fish", "share/fish/vendor_completions.d/ferroce.fish"),
];

/// What the command `ferroce` writes of itself. `scratch` gets the man pages.
///
/// # Errors
/// The command fails, or a file can't be written.
pub fn collect(machine: &Machine, ferroce: &Path, scratch: &Path) -> io::Result<Tree> {
    if scratch.exists() {
        fs::remove_dir_all(scratch)?;
    }
    output(program(machine, ferroce).arg("man").arg(scratch))?;
    let mut tree = Tree::new();
    for entry in fs::read_dir(scratch)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().display();
        tree.push(Entry::file(&format!("share/man/man1/{name}"), 0o644, fs::read(&path)?));
    }
    for (shell, file) in COMPLETIONS {
        let text = output(program(machine, ferroce).args(["completions", shell]))?;
        tree.push(Entry::file(file, 0o644, text.into_bytes()));
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn what_the_command_writes_goes_where_it_is_looked_for() {
        let directory = std::env::temp_dir().join(format!("ferroce-pages-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let command = directory.join("ferroce");
        let script = "#!/bin/sh\ncase $1 in man) mkdir -p \"$2\"; echo page > \"$2/ferroce-ps.1\";; *) echo \"$2\";; esac\n";
        fs::write(&command, script).unwrap();
        fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
        let tree = collect(&Machine::this(), &command, &directory.join("man"));
        fs::remove_dir_all(&directory).unwrap();
        let paths: Vec<_> = tree.unwrap().into_iter().map(|entry| entry.path).collect();
        let completions = COMPLETIONS.map(|(_, file)| file.to_owned());
        assert_eq!(paths, [&["share/man/man1/ferroce-ps.1".to_owned()][..], &completions].concat());
    }
}
