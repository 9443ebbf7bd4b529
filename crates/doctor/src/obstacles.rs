//! Why a program would start and not use Ferroce: static, for another loader or processor, with privileges of its own.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{elf, install};

/// Why a program would start and not use Ferroce, and the fix.
pub struct Obstacle {
    /// A sentence without its full stop.
    pub says: String,
    /// What to do.
    pub fix: &'static str,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; fix: {}", self.says, self.fix)
    }
}

/// Why the loader won't take our library for this program, although it would start. `preload`: the loader is to load it
/// before all others.
pub fn obstacles(
    path: &Path,
    program: Option<&elf::Program>,
    libraries: &Path,
    preload: bool,
) -> Vec<Obstacle> {
    let mut found = Vec::new();
    let name = path.display();
    if let Some(privilege) = gained_privilege(path) {
        found.push(Obstacle {
            says: format!(
                "{name} is {privilege}: the loader ignores LD_LIBRARY_PATH for it, so it won't use Ferroce"
            ),
            fix: "run it as the user it switches to, or from a copy without that bit",
        });
    }
    let Some(program) = program else { return found };
    let mut add = |what: &str, fix| found.push(Obstacle { says: format!("{name} {what}"), fix });
    if program.foreign {
        add(
            "is for another processor or word size than this build of Ferroce, so it won't use Ferroce",
            "install Ferroce for that processor",
        );
    } else if program.is_static {
        add(
            "is statically linked: it loads no library, so it won't use Ferroce itself (programs that it starts will)",
            "link it to libibverbs dynamically",
        );
    } else if program.is_musl {
        add(
            "is built for musl (Alpine): its loader can't load Ferroce's libraries, which are built for glibc, so it won't \
             use Ferroce",
            "build it for glibc, and run it in a glibc image such as Debian's",
        );
    }
    let other = |directory: &&PathBuf| *directory != libraries && directory.join(install::LIBRARY).exists();
    if let Some(directory) = program.rpath.iter().filter(|_| !preload).find(other) {
        let library = directory.join(install::LIBRARY);
        add(
            &format!(
                "has an RPATH that comes before LD_LIBRARY_PATH and leads to {}, so it won't use Ferroce",
                library.display()
            ),
            "leave out --no-preload, or `patchelf --remove-rpath` on a copy of it",
        );
    }
    found
}

/// What makes the loader treat the program as privileged for this user.
fn gained_privilege(path: &Path) -> Option<&'static str> {
    let file = fs::metadata(path).ok()?;
    // SAFETY: neither call has preconditions.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    if file.mode() & libc::S_ISUID != 0 && file.uid() != user {
        return Some("a setuid program");
    }
    let setgid = libc::S_ISGID | libc::S_IXGRP;
    if file.mode() & setgid == setgid && file.gid() != group {
        return Some("a setgid program");
    }
    if user != 0 && has_capabilities(path) {
        return Some("a program with file capabilities");
    }
    None
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings are NUL-terminated; a size of 0 asks for the length only, nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn setuid_program_of_another_user_is_privileged() {
        let su = Path::new("/bin/su");
        // SAFETY: getuid has no preconditions.
        let user = unsafe { libc::getuid() };
        let Ok(file) = fs::metadata(su) else {
            return ferroce_tests::record_skip("there is no /bin/su here");
        };
        let expected = (user != 0 && file.mode() & libc::S_ISUID != 0).then_some("a setuid program");
        assert_eq!(gained_privilege(su), expected);
        assert_eq!(gained_privilege(&env::current_exe().unwrap()), None);
    }
}
