//! The shootdown-stress guest: a bare-metal kernel that performs TLB shootdowns on
//! several vCPUs and verifies each.
//!
//! Two privilege levels, one image, one identity map. The workload and the flush
//! algorithms run at CPL3 with page tables, local APIC and doorbell open to them;
//! CPL0 holds the trap entries and the few instructions that need it, and is
//! reached by `int3`. A KVM that interprets CPL0 walks guest page tables at each
//! access and so would hide every stale translation from code there; on hardware
//! KVM the level makes no difference, and `algorithm_cpl` = 0 moves everything to
//! CPL0 for comparison.
//!
//! vCPU 0 owns the set-up and the verdict. Each vCPU owns its [`vcpu::Area`] and its
//! report. Shared state is in atomics; every `unsafe` of the project's guest side is
//! in this crate.

#![no_std]
#![no_main]

mod access;
mod apic;
mod boot;
mod bytes;
mod doorbell;
mod gate;
mod heap;
mod machine;
mod paging;
mod params;
mod ports;
mod programs;
mod stress;
mod traps;
mod vcpu;
