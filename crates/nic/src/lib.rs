//! nic
pub mod net;
pub mod rendezvous;
pub mod sys;
pub mod udp;
