//! Memory of the program, and memory that processes share.
//!
//! In here: touching memory that may be gone. Out of here: who may touch which bytes.

pub mod copy;

pub use copy::Fault;
