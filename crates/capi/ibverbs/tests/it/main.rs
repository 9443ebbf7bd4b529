//! Tests of the library as programs meet it: layout, exports, and calls from C.

mod calls;
mod exports;
#[path = "../../../headers/mod.rs"]
mod headers;
mod layout;
mod library;
