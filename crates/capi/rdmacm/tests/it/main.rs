//! Tests of the library as programs meet it: exports.

mod exports;
