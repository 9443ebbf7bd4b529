//! rsockets.
pub mod ends;
pub mod flow;
pub mod wire;
