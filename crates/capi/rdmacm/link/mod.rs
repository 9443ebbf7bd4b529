//! Makes librdmacm.so.1: one trampoline for each symbol, most of which jump to private symbols of libibverbs.so.1, where the one
//! communication manager of a process is. Sockets over RDMA are in the library itself.
//!
//! The one table of symbols is `symbols.tsv`, which `table.rs` reads. Used by xtask through `#[path]`, so it uses nothing but std.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use super::ibverbs;
use super::shared_library::{self, machine::Machine};

mod engine;
mod table;

pub use engine::engine;
pub use table::{Export, Place, TABLE, parse};

/// The library's file name.
const LIBRARY: &str = "librdmacm.so.1";
/// Prefix of the Rust functions behind the exports.
const IMPLEMENTATION_PREFIX: &str = "ferroce_c_";

/// The linker's version script.
fn version_script(exports: &[Export]) -> String {
    let mut nodes: Vec<&str> = exports.iter().map(|export| export.node.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let mut script = String::new();
    let mut previous = String::new();
    for node in nodes {
        let of_node = exports.iter().filter(|export| export.node == node);
        let names: Vec<&str> = of_node.map(|export| export.name.as_str()).collect();
        let local = if previous.is_empty() { "\tlocal: *;\n" } else { "" };
        writeln!(script, "{node} {{\n\tglobal: {};\n{local}}}{previous};", names.join("; "))
            .expect("writing to a string");
        previous = format!(" {node}");
    }
    script
}

/// The assembly of all trampolines for `arch` ([`Machine::arch`]).
fn trampolines(exports: &[Export], arch: &str) -> io::Result<String> {
    let jump = shared_library::jump(arch)?;
    let mut text = String::new();
    for (index, export) in exports.iter().enumerate() {
        let label = format!("ferroce_t{index}");
        let target = match (export.place, arch) {
            // By the table of what other libraries have.
            (Place::Engine, "x86_64") => format!("{}@PLT", engine::private(&export.name)),
            (Place::Engine, _) => engine::private(&export.name),
            (Place::Rsocket, _) => format!("{IMPLEMENTATION_PREFIX}{}", export.name),
        };
        writeln!(text, "\t.section .text.{label},\"ax\",%progbits\n\t.globl {label}")
            .and_then(|()| writeln!(text, "\t.type {label}, %function\n\t.p2align 4"))
            .and_then(|()| writeln!(text, "{label}:\n\t.cfi_startproc\n\t{jump} {target}"))
            .and_then(|()| writeln!(text, "\t.cfi_endproc\n\t.size {label}, .-{label}"))
            .and_then(|()| writeln!(text, "\t.symver {label}, {}@@{}", export.name, export.node))
            .expect("writing to a string");
    }
    text.push_str(shared_library::END_OF_ASSEMBLY);
    Ok(text)
}

/// Links `directory/librdmacm.so.1` to `ibverbs`, the libibverbs.so.1 that has [`engine()`], with the link `librdmacm.so` beside
/// it. `rsocket`: the static library of sockets over RDMA.
///
/// # Errors
/// The C compiler is missing or refuses, or a file can't be written.
pub fn link(
    machine: &Machine,
    rsocket: &Path,
    ibverbs: &Path,
    scratch: &Path,
    directory: &Path,
) -> io::Result<PathBuf> {
    let exports = parse(TABLE);
    let (script, assembly) = (version_script(&exports), trampolines(&exports, machine.arch())?);
    let library =
        shared_library::link(machine, LIBRARY, &[rsocket, ibverbs], &assembly, &script, scratch, directory)?;
    shared_library::link_beside(LIBRARY, "librdmacm.so", directory)?;
    Ok(library)
}
