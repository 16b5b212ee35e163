//! vCPU threads: spawning and pinning, and the loop.

pub mod run_loop;
pub mod thread;
