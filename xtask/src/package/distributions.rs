//! Packages of distributions. They go to `/usr/bin/ferroce` and `/usr/lib/ferroce`, where no program finds the libraries by
//! itself: those of the distribution's rdma-core stay what they are.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use super::tree::{Kind, Tree, directories};
use super::{HOMEPAGE, LICENCE, Release, SUMMARY};

/// In lines of at most 79 characters.
const DESCRIPTION: &str = "Programs that were built for an RDMA adapter run unmodified on any Linux\n\
                           machine: no adapter, no kernel module, no daemon. Start them with\n\
                           `ferroce run`.";
const MAINTAINER: &str = "The Ferroce developers <ferroce@users.noreply.github.com>";
/// Of the packages, for one version of the program.
const REVISION: &str = "1";

/// Writes a package for Debian and what derives from it, with dpkg-deb; `scratch` gets the tree.
pub fn deb(directory: &Path, scratch: &Path, tree: &Tree, release: &Release) -> io::Result<PathBuf> {
    if scratch.exists() {
        fs::remove_dir_all(scratch)?;
    }
    let (root, control) = (scratch.join("usr"), scratch.join("DEBIAN"));
    fs::create_dir_all(&control)?;
    let mut size = 0;
    for entry in tree {
        // Where zsh looks there for what packages bring.
        let path = root.join(entry.path.replace("zsh/site-functions", "zsh/vendor-completions"));
        fs::create_dir_all(path.parent().unwrap_or(&root))?;
        match &entry.kind {
            Kind::File { mode, content } => {
                size += content.len();
                fs::write(&path, content)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
            }
            Kind::Link { target } => symlink(target, &path)?,
        }
    }
    let copyright = format!(
        "Ferroce is licensed under {LICENCE}: see LICENSE-MIT and LICENSE-APACHE.\nWhat others wrote: see \
         THIRD-PARTY-NOTICES.\nSource: {HOMEPAGE}\n"
    );
    fs::write(root.join("share/doc/ferroce/copyright"), copyright)?;
    let (version, arch) = (release.version, release.arch.debian);
    let text = format!(
        "Package: ferroce\nVersion: {version}-{REVISION}\nArchitecture: {arch}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {}\nDepends: libc6 (>= 2.28)\nSuggests: ibverbs-utils, rdmacm-utils, perftest\nSection: net\n\
         Priority: optional\nHomepage: {HOMEPAGE}\nDescription: {SUMMARY}\n {}\n",
        size.div_ceil(1024),
        DESCRIPTION.replace('\n', "\n ")
    );
    fs::write(control.join("control"), text)?;
    for folder in folders_of(scratch)? {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    let path = directory.join(format!("ferroce_{version}-{REVISION}_{arch}.deb"));
    let mut packer = Command::new("dpkg-deb");
    packer.env("SOURCE_DATE_EPOCH", release.time.to_string());
    packer.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]).arg(scratch).arg(&path);
    super::output(&mut packer).map_err(|error| {
        io::Error::other(format!("{error}; fix: install dpkg and xz, or build on Debian"))
    })?;
    Ok(path)
}

/// The directory and those below it.
fn folders_of(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = vec![directory.to_owned()];
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.symlink_metadata()?.is_dir() {
            all.extend(folders_of(&path)?);
        }
    }
    Ok(all)
}

/// Writes a package for RHEL, Fedora, SUSE and their like.
pub fn rpm(directory: &Path, tree: &Tree, release: &Release) -> io::Result<PathBuf> {
    let (version, arch) = (release.version, release.arch.rust);
    let time = u32::try_from(release.time).map_err(io::Error::other)?;
    let config =
        rpm::BuildConfig::default().compression(rpm::CompressionWithLevel::Gzip(9)).source_date(time);
    let mut builder = rpm::PackageBuilder::new("ferroce", version, LICENCE, arch, SUMMARY);
    builder.using_config(config).release(REVISION).url(HOMEPAGE).description(DESCRIPTION);
    builder.build_host("ferroce").vendor(MAINTAINER);
    builder.requires(rpm::Dependency::any("libc.so.6(GLIBC_2.28)(64bit)"));
    for folder in
        directories(tree).iter().filter(|folder| folder.ends_with("/ferroce") || folder.contains("/ferroce/"))
    {
        builder
            .with_dir_entry(rpm::FileOptions::dir(format!("/usr/{folder}")).permissions(0o755))
            .map_err(io::Error::other)?;
    }
    for entry in tree {
        let to = format!("/usr/{}", entry.path);
        match &entry.kind {
            Kind::File { mode, content } => {
                let permissions = u16::try_from(*mode).map_err(io::Error::other)?;
                let mut options = rpm::FileOptions::new(to).permissions(permissions);
                if entry.path.starts_with("share/doc/") || entry.path.starts_with("share/man/") {
                    options = options.doc();
                }
                builder.with_file_contents(content.as_slice(), options).map_err(io::Error::other)?;
            }
            Kind::Link { target } => {
                builder.with_symlink(rpm::FileOptions::symlink(to, target)).map_err(io::Error::other)?;
            }
        }
    }
    let path = directory.join(format!("ferroce-{version}-{REVISION}.{arch}.rpm"));
    builder.build().map_err(io::Error::other)?.write_file(&path).map_err(io::Error::other)?;
    Ok(path)
}
