//! Tests of the crate against the installed headers.

#[path = "../../../headers/mod.rs"]
mod headers;
mod layout;
