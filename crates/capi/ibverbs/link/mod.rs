//! Makes libibverbs.so.1 of the static library: one trampoline per symbol and version, and the version script.
//!
//! The one table of symbols is `symbols.tsv`; this file, `docs/MATRIX.md` and the tests of exports read it. `inline.tsv` lists
//! the functions that programs call through the device context instead. Used by xtask and by the
//! tests of `capi-rdmacm` through `#[path]`, so it uses nothing but std. Cargo builds the Rust code.
//!
//! Why trampolines: a name with two versions needs two addresses, `.symver` must be in the object that defines the
//! symbol, and rustc has no attribute for it. A tail jump keeps the caller's frame, so unwinding passes.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use super::shared_library::{self, machine::Machine};

/// The text of the table of symbols.
pub const TABLE: &str = include_str!("../symbols.tsv");

/// The text of the table of inline functions, which call through the device context and so aren't symbols.
pub const INLINE: &str = include_str!("../inline.tsv");

/// Prefix of the Rust functions behind the exports.
pub const IMPLEMENTATION_PREFIX: &str = "ferroce_c_";

/// One exported name.
#[derive(Clone, Debug)]
pub struct Symbol {
    /// The name that programs import.
    pub name: String,
    /// Its versions.
    pub versions: Vec<Version>,
    /// `yes`, `no` (returns "not supported"), `ignored` (accepted without effect) or `data`.
    pub state: String,
    /// The Rust function behind it, without [`IMPLEMENTATION_PREFIX`]; `-` for data.
    pub code: String,
    /// Packages whose programs import it; `-` if none was found.
    pub users: String,
}

/// One version of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    /// The version node, such as `IBVERBS_1.1`.
    pub node: String,
    /// The one that a new program is linked to (`@@`).
    pub default: bool,
}

/// One function that the header defines inline.
#[derive(Clone, Debug)]
pub struct Inline {
    /// The name that programs call.
    pub name: String,
    /// `yes`, `part` or `no`.
    pub state: String,
    /// Which parts of it are implemented; `-` for no remark.
    pub remark: String,
}

/// Reads the table of inline functions.
///
/// # Panics
/// On a malformed line: the table is part of the source.
#[must_use]
pub fn parse_inline(table: &str) -> Vec<Inline> {
    table
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, state, remark] = fields[..] else {
                panic!("inline.tsv: three fields expected in {line:?}")
            };
            Inline { name: name.into(), state: state.into(), remark: remark.into() }
        })
        .collect()
}

/// Reads the table of symbols.
///
/// # Panics
/// On a malformed line: the table is part of the source.
#[must_use]
pub fn parse(table: &str) -> Vec<Symbol> {
    table
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, versions, state, code, users] = fields[..] else {
                panic!("symbols.tsv: five fields expected in {line:?}")
            };
            Symbol {
                name: name.into(),
                versions: versions.split(',').map(Version::parse).collect(),
                state: state.into(),
                code: code.into(),
                users: users.into(),
            }
        })
        .collect()
}

impl Version {
    fn parse(text: &str) -> Self {
        let (default, short) = match text.strip_prefix("@@") {
            Some(short) => (true, short),
            None => (false, text.strip_prefix('@').expect("a version begins with @ or @@")),
        };
        let node = match short.strip_prefix('P') {
            Some(number) => format!("IBVERBS_PRIVATE_{number}"),
            None => format!("IBVERBS_{short}"),
        };
        Self { node, default }
    }

    /// Sorts the public nodes by number, the private ones behind them.
    fn order(&self) -> (bool, u32) {
        let number = self.node.rsplit(['.', '_']).next().and_then(|n| n.parse().ok());
        (self.node.contains("PRIVATE"), number.expect("a node ends in a number"))
    }
}

/// The linker's version script: every node, and nothing else visible.
#[must_use]
pub fn version_script(symbols: &[Symbol]) -> String {
    let mut nodes: Vec<&Version> = symbols.iter().flat_map(|s| &s.versions).collect();
    nodes.sort_by_key(|v| v.order());
    nodes.dedup_by(|a, b| a.node == b.node);
    let mut script = String::new();
    let mut previous: Option<&str> = None;
    for version in nodes {
        let mut names: Vec<&str> = symbols
            .iter()
            .filter(|s| s.versions.iter().any(|v| v.node == version.node))
            .map(|s| s.name.as_str())
            .collect();
        names.sort_unstable();
        let local = if previous.is_none() { "\tlocal: *;\n" } else { "" };
        let private = version.order().0;
        let parent = previous.filter(|_| !private).map(|p| format!(" {p}")).unwrap_or_default();
        writeln!(script, "{} {{\n\tglobal: {};\n{local}}}{parent};", version.node, names.join("; "))
            .expect("writing to a string");
        previous = Some(&version.node);
    }
    script
}

