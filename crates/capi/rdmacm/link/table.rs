//! The table of symbols of librdmacm.so.1. Used by xtask and by this crate's tests through `#[path]`, so it uses nothing but std.

/// The text of the table of symbols.
pub const TABLE: &str = include_str!("../symbols.tsv");

/// Where an exported function is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In libibverbs.so.1.
    Engine,
    /// In librdmacm.so.1 itself.
    Rsocket,
}

/// One exported name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// The name that programs import.
    pub name: String,
    /// Its version node.
    pub node: String,
    /// Where the function is.
    pub place: Place,
}

/// Reads the table of symbols.
///
/// # Panics
/// On a malformed line: the table is part of the source.
#[must_use]
pub fn parse(table: &str) -> Vec<Export> {
    table
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, node, place] = fields[..] else {
                panic!("symbols.tsv: three fields expected in {line:?}")
            };
            let place = match place {
                "engine" => Place::Engine,
                "rsocket" => Place::Rsocket,
                other => panic!("symbols.tsv: {other:?} isn't a place"),
            };
            Export { name: name.into(), node: format!("RDMACM_{node}"), place }
        })
        .collect()
}
