//! The atomics of this crate: `core`'s, or loom's when a test is built with
//! `--cfg loom`, so that the shipped code is the code that is checked.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
