//! The pure core of pvtlb: what a TLB invalidation is, how each instruction set
//! and ABI says it, and the guest algorithms that perform a shootdown.
//!
//! No I/O, no clock, no thread, no allocation and no unsafe code, so that the very
//! same functions run in a model checker, under loom and in the booted guest.

#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]

pub mod abi;
pub mod ack;
pub mod addr;
pub mod cpuset;
pub mod footprint;
pub mod id;
pub mod invalidation;
pub mod isa;
pub mod pending;
pub mod placement;
pub mod plan;
pub mod shootdown;
mod sync;

pub use cpuset::CpuSet;
