//! The wire formats against the specification, real adapters' packets and an independent decoder.

mod cm;
mod common;
mod frames;
mod headers;
mod icrc;
mod tshark;
