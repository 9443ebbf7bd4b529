//! What every C function has around it: entering and leaving the library, refusals as errno, and where they are printed.

pub mod call;
pub mod log;
