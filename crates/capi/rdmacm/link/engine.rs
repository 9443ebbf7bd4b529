//! What libibverbs.so.1 has for librdmacm.so.1: the one communication manager of a process.

use super::ibverbs::{More, Symbol, Version};
use super::table::{Place, TABLE, parse};

/// The version node of the functions that libibverbs.so.1 has for librdmacm.so.1 alone.
const PRIVATE: &str = "FERROCE_PRIVATE_1";

/// The name in libibverbs.so.1 of a function that librdmacm.so.1 exports.
pub(super) fn private(name: &str) -> String {
    format!("ferroce_{name}")
}

/// What libibverbs.so.1 has for this library.
#[must_use]
pub fn engine() -> More {
    let symbols = parse(TABLE)
        .into_iter()
        .filter(|export| export.place == Place::Engine)
        .map(|export| Symbol {
            name: private(&export.name),
            versions: vec![Version { node: PRIVATE.into(), default: true }],
            state: "yes".into(),
            code: export.name,
            users: "librdmacm".into(),
        })
        .collect();
    More { symbols, at_exit: Some("leaving") }
}
