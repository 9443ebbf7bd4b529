//! `cargo xtask dist`: everything a user needs, under `dist/` of the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

#[path = "../../crates/capi/ibverbs/link/mod.rs"]
pub mod ibverbs;

#[path = "../../crates/capi/rdmacm/link/mod.rs"]
pub mod rdmacm;

#[path = "../../crates/capi/link/shared_library.rs"]
mod shared_library;

#[path = "../../crates/preload/link/mod.rs"]
mod preload;

#[path = "../../crates/rsocket-preload/link/mod.rs"]
mod rsocket_preload;

/// The directory of the workspace.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Cargo's target directory (`CARGO_TARGET_DIR`, else `target`).
#[must_use]
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), |dir| workspace().join(dir))
}

/// Builds `bin/ferroce` and the libraries in `lib/ferroce` with a cargo profile (`dev`, `release` …) and returns the
/// directory `dist` that holds them.
///
/// # Errors
/// cargo or the linker fails, or a file can't be written.
pub fn dist(profile: &str) -> io::Result<PathBuf> {
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace())
        .args(["build", "--quiet", "--profile", profile])
        .args([
            "--package",
            "ferroce-cli",
            "--package",
            "ferroce-capi-rdmacm",
            "--package",
            "ferroce-capi-rsocket",
            "--package",
            "ferroce-preload",
            "--package",
            "ferroce-rsocket-preload",
        ])
        .status()?;
    if !status.success() {
        return Err(io::Error::other(format!("cargo build --profile {profile}: {status}")));
    }
    // The profiles `dev` and `test` share a directory, as cargo documents.
    let built = target().join(if matches!(profile, "dev" | "test") { "debug" } else { profile });
    let dist = target().join("dist");
    let bin = dist.join("bin");
    fs::create_dir_all(&bin)?;
    // A running `ferroce` can't be overwritten, but it can be replaced.
    let unfinished = bin.join("ferroce.new");
    fs::copy(built.join("ferroce"), &unfinished)?;
    fs::rename(&unfinished, bin.join("ferroce"))?;
    let libraries = dist.join("lib").join("ferroce");
    // One engine: the archive of the connection manager has all of the adapter.
    let archive = built.join("libferroce_rdmacm.a");
    let ibverbs = ibverbs::link(&archive, &rdmacm::engine(), &built.join("link-ibverbs"), &libraries)?;
    let rsocket = built.join("libferroce_rsocket.a");
    let rdmacm = rdmacm::link(&rsocket, &ibverbs, &built.join("link-rdmacm"), &libraries)?;
    let sockets = built.join("libferroce_rsocket_preload.a");
    rsocket_preload::link(&sockets, &rdmacm, &built.join("link-rsocket-preload"), &libraries)?;
    preload::link(&built.join("libferroce_preload.a"), &built.join("link-preload"), &libraries)?;
    // `ferroce` answers to the name of the command whose place it takes under `ferroce run`.
    let commands = libraries.join("bin");
    fs::create_dir_all(&commands)?;
    let rdma = commands.join("rdma");
    if rdma.symlink_metadata().is_err() {
        std::os::unix::fs::symlink("../../../bin/ferroce", &rdma)?;
    }
    Ok(dist)
}
