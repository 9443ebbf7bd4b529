//! What C code sees of libibverbs and librdmacm: the structures and numbers of rdma-core's headers.
//!
//! Out of here: any behaviour, and the functions.

pub mod cma;
pub mod verbs;
