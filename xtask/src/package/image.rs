//! A layer for container images, in the layout that the Open Container Initiative has defined: an image of nothing but Ferroce, from
//! which other images copy (`COPY --from`), and which `skopeo copy` sends to a registry.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::tree::Tree;
use super::{HOMEPAGE, LICENCE, Release, SUMMARY, hexadecimal, tarball};

/// Writes `directory/ferroce-VERSION-ARCH-linux-gnu.oci.tar`. The files are where a package of a distribution has them, below `usr`.
pub fn write(directory: &Path, tree: &Tree, release: &Release) -> io::Result<PathBuf> {
    let (version, arch) = (release.version, release.arch);
    let mut layer = Vec::new();
    tarball::pack(&mut layer, "usr", tree, release)?;
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(layer.as_slice()).read_to_end(&mut unpacked)?;
    let config = json!({
        "architecture": arch.debian, "os": "linux", "created": release.created,
        "config": {
            "Entrypoint": ["/usr/bin/ferroce"], "Cmd": ["help"],
            "Labels": {
                "org.opencontainers.image.title": "ferroce", "org.opencontainers.image.version": version,
                "org.opencontainers.image.description": SUMMARY, "org.opencontainers.image.licenses": LICENCE,
                "org.opencontainers.image.source": HOMEPAGE,
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [digest(&unpacked)] },
        "history": [{ "created": release.created, "created_by": "cargo xtask package" }],
    });
    let config = text(&config);
    let manifest = text(&json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &layer)],
    }));
    let mut listed = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    listed["platform"] = json!({ "architecture": arch.debian, "os": "linux" });
    listed["annotations"] = json!({ "org.opencontainers.image.ref.name": format!("ferroce:{version}") });
    let index = text(&json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [listed],
    }));

    let path = directory.join(format!("ferroce-{version}-{}-linux-gnu.oci.tar", arch.rust));
    let mut archive = Builder::new(File::create(&path)?);
    let layout = text(&json!({ "imageLayoutVersion": "1.0.0" }));
    let mut files = vec![("oci-layout".to_owned(), &layout), ("index.json".to_owned(), &index)];
    for blob in [&config, &layer, &manifest] {
        files.push((format!("blobs/sha256/{}", hexadecimal(&Sha256::digest(blob))), blob));
    }
    for (name, content) in files {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        header.set_mtime(release.time);
        header.set_uid(0);
        header.set_gid(0);
        archive.append_data(&mut header, name, content.as_slice())?;
    }
    archive.into_inner()?.flush()?;
    Ok(path)
}

fn text(document: &Value) -> Vec<u8> {
    document.to_string().into_bytes()
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hexadecimal(&Sha256::digest(content)))
}

fn descriptor(kind: &str, content: &[u8]) -> Value {
    json!({ "mediaType": kind, "digest": digest(content), "size": content.len() })
}
