//! Where vCPUs may run.

pub mod pins;
