//! Tests of the library as programs meet it: exports, and calls from C.

mod calls;
mod exports;
mod library;
