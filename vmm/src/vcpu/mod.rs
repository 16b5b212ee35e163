//! vCPU threads: spawning and pinning, the loop, and the standing others rely on.

pub mod run_loop;
pub mod state;
pub mod thread;
