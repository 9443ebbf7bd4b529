//! What the tests run: a staged copy of `target/dist` that every user can read, and our C programs.

use crate::Skip;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The stage: a directory that any user can read, with `dist/` and `bin/` in it.
pub struct Artifacts {
    stage: PathBuf,
}

static ARTIFACTS: OnceLock<Artifacts> = OnceLock::new();
static REMOVE_AT_EXIT: OnceLock<CString> = OnceLock::new();

impl Artifacts {
    /// The stage that `FERROCE_TEST_DIR` names, else one of this process, removed when it exits.
    ///
    /// # Panics
    /// When there is nothing to test: `cargo xtask dist` hasn't been run.
    pub fn get() -> &'static Self {
        ARTIFACTS.get_or_init(|| {
            let stage = std::env::var_os("FERROCE_TEST_DIR").map_or_else(own_stage, PathBuf::from);
            let artifacts = Self { stage };
            artifacts.stage_dist();
            artifacts
        })
    }

    /// The `ferroce` command.
    pub fn ferroce(&self) -> PathBuf {
        self.stage.join("dist/bin/ferroce")
    }

    /// The directory of our `libibverbs.so.1`.
    pub fn library_dir(&self) -> PathBuf {
        self.stage.join("dist/lib/ferroce")
    }

    /// The suppressions for valgrind that the packages have.
    pub fn suppressions(&self) -> PathBuf {
        self.stage.join("dist/share/ferroce/valgrind.supp")
    }

    /// Compiles the program of a path below `tests/c` without `.c` (`memory/windows`) against the installed verbs headers
    /// and links it to the installed library, as any verbs program is; compiles once a stage.
    ///
    /// # Errors
    /// There are no headers, or no compiler.
    pub fn c_program(&self, name: &str) -> Result<String, Skip> {
        self.verbs_program(&c_source(name), &staged_name(name), C_OPTIONS)
    }

    /// The same with AddressSanitizer.
    ///
    /// # Errors
    /// There are no headers, or no compiler.
    pub fn sanitized_program(&self, name: &str) -> Result<String, Skip> {
        let options = [C_OPTIONS, &["-fsanitize=address"]].concat();
        self.verbs_program(&c_source(name), &format!("sanitized-{}", staged_name(name)), &options)
    }

    /// Compiles a program of the conformance suite, `tests/conformance/NAME.c`, likewise.
    ///
    /// # Errors
    /// There are no headers, or no compiler.
    pub fn conformance_program(&self, name: &str) -> Result<String, Skip> {
        let source = repository().join("tests/conformance").join(name).with_extension("c");
        self.verbs_program(&source, &format!("conformance-{name}"), &[])
    }

    fn verbs_program(&self, source: &Path, program: &str, options: &[&str]) -> Result<String, Skip> {
        verbs_headers()?;
        let program = self.compiled(program, |program| {
            let mut command = Command::new("cc");
            command
                .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
                .current_dir(repository())
                .args(options)
                .arg("-o")
                .arg(program)
                .arg(source)
                .args(["-Wl,--as-needed", "-lrdmacm", "-libverbs"]);
            command
        })?;
        Ok(program.into_os_string().into_string().expect("a UTF-8 path"))
    }

    /// The program of a name, made by `compiler` unless the stage has it.
    pub(crate) fn compiled(
        &self,
        name: &str,
        compiler: impl FnOnce(&Path) -> Command,
    ) -> Result<PathBuf, Skip> {
        let program = self.program_path(name).expect("the stage is writable");
        let _lock = self.lock();
        if program.exists() {
            return Ok(program);
        }
        let output = compiler(&program)
            .output()
            .map_err(|error| Skip(format!("the C compiler can't be run: {error}")))?;
        assert!(output.status.success(), "{name}.c:\n{}", String::from_utf8_lossy(&output.stderr));
        Ok(program)
    }

    /// A copy of a program, where every user can run it.
    ///
    /// # Errors
    /// The file can't be copied.
    pub fn stage_program(&self, program: &Path) -> std::io::Result<PathBuf> {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let staged = self.program_path(&name)?;
        // Another test may be running it: a program in use can be replaced, and not written.
        let partial = self.program_path(&format!("{name}.{}", std::process::id()))?;
        fs::copy(program, &partial)?;
        fs::set_permissions(&partial, fs::Permissions::from_mode(0o755))?;
        fs::rename(&partial, &staged)?;
        Ok(staged)
    }

    /// Where a program of the given name goes on the stage.
    ///
    /// # Errors
    /// The directory can't be made.
    pub fn program_path(&self, name: &str) -> std::io::Result<PathBuf> {
        let bin = self.stage.join("bin");
        fs::create_dir_all(&bin)?;
        Ok(bin.join(name))
    }

    fn stage_dist(&self) {
        let _lock = self.lock();
        let staged = self.stage.join("dist");
        if staged.exists() {
            return;
        }
        let dist = target().join("dist");
        assert!(
            dist.join("bin/ferroce").exists(),
            "nothing to test in {}: run `cargo xtask dist` first, or `cargo xtask test`",
            dist.display()
        );
        let partial = self.stage.join("dist.partial");
        copy_tree(&dist, &partial).expect("target/dist can be copied to the stage");
        fs::rename(&partial, &staged).expect("a rename within the stage");
    }

    fn lock(&self) -> File {
        let file = File::create(self.stage.join("lock")).expect("the stage is writable");
        // SAFETY: flock on an open file; closing it unlocks.
        let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
        assert_eq!(result, 0, "flock: {}", std::io::Error::last_os_error());
        file
    }
}

