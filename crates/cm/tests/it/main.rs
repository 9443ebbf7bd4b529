//! The communication manager on a virtual clock: two of them joined by a wire that loses, repeats and reorders.

mod bounds;
mod ending;
mod equal;
mod faults;
mod hostile;
mod lookups;
mod making;
mod pair;
