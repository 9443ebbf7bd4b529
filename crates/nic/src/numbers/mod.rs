//! The numbers of queue pairs and shared receive queues: made of a slot of the host, which this process has, and an index.
//!
//! In here: which number is of which object of this process. Out of here: whose a slot is (`host`).

mod qps;
mod srqs;

pub(crate) use qps::QpTable;
pub(crate) use srqs::SrqTable;
