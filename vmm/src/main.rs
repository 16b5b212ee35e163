//! The `pvtlb` binary.
fn main() {}
