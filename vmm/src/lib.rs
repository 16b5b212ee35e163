//! The library behind the `pvtlb` binary.
//!
//! Layers, each using only those below it: command > stress, doctor, scenario,
//! exposure, probe, session > boot, vcpu > flush, placement, devices > kvm, memory >
//! metrics. See ARCHITECTURE.md.

pub mod boot;
pub mod cli;
pub mod command;
pub mod devices;
pub mod doctor;
pub mod error;
pub mod exposure;
pub mod flush;
pub mod initramfs;
pub mod kvm;
pub mod memory;
pub mod metrics;
pub mod placement;
pub mod probe;
pub mod scenario;
pub mod session;
pub mod stress;
pub mod vcpu;
