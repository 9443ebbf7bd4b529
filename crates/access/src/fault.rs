//! The error of a copy or an atomic.

/// The program's memory isn't there (any more), or not with the rights the access needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault;
