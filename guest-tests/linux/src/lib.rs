//! The agent for unmodified Linux guests: changes mappings, and proves for each
//! change that no vCPU used the old translation after the system call returned.
//!
//! Layers, each using only those below it: init > sweep > worker > pages > memory;
//! evidence, job and wire stand beside them. Only `memory` holds `unsafe`. All of it
//! runs as an ordinary process too: only [`init`] needs to be process 1.

pub mod evidence;
pub mod init;
pub mod job;
pub mod memory;
pub mod pages;
pub mod sweep;
pub mod wire;
pub mod worker;
