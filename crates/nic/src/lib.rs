//! nic
pub mod net;
