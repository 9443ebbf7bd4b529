//! The shared library of this build, for tests that look at it or run programs on it.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::table;

#[path = "../../../link/engine.rs"]
pub mod engine;
#[path = "../../../../ibverbs/link/mod.rs"]
pub mod ibverbs;
#[path = "../../../../link/shared_library.rs"]
mod shared_library;

use shared_library::machine::Machine;

/// Makes a file or directory at `path` unless it is there. Several processes may try (each test may be one); the
/// first one provides it.
pub fn made_once(path: &Path, make: impl FnOnce(&Path)) -> PathBuf {
    if !path.exists() {
        let mut unfinished = path.to_owned();
        unfinished.as_mut_os_string().push(format!(".{}", std::process::id()));
        make(&unfinished);
        if fs::rename(&unfinished, path).is_err() {
            assert!(path.is_dir(), "{} can't be put into place", path.display());
            fs::remove_dir_all(&unfinished).expect("removing what another process has made too");
        }
    }
    path.to_owned()
}

/// The newest static library that cargo has built for this test program.
fn archive() -> PathBuf {
    let program = std::env::current_exe().expect("own path");
    fs::read_dir(program.parent().expect("a directory"))
        .expect("cargo's directory of dependencies")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("libferroce_rdmacm-") && name.ends_with(".a")
        })
        .max_by_key(|path| path.metadata().and_then(|m| m.modified()).expect("its time"))
        .expect("a static library, built with this test")
}

/// `libibverbs.so.1`, linked from that archive.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let archive = archive();
        let mut key = DefaultHasher::new();
        (&archive, archive.metadata().and_then(|m| m.modified()).expect("its time")).hash(&mut key);
        (
            ibverbs::TABLE,
            include_str!("../../../../ibverbs/link/mod.rs"),
            include_str!("../../../link/engine.rs"),
            include_str!("../../../../link/shared_library.rs"),
            include_str!("../../../../link/baseline.rs"),
            include_str!("../../../../link/machine.rs"),
            include_str!("calls.c"),
            include_str!("calls.h"),
        )
            .hash(&mut key);
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libibverbs");
        let library = all.join(format!("{:016x}", key.finish()));
        fs::create_dir_all(&all).expect("cargo's directory for tests");
        made_once(&library, |directory| {
            // Of earlier builds nothing is needed any more.
            for old in fs::read_dir(&all).expect("a directory").filter_map(Result::ok) {
                let finished = old.path().extension().is_none();
                if finished && old.path() != library {
                    fs::remove_dir_all(old.path()).expect("removing an earlier build");
                }
            }
            fs::create_dir(directory).expect("a directory for the library");
            ibverbs::link(
                &Machine::this(),
                &archive,
                &engine::engine(),
                &directory.join("scratch"),
                directory,
            )
            .expect("linking");
        })
        .join("libibverbs.so.1")
    })
}
