//! `pvtlb stress`: sweeps vCPU counts and modes over the stress guest, interleaved,
//! and judges what the guest saw.
//!
//! Owner: the main thread. Each round boots a fresh VM, so rounds share nothing but
//! the host.

pub mod gather;
pub mod mode;
pub mod render;
pub mod step;
pub mod sweep;
