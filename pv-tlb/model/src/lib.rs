//! Modelled machines on which every interleaving of a flush protocol is explored.
//!
//! A [`scenario::Scenario`] says what vCPUs, pCPUs and flushes do; a
//! [`world::World`] says on which host. [`run::judge`] compiles the one for the
//! other, explores, and returns a verdict with the shortest bad interleaving.
//! [`explore`] knows nothing of TLBs and explores any [`explore::System`].
//!
//! No state outlives a call; everything is single-threaded.

#![forbid(unsafe_code)]

pub mod corpus;
pub mod explore;
pub mod generate;
pub mod machine;
pub mod program;
pub mod protocol;
pub mod run;
pub mod scenario;
pub mod script;
pub mod verdict;
pub mod world;
