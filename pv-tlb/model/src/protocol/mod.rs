//! The guest's shootdown algorithms, run as they ship, in every interleaving.
//!
//! A [`Setup`] names an algorithm of `pv_tlb::shootdown`, the vCPUs' programs, the host
//! and the hardware; [`Machine`] makes of it a system for the explorer, in which each
//! access to a shared word and each act on a TLB is a step. Two promises are checked:
//! no access through a translation older than a change whose flush has returned, or
//! to a freed frame or table; and no state in which somebody has work left and
//! nothing can move. A [`Mutant`] is one mistake that has to break a promise.
//!
//! Memory takes effect in the order of the steps (sequential consistency), or, where
//! a setup asks for it, plain stores become visible late and in order.

mod access;
mod broken;
mod cases;
mod doorbell;
mod host;
mod machine;
mod memory;
mod mutant;
mod perform;
mod program;
mod replay;
mod setup;
mod state;

pub use broken::broken;
pub use cases::{Row, answer, sound, table};
pub use machine::{Machine, Step};
pub use memory::MAX_VCPUS;
pub use mutant::Mutant;
pub use perform::Fault;
pub use program::{Algorithm, Op};
pub use setup::{Host, Setup};
pub use state::State;