/// Where programs of `tests/c` find the headers that several of its folders use; relative to the repository.
const C_OPTIONS: &[&str] = &["-I", "tests/c"];

/// The source of the program of a path below `tests/c`, which needs `-I tests/c`.
pub fn c_source(name: &str) -> PathBuf {
    repository().join("tests/c").join(name).with_extension("c")
}

/// The file name under which a program of a path is staged.
fn staged_name(name: &str) -> String {
    name.replace('/', "-")
}

/// Compiles the driver of a client, `tests/clients/NAME.cc`, with the installed libraries of these names; compiles once a stage.
///
/// # Errors
/// There is no C++ compiler.
pub fn client_program(name: &str, libraries: &[&str]) -> Result<PathBuf, Skip> {
    let compiler = tool("c++", "g++")?;
    Artifacts::get().compiled(name, |program| {
        let mut command = Command::new(compiler);
        command.args(["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
        command.arg(program).arg(repository().join("tests/clients").join(name).with_extension("cc"));
        command.args(libraries.iter().map(|library| format!("-l{library}")));
        command
    })
}

/// Which declarations of the verbs `tests/c/traffic/pingpong.c` is compiled against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Headers {
    /// Those in `/usr/include`.
    Installed,
    /// Our own few, for machines without the former.
    Minimal,
}

/// Compiles our own ping-pong to `program` and links it to the `libibverbs.so.1` in `library_dir`: where the headers
/// are missing, so is the `libibverbs.so` to link to.
///
/// # Errors
/// `cc` can't be run or fails.
pub fn compile_ping_pong(headers: Headers, library_dir: &Path, program: &Path) -> std::io::Result<()> {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(program);
    if headers == Headers::Minimal {
        compiler.arg("-I").arg(repository().join("tests/c/minimal"));
    }
    let status =
        compiler.arg(c_source("traffic/pingpong")).arg(library_dir.join("libibverbs.so.1")).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(std::io::Error::other(format!("cc tests/c/traffic/pingpong.c: {status}")))
    }
}

/// Fails with a `Skip` that names the Debian package when a header of verbs or of librdmacm isn't installed.
///
/// # Errors
/// One isn't.
pub fn verbs_headers() -> Result<(), Skip> {
    for (header, package) in [("infiniband/verbs.h", "libibverbs-dev"), ("rdma/rdma_cma.h", "librdmacm-dev")]
    {
        if !Path::new("/usr/include").join(header).exists() {
            return Err(Skip(format!("{header} isn't installed (Debian: {package})")));
        }
    }
    Ok(())
}

/// Fails with a `Skip` that names the Debian package when `program` isn't installed.
pub fn tool(program: &str, package: &str) -> Result<PathBuf, Skip> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.exists())
        .ok_or_else(|| Skip(format!("{program} is not installed (Debian: {package})")))
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository().join("target"), |dir| repository().join(dir))
}

pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository")
}

/// A new directory of this process that any user can read, under /var/tmp: every host has a /tmp of its own. Those that killed processes
/// have left are removed; one of them may have had this process's number.
///
/// # Errors
/// /var/tmp isn't writable.
pub fn new_stage(purpose: &str) -> std::io::Result<PathBuf> {
    let prefix = format!("/var/tmp/ferroce-{purpose}-");
    let stage = PathBuf::from(format!("{prefix}{}", std::process::id()));
    for path in fs::read_dir("/var/tmp")?.flatten().map(|entry| entry.path()) {
        let process = path.to_str().and_then(|path| path.strip_prefix(&prefix));
        if path == stage || process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another process may be faster, or it is another user's.
            let _ = fs::remove_dir_all(&path);
        }
    }
    fs::create_dir(&stage)?;
    fs::set_permissions(&stage, fs::Permissions::from_mode(0o755))?;
    Ok(stage)
}

fn own_stage() -> PathBuf {
    let stage = new_stage("tests").expect("/var/tmp is writable");
    let path = CString::new(stage.as_os_str().as_bytes()).expect("no NUL in a path");
    if REMOVE_AT_EXIT.set(path).is_ok() {
        // SAFETY: the handler uses only a static that is set before.
        unsafe { libc::atexit(remove_own_stage) };
    }
    stage
}

extern "C" fn remove_own_stage() {
    if let Some(path) = REMOVE_AT_EXIT.get() {
        let _ = fs::remove_dir_all(Path::new(std::ffi::OsStr::from_bytes(path.as_bytes())));
    }
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source)?, &target)?;
        } else if kind.is_dir() {
            copy_tree(&source, &target)?;
        } else {
            fs::copy(&source, &target)?;
            let mode = fs::metadata(&source)?.permissions().mode();
            fs::set_permissions(&target, fs::Permissions::from_mode(mode | 0o444 | (mode & 0o100) >> 6))?;
        }
    }
    Ok(())
}
