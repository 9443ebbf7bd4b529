//! Structures and numbers against the installed headers.

mod cma;
mod headers;
mod verbs;
