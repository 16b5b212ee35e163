//! The host's decision: what must be flushed where, and why.
//!
//! Pure functions over frozen values: no state, no owner, no ordering, no
//! allocation.

mod policy;

pub use policy::{HostPolicy, Tagging, UnknownPolicy, UpgradeRule};
