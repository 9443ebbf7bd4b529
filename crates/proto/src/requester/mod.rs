//! The requester of RC and XRC: turns send work requests into packets, in order, inside the window, and again when one is lost.

mod request;
mod send;
