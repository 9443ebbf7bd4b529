//! The C calls that post requests and poll completions, and those that make and destroy the queues for it.

#![allow(clippy::missing_safety_doc)] // the man pages'

pub mod checked;
pub mod cq;
pub mod cq_ex;
pub mod mw;
pub mod poll;
pub mod post;
pub mod tags;
pub mod wq;
pub mod wr;
