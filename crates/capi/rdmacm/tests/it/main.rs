//! Tests of the libraries as programs meet them: exports, and calls from C. One archive has the code of both.

mod exports;
mod libibverbs;
mod symbols;
#[path = "../../link/table.rs"]
mod table;