/// What else is in the library.
#[derive(Clone, Default, Debug)]
pub struct More {
    /// What is exported beside the table.
    pub symbols: Vec<Symbol>,
    /// The Rust function, without [`IMPLEMENTATION_PREFIX`], that runs when the process ends.
    pub at_exit: Option<&'static str>,
}

/// The assembly of all trampolines for `arch` ([`Machine::arch`]).
///
/// # Errors
/// An architecture that has no jump in `shared_library::jump`.
pub fn trampolines(symbols: &[Symbol], arch: &str) -> io::Result<String> {
    let jump = shared_library::jump(arch)?;
    let mut text = String::new();
    for (index, symbol) in symbols.iter().enumerate() {
        for (number, version) in symbol.versions.iter().enumerate() {
            let label = format!("ferroce_t{index}_{number}");
            let at = if version.default { "@@" } else { "@" };
            if symbol.state == "data" {
                writeln!(text, "\t.section .data.{label},\"aw\",%progbits\n\t.globl {label}")
                    .and_then(|()| writeln!(text, "\t.type {label}, %object\n\t.size {label}, 1"))
                    .and_then(|()| writeln!(text, "{label}:\n\t.byte 0"))
            } else {
                writeln!(text, "\t.section .text.{label},\"ax\",%progbits\n\t.globl {label}")
                    .and_then(|()| writeln!(text, "\t.type {label}, %function\n\t.p2align 4"))
                    .and_then(|()| writeln!(text, "{label}:\n\t.cfi_startproc"))
                    .and_then(|()| writeln!(text, "\t{jump} {IMPLEMENTATION_PREFIX}{}", symbol.code))
                    .and_then(|()| writeln!(text, "\t.cfi_endproc\n\t.size {label}, .-{label}"))
            }
            .and_then(|()| writeln!(text, "\t.symver {label}, {}{at}{}", symbol.name, version.node))
            .expect("writing to a string");
        }
    }
    // Runs when the library has been loaded.
    writeln!(text, "\t.section .init_array,\"aw\",%init_array\n\t.p2align 3")
        .and_then(|()| writeln!(text, "\t.quad {IMPLEMENTATION_PREFIX}loaded"))
        .expect("writing to a string");
    // Runs when the process exits, after the program's own handlers and destructors.
    writeln!(text, "\t.section .fini_array,\"aw\",%fini_array\n\t.p2align 3")
        .and_then(|()| writeln!(text, "\t.quad {IMPLEMENTATION_PREFIX}ended"))
        .expect("writing to a string");
    text.push_str(shared_library::END_OF_ASSEMBLY);
    Ok(text)
}

/// Links `archive`, a static library with this crate's functions, to `directory/libibverbs.so.1` of the machine, with the link
/// `libibverbs.so` beside it; intermediate files go to `scratch`.
///
/// # Errors
/// The C compiler is missing or refuses, or a file can't be written.
pub fn link(
    machine: &Machine,
    archive: &Path,
    more: &More,
    scratch: &Path,
    directory: &Path,
) -> io::Result<PathBuf> {
    let symbols = [parse(TABLE), more.symbols.clone()].concat();
    let (script, mut assembly) = (version_script(&symbols), trampolines(&symbols, machine.arch())?);
    if let Some(code) = more.at_exit {
        // The last entry runs first.
        writeln!(assembly, "\t.section .fini_array,\"aw\",%fini_array\n\t.p2align 3")
            .and_then(|()| writeln!(assembly, "\t.quad {IMPLEMENTATION_PREFIX}{code}"))
            .expect("writing to a string");
    }
    let library =
        shared_library::link(machine, "libibverbs.so.1", &[archive], &assembly, &script, scratch, directory)?;
    shared_library::link_beside("libibverbs.so.1", "libibverbs.so", directory)?;
    Ok(library)
}
