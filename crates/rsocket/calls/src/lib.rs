//! What the calls of rsockets have around them: refusals as errno, waiting with a limit, signals, cancellation, addresses of C.

pub mod address;
pub mod call;
pub mod log;
pub mod settings;
pub mod signals;
pub mod this_process;
pub mod waiting;
