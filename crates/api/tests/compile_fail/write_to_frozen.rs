//! E0594: a frozen buffer isn't changed.
use ferroce::Frozen;

pub fn f(mut frozen: Frozen) {
    frozen = frozen.slice(..);
    frozen[0] = 1; // WRONG
}
