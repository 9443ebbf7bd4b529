//! `libibverbs.so.1`: its exports, and calls from C.

mod calls;
mod exports;
mod library;
