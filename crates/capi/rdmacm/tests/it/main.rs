//! Tests of the library as programs meet it: layout and exports.

mod exports;
#[path = "../../../headers/mod.rs"]
mod headers;
mod layout;
