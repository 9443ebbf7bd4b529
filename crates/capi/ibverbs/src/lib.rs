//! libibverbs.so.1
