//! Tests of the library as programs meet it: layout, exports, and calls from C.

mod calls;
mod exports;
mod layout;
mod library;
