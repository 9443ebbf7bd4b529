//! Buffers, pools, exposed memory and slots, with an adapter that keeps its taps in a list.

mod adapter;
mod loans;
mod memory;
mod polled;
mod results;
mod slots;
